"""What can go wrong on the wire, and how it is read from what torch, Gloo and the store raise."""

import re


class WireError(Exception):
    """A collective failed.

    `kind` is that of events.Failed; `suspect_rank` is None where it cannot be told.
    """

    kind = "peer"

    def __init__(self, message: str, suspect_rank: int | None = None):
        self.suspect_rank = suspect_rank
        super().__init__(message)


class PeerLost(WireError):
    """Another rank is gone: its connection closed, it gave up, or it fell silent."""


class DeadlineExceeded(WireError):
    """A collective took longer than DEADLINE."""

    kind = "deadline"


class Mismatch(WireError):
    """Ranks disagree about a collective, or about the run they are in."""

    kind = "mismatch"


# What Gloo and the store write into a plain RuntimeError, by what it means.
MEANINGS = (
    (Mismatch, re.compile(r"preamble|op\.nbytes|size mismatch|must (match|be equal)|does not match", re.I)),
    (DeadlineExceeded, re.compile(r"tim(ed?|e)[ -]?out", re.I)),
    (PeerLost, re.compile(r"closed|reset|broken pipe|refused|failed to (recv|send)|unreachable|gone", re.I)),
)

WHAT = {
    PeerLost: "a peer was lost during {doing}",
    DeadlineExceeded: "{doing} took longer than DEADLINE={deadline:g} s",
    Mismatch: "ranks disagree about a collective during {doing}: another operation, shape or order",
}
