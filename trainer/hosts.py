"""Whom a port answers: requests that name it as it is known, and that no foreign page had a browser send.

A port on 127.0.0.1 is reached by every web page that a browser on this machine shows. A page's own
name may be made to lead here (DNS rebinding), which Host tells; a form or a script of another site
may post here, which Origin and Sec-Fetch-Site tell. Programs (curl, Prometheus) send neither.
Sources: RFC 9110, section 7.2; RFC 6454; Fetch Metadata Request Headers (W3C).
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
MISDIRECTED, FORBIDDEN = 421, 403
_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[^][:/?#@\s\\]+)(:[0-9]{0,5})?")
_SENT_HERE = (b"same-origin", b"none")  # none: typed into the address bar


class Refusal(NamedTuple):
    """`status`: of HTTP. `message`: one line."""

    status: int
    message: str


class Hosts:
    """The names that a server is known by: those of loopback, `names`, and the address that was connected to.

    `more`: how to make another name known, for the refusal of one that is not.
    """

    def __init__(self, names: Iterable[str] = (), more: str = ""):
        self._names = {name.lower() for name in (*LOOPBACK, *names)}
        self._more = more

    def refusal(self, headers: Iterable[tuple[bytes, bytes]], version: str, address: str | None) -> Refusal | None:
        """Why a request is not answered; None where it is.

        `headers`: names in small letters. `version`: of HTTP, as 1.1. `address`: that was connected to, where it is
        known.
        """
        host = origin = site = None
        for name, value in headers:
            if name == b"host":
                if host is not None:
                    return _misdirected("there is more than one Host")
                host = value
            elif name == b"origin":
                origin = value
            elif name == b"sec-fetch-site":
                site = value
        if host is None and version != "1.0":  # no browser speaks 1.0; images/http-ok.sh does
            return _misdirected("there is no Host")
        if host is not None and not self._knows(host.decode("latin-1").lower(), address):
            return _misdirected(f"Host {host.decode('latin-1')[:100]!a} is not known{self._more}")
        if site not in (None, *_SENT_HERE) or not _same(origin, host):
            return Refusal(FORBIDDEN, "a page of another site sent this: use a program, such as curl")
        return None

    def _knows(self, host: str, address: str | None) -> bool:
        match = _AUTHORITY.fullmatch(host)
        if match is None:
            return False
        address = address.lower() if address else None
        return match[1] in self._names or match[1] in (address, f"[{address}]")


def _same(origin: bytes | None, host: bytes | None) -> bool:
    """Whether a page of this port sent it; all that is no browser sends no Origin."""
    if origin is None:
        return True
    scheme, _, authority = origin.lower().partition(b"://")
    return host is not None and scheme in (b"http", b"https") and authority == host.lower()


def _misdirected(problem: str) -> Refusal:
    return Refusal(MISDIRECTED, f"{problem}: ask for {LOOPBACK[0]} or {LOOPBACK[1]}")
