"""A launcher's word, told from a rank's: both travel on one stream, and in a node both are one user's.

    key = new_key()              # the orchestrator makes one for each launcher, which reads it on its stdin
    Signer(key).write(event)     # the launcher says an event
    Verifier(key).text(line)     # the orchestrator: the event's text; None for a line of the rank; ForgedError

A line is "MAC NUMBER EVENT". The MAC is HMAC-SHA256 of NUMBER EVENT under the key. Numbers grow: no line counts twice.
The key stays in the memory of two processes. The launcher's is hidden from its own user (node/launcher.py).
"""

import hmac
import re
import secrets
import sys
import threading

from trainer import events

FORM = re.compile(r"([0-9a-f]{64}) (([1-9][0-9]{0,8}) (\{.*\}))")


class ForgedError(Exception):
    """An event that has a launcher's form and that its launcher did not say, or not now. str() is one line."""


def new_key() -> str:
    """A key for one launcher: 64 hexadecimal digits."""
    return secrets.token_hex(32)


class Signer:
    """Writes a launcher's events to its standard output. Any of its threads may."""

    def __init__(self, key: str):
        self._key, self._count = key, 0
        self._lock = threading.Lock()

    def write(self, event: events.Event) -> None:
        """Write one event, whole and at once. From the second one on, a rank may have left a line open: end that."""
        with self._lock:
            start = "\n" if self._count else ""
            self._count += 1
            content = f"{self._count} {events.to_line(event)}"
            sys.stdout.write(f"{start}{_mac(self._key, content)} {content}\n")
            sys.stdout.flush()


class Verifier:
    """Reads the lines of one launcher's stream, in order."""

    def __init__(self, key: str):
        self._key, self._last = key, 0

    def text(self, line: str) -> str | None:
        """The event that the launcher says with this line, as text. None: the line is the rank's.

        Raises ForgedError for an event in a launcher's form with a wrong MAC, or one that was said before.
        """
        form = FORM.fullmatch(line)
        if form is None:
            return None
        mac, content, number, text = form.groups()
        if hmac.compare_digest(mac, _mac(self._key, content)):
            if int(number) <= self._last:
                raise ForgedError("it sent a line of its launcher once more")
            self._last = int(number)
            return text
        if events.parse(text):  # else it is not even broken: a rank may print digests
            raise ForgedError("it sent an event as its launcher, without its launcher's signature")
        return None


def _mac(key: str, content: str) -> str:
    return hmac.digest(bytes.fromhex(key), content.encode(), "sha256").hex()
