"""The attempts of a run that was restarted, joined: each step counts once, as it was done last."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from monitor.run.rank_state import RankState
from trainer import events

Scored = TypeVar("Scored", events.Step, events.Monitored)


@dataclass(frozen=True)
class Attempt:
    """What happened between two restarts. `base`: the step it went on from. `began`: Unix seconds."""

    base: int
    began: float
    ranks: Sequence[RankState]

    @property
    def first_step(self) -> float | None:
        """Unix seconds at which its first step began; None for none."""
        return min((rank.steps[0].time - rank.steps[0].step_seconds for rank in self.ranks if rank.steps), default=None)

    @property
    def last(self) -> int:
        """The last step that any of its ranks did."""
        return max((rank.steps[-1].step for rank in self.ranks if rank.steps), default=self.base)


def joined_ranks(attempts: Sequence[Attempt]) -> list[RankState]:
    """What is known of each rank over all attempts, of what counts: each step and score once."""
    parts = list(_counting(attempts))
    ranks = []
    for rank, state in enumerate(attempts[-1].ranks):
        states = [(attempt.ranks[rank], end) for attempt, end in parts]
        ranks.append(
            replace(
                state,
                steps=[step for part, end in states for step in _until(part.steps, end)],
                evaluations=[score for part, end in states for score in _until(part.evaluations, end)],
                ready=next((part.ready for part, _ in reversed(states) if part.ready), None),
            )
        )
    earlier = [step for attempt, end in parts[:-1] for rank in attempt.ranks for step in _until(rank.steps, end)]
    _add_to_servers(ranks, earlier)
    return ranks


def lost_work(attempts: Sequence[Attempt], restart: events.Restart) -> list[events.Step]:
    """The steps that this restart made be done again, an earlier attempt's as well. `attempts`: those before it."""
    steps = [step for a, end in _counting(attempts) for rank in a.ranks for step in _until(rank.steps, end)]
    return [step for step in steps if step.step > restart.from_step]


def _counting(attempts: Sequence[Attempt]) -> Iterator[tuple[Attempt, int | None]]:
    """Each attempt, and the last of its steps that counts; None: all do."""
    for number, attempt in enumerate(attempts, 1):
        yield attempt, min((later.base for later in attempts[number:]), default=None)


def _add_to_servers(ranks: Sequence[RankState], earlier: Sequence[events.Step]) -> None:
    """Add what earlier attempts did to the figures of servers, which tell at the very end, of the last attempt alone.

    What was before it, the workers know: `earlier`. Of several servers each has its share.
    """
    reports = [state.served for state in ranks if state.served]
    sent = sum(served.sent_bytes for served in reports) or 1
    received = sum(served.received_bytes for served in reports) or 1
    for state in ranks:
        if served := state.served:
            state.served = replace(
                served,
                updates=served.updates + len({step.step for step in earlier}),
                sent_bytes=served.sent_bytes + sum(step.received_bytes for step in earlier) * served.sent_bytes // sent,
                received_bytes=served.received_bytes
                + sum(step.sent_bytes for step in earlier) * served.received_bytes // received,
            )


def _until(items: Iterable[Scored], end: int | None) -> list[Scored]:
    """Steps or scores up to and with step `end`; all where that is None."""
    return [item for item in items if end is None or item.step <= end]
