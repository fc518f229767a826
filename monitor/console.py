"""What a person reads in a terminal: where it is printed, and what happens when the reader has gone."""

import errno
import json
import os
import sys
from typing import IO, cast

from rich.console import Console
from rich.segment import Segment

NOBODY = (errno.EPIPE, errno.EIO)  # a pipe, a terminal that nobody reads any more

# What moves the cursor, asks the terminal for something or turns the direction of text: C0 but tab and newline, DEL,
# C1, line separators, marks of direction. Shown as \\x1b.
_ORDERS = [*(c for c in range(0x20) if chr(c) not in "\t\n"), *range(0x7F, 0xA0), 0x61C, 0x200E, 0x200F]
_ORDERS += [*range(0x2028, 0x202F), *range(0x2066, 0x206A)]
_ESCAPES = {c: f"\\x{c:02x}" if c < 0x100 else f"\\u{c:04x}" for c in _ORDERS}


def plain(text: str) -> str:
    """The text as a terminal may have it, wherever it comes from: it is shown, and gives no orders."""
    return text if text.isprintable() else text.translate(_ESCAPES)


class PlainConsole(Console):
    """Whatever is printed here is plain but for the styles that we give it."""

    def render(self, *args, **options):
        for segment in super().render(*args, **options):
            yield segment if segment.control else Segment(plain(segment.text), segment.style)


class Unbroken:
    """A stream whose reader may go away (`make run | head`, a closed terminal): output after that is dropped."""

    def __init__(self, stream: IO[str]):
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            if error.errno not in NOBODY:
                raise
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            if error.errno not in NOBODY:
                raise
            # Python flushes once more at exit, which must not fail either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def __getattr__(self, name):
        return getattr(self._stream, name)


def console(stderr: bool = False) -> Console:
    """Where a person reads: as wide as the terminal, and wide enough for every table in a file or a log.

    Nothing printed is markup: folders, class names and messages come from outside and may hold [brackets].
    """
    stream = cast(IO[str], Unbroken(sys.stderr if stderr else sys.stdout))  # which passes all else on
    console = PlainConsole(file=stream, soft_wrap=True, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 200
    return console


def tell_removed(removed: list[str], as_json: bool, nothing: str) -> None:
    """What was removed, or the line that says nothing was."""
    if as_json:
        print(json.dumps({"removed": removed}))
    else:
        print(plain("\n".join(f"removed {what}" for what in removed) or nothing))


def say(line: str) -> None:
    """One line of progress, beside what a program may read on stdout."""
    print(plain(line), file=sys.stderr, flush=True)
