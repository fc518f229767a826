"""Whose fault it was when a run failed: from what is known of every rank to the one cause."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from monitor.run.rank_state import NO_MEMORY, RankState, memory_limit

OWN_KINDS = {"own": "error", "input": "input", "mismatch": "mismatch"}  # what a rank says of itself: what we call it
Names = Callable[[int], str]
Candidates = dict[int, RankState]  # by rank: those that the run did not go on without


@dataclass(frozen=True)
class Failure:
    """Why a run failed. `message` is one line that names the rank, where one is to blame."""

    kind: str  # killed, out_of_memory, error, input, mismatch, frozen, deadline, peer, lost, interrupted, disk, engine
    message: str
    rank: int | None = None
    last_lines: tuple[str, ...] = ()  # what the rank printed besides events
    traceback: str = ""


def only_blame(ranks: Sequence[RankState]) -> bool:
    """Whether nothing is known but that ranks blame each other, and some have not said yet whom they blame."""
    suspects = {state.failed.suspect_rank for state in ranks if state.failed}
    blames = [bool(state.failed and state.failed.suspect_rank is not None) for state in ranks]
    evidence = any(
        state.in_trouble and not state.lost_reason and not blame for state, blame in zip(ranks, blames, strict=True)
    )
    silent = [
        rank
        for rank, state in enumerate(ranks)
        if not (state.failed or state.ended or state.exited or state.lost_reason)
    ]
    return not evidence and any(rank not in suspects for rank in silent)


def verdict(ranks: Sequence[RankState], name: Names) -> Failure | None:
    """The one cause, from the surest evidence to the least; None when every rank finished. `name` says who a rank is.

    Ranks that the run went on without are no cause.
    """
    candidates = {rank: state for rank, state in enumerate(ranks) if not state.lost_reason}
    if all(state.went_well for state in candidates.values()) and not any(state.breach for state in ranks):
        return None
    return (
        _breach(ranks, name)
        or _disk(candidates, name)
        or _first("out_of_memory", candidates, name, lambda state: state.exited and state.exited.out_of_memory)
        or _first("killed", candidates, name, lambda state: state.exited and state.exited.signal)
        or _first("lost", candidates, name, lambda state: state.vanished)
        or _own_error(candidates, name)
        or _first("error", candidates, name, lambda state: state.exited and state.exited.code and not state.failed)
        or _first("frozen", candidates, name, lambda state: state.silence)
        or _most_suspected(ranks, candidates, name)
        or Failure("lost", "the run ended without a result")
    )


def _breach(ranks: Sequence[RankState], name: Names) -> Failure | None:
    """The failure of the first rank that sent what it may not. It is to blame whatever else was said: also when the run
    went on without it.
    """
    for rank, state in enumerate(ranks):
        if state.breach:
            return _failure("error", rank, state, f"{name(rank)} misused its event stream", state.breach)
    return None


def _disk(candidates: Candidates, name: Names) -> Failure | None:
    """The failure of the first rank that was ended for what its node holds on the disk. The run never goes on without
    it: the disk is as full as it was.
    """
    for rank, state in candidates.items():
        if state.failed and state.failed.kind == "disk":
            return _failure("disk", rank, state, f"{name(rank)} was ended for space on the disk", state.failed.message)
    return None


def _first(kind: str, candidates: Candidates, name: Names, shows: Callable[[RankState], object]) -> Failure | None:
    """The failure of the first rank that shows this evidence."""
    for rank, state in candidates.items():
        if shows(state):
            if state.exited and state.exited.out_of_memory:
                return _failure(kind, rank, state, f"{name(rank)} {NO_MEMORY}", memory_limit(state.exited))
            return _failure(kind, rank, state, f"{name(rank)} {state.end()}")
    return None


def _own_error(candidates: Candidates, name: Names) -> Failure | None:
    """The failure of the rank that was the first to fail by what it did itself."""
    failures = [
        (state.failed.time, rank, state.failed)
        for rank, state in candidates.items()
        if state.failed and state.failed.kind in OWN_KINDS
    ]
    if not failures:
        return None
    _, rank, failed = min(failures, key=lambda failure: failure[:2])
    return _failure(OWN_KINDS[failed.kind], rank, candidates[rank], f"{name(rank)} failed", failed.message)


def _most_suspected(ranks: Sequence[RankState], candidates: Candidates, name: Names) -> Failure | None:
    """The rank that most complaints suspect; of equally many, the one suspected first.

    A rank whose network is gone blames the others as loudly as they blame it, and may be the first to do so.
    """
    complaints = [state.failed for state in candidates.values() if state.failed]
    if not complaints:
        return None
    complaints.sort(key=lambda failed: (failed.time, failed.rank))
    votes = Counter(failed.suspect_rank for failed in complaints if failed.suspect_rank is not None)
    suspect, count = next(iter(votes.most_common(1)), (None, 0))  # the first of equals: they are in order of time
    first = next(failed for failed in complaints if failed.suspect_rank == suspect)
    if suspect is None:
        return _failure(first.kind, first.rank, ranks[first.rank], f"{name(first.rank)} gave up", first.message)
    who = "it suspects" if len(complaints) == 1 else f"{count} of the {len(complaints)} that gave up suspect"
    why = f"{first.message}; {who} {name(suspect)}"
    return _failure(first.kind, suspect, ranks[suspect], f"{name(first.rank)} gave up", why)


def _failure(kind: str, rank: int, state: RankState, what: str, why: str = "") -> Failure:
    """What happened to the rank, when, and why."""
    when = f" at step {state.steps[-1].step}" if state.steps else " before its first step"
    traceback = state.failed.traceback if state.failed else ""
    return Failure(kind, what + when + (f": {why}" if why else ""), rank, tuple(state.tail), traceback)
