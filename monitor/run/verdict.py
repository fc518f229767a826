"""Whose fault it was when a run failed: from what is known of every rank to the one cause."""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from monitor.runtime.base import RankHandle
from trainer import events

TAIL_LINES = 20
NO_MEMORY = "ran out of memory"
OWN_KINDS = {"own": "error", "input": "input", "mismatch": "mismatch"}  # what a rank says of itself: what we call it


@dataclass
class RankState:
    """All that is known of one rank."""

    heard: float  # monotonic seconds of its last sign of life
    handle: RankHandle | None = None
    started: events.Started | None = None
    ready: events.Ready | None = None
    steps: list[events.Step] = field(default_factory=list)
    trained: events.Trained | None = None
    served: events.Served | None = None
    watched: events.Watched | None = None
    evaluations: list[events.Monitored] = field(default_factory=list)
    finished: events.Finished | None = None
    failed: events.Failed | None = None
    exited: events.Exited | None = None
    busy: str | None = None  # the run that holds its node
    frozen: float = 0.0  # seconds without a sign of life, once they are too many
    ended: bool = False  # its stream is closed
    stopped: bool = False  # we ended it: how it went is no evidence
    lost: str | None = None  # why, when the run went on without it
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))


@dataclass(frozen=True)
class Failure:
    """Why a run failed. `message` is one line that names the rank, where one is to blame."""

    kind: str  # killed, out_of_memory, error, input, mismatch, frozen, deadline, peer, lost, interrupted, disk, engine
    message: str
    rank: int | None = None
    last_lines: tuple[str, ...] = ()  # what the rank printed besides events
    traceback: str = ""


def in_trouble(state: RankState) -> bool:
    """Whether this rank shows that the run will not finish."""
    died = state.exited is not None and state.exited.code != 0
    return bool(state.failed or state.frozen or state.busy or died or (state.ended and not state.finished))


def only_blame(ranks: Sequence[RankState]) -> bool:
    """Whether nothing is known but that ranks blame each other, and some have not said yet whom they blame."""
    sure = [s for s in ranks if in_trouble(s) and not s.lost and not (s.failed and s.failed.suspect_rank is not None)]
    blamed = {s.failed.suspect_rank for s in ranks if s.failed}
    silent = [r for r, s in enumerate(ranks) if not (s.failed or s.ended or s.exited or s.lost)]
    return not sure and any(rank not in blamed for rank in silent)


def verdict(ranks: Sequence[RankState], name: Callable[[int], str]) -> Failure | None:
    """The one cause, from the surest evidence to the least; None when every rank finished. `name` says who a rank is.

    Ranks that the run went on without are no cause.
    """
    named = [(rank, name(rank), state) for rank, state in enumerate(ranks) if not state.lost]
    if all(s.finished and s.exited and s.exited.code == 0 for _, _, s in named):
        return None

    def failure(kind: str, rank: int, what: str, why: str = "") -> Failure:
        state = ranks[rank]
        at = f" at step {state.steps[-1].step}" if state.steps else " before its first step"
        traceback = state.failed.traceback if state.failed else ""
        return Failure(kind, what + at + (f": {why}" if why else ""), rank, tuple(state.tail), traceback)

    for rank, who, state in named:
        if state.exited and state.exited.out_of_memory:
            return failure("out_of_memory", rank, f"{who} {NO_MEMORY}", _limit(state.exited))
    for rank, who, state in named:
        if state.exited and state.exited.signal:
            return failure("killed", rank, f"{who} {how(state)}")
    for rank, who, state in named:
        if state.ended and not state.exited and not state.stopped:
            return failure("lost", rank, f"{who} {how(state)}")
    own = [(s.failed.time, r, w, s.failed) for r, w, s in named if s.failed and s.failed.kind in OWN_KINDS]
    if own:
        _, rank, who, failed = min(own)
        return failure(OWN_KINDS[failed.kind], rank, f"{who} failed", failed.message)
    for rank, who, state in named:
        if state.exited and state.exited.code and not state.failed:
            return failure("error", rank, f"{who} {how(state)}")
    for rank, who, state in named:
        if state.frozen:
            return failure("frozen", rank, f"{who} {how(state)}")
    complaints = sorted((s.failed for _, _, s in named if s.failed), key=lambda failed: (failed.time, failed.rank))
    if complaints:
        return failure(*_blamed(complaints, name))
    return Failure("lost", "the run ended without a result")


def _blamed(complaints: list[events.Failed], name: Callable[[int], str]) -> tuple[str, int, str, str]:
    """Kind, rank, what, why: the rank that most complaints suspect; of equally many, the one suspected first.

    A rank whose network is gone blames the others as loudly as they blame it, and may be the first to do so.
    """
    votes = Counter(c.suspect_rank for c in complaints if c.suspect_rank is not None)
    suspect = max(votes, key=votes.get, default=None)  # the first of equals: `complaints` are in order of time
    first = next(c for c in complaints if c.suspect_rank == suspect)
    if suspect is None:
        return first.kind, first.rank, f"{name(first.rank)} gave up", first.message
    count = "it suspects" if len(complaints) == 1 else f"{votes[suspect]} of the {len(complaints)} that gave up suspect"
    return first.kind, suspect, f"{name(first.rank)} gave up", f"{first.message}; {count} {name(suspect)}"


def how(state: RankState) -> str:
    """What became of a rank that did not finish, by the surest evidence."""
    if state.exited and state.exited.out_of_memory:
        return f"{NO_MEMORY}: {_limit(state.exited)}"
    if state.exited and state.exited.signal:
        return f"was killed by {state.exited.signal}"
    if state.ended and not state.exited and not state.stopped:
        return f"is gone: {state.handle.gone()}"
    if state.failed:
        return f"failed: {state.failed.message}"
    if state.exited and state.exited.code:
        return f"ended with exit code {state.exited.code}"
    if state.frozen and state.finished:
        return f"has finished, but its launcher is frozen: no sign of life for {state.frozen:g} s"
    return f"is frozen: no sign of life for {state.frozen:g} s" if state.frozen else "ended before it had finished"


def _limit(exited: events.Exited) -> str:
    """What killed a rank that ran out of memory."""
    limit, peak = exited.memory_limit_bytes, exited.memory_peak_bytes
    of = f" of {limit / 2**20:.0f} MiB" if limit else ""
    return f"the node's limit{of} killed it" + (f"; peak {peak / 2**20:.0f} MiB" if peak else "")
