"""Which ranks are in trouble, which of them the strategy goes on without, and when the run cannot go on.

A rank that dies takes the others' collectives with it, so the first to complain is seldom the culprit. All evidence is
gathered for a moment before the run ends.
"""

from collections.abc import Callable, Sequence

from monitor.run.rank_state import RankState
from monitor.run.verdict import OWN_KINDS, only_blame
from monitor.runtime.base import Job
from trainer import events
from trainer.layout import WORKER
from trainer.registry import SYNCS

# Until a rank is ready: a Python has to start, and importing torch keeps the heartbeat waiting (2.5 s on a tenth of a
# core; a cold disk takes longer).
STARTUP_SILENCE_SECONDS = 25.0
LEAST_SILENCE_SECONDS = 3 * events.HEARTBEAT_SECONDS
EVIDENCE_SECONDS = 2.0  # how long the other ranks may still speak after the first sign of trouble
BLAME_SECONDS = 6.0  # the same, while nothing is known but that ranks blame each other


class Casualties:
    """The ranks of one attempt that are lost. All times are monotonic seconds."""

    def __init__(
        self,
        job: Job,
        ranks: Sequence[RankState],
        name: Callable[[int], str],
        on_event: Callable[[events.Event], None],
    ):
        self._ranks, self._name, self._on_event = ranks, name, on_event
        self._seats = job.seats
        self._survives = SYNCS[job.spec.sync].survives_lost_workers
        self._silence = max(LEAST_SILENCE_SECONDS, job.spec.deadline_seconds / 2)
        self._trouble_since: float | None = None

    def forget(self, now: float) -> None:
        """This process was stopped itself, and knows nobody's silence: begin anew."""
        self._trouble_since = None
        for state in self._ranks:
            state.last_sign, state.silence = now, 0.0

    def end_the_run(self, now: float) -> bool:
        """Write off the ranks that the strategy goes on without.

        Returns whether the run must end: others are in trouble, and had time to show the cause.
        """
        self._mark_silent(now)
        fatal = [rank for rank in self._in_trouble() if not self._go_on_without(rank)]
        if not fatal:
            self._trouble_since = None
            return False
        self._trouble_since = self._trouble_since or now
        suspects = self._suspects()
        patience = BLAME_SECONDS if only_blame(self._ranks) or suspects else EVIDENCE_SECONDS
        if now - self._trouble_since <= patience:
            return False
        if not self._go_on_without_the_cut_off(suspects, self._trouble_since):
            return True
        self._trouble_since = None
        return False

    def settle(self) -> None:
        """All ranks have ended. Write off those that only blamed ranks that went on."""
        if self._trouble_since is not None:
            self._go_on_without_the_cut_off(self._suspects(), self._trouble_since)

    def _mark_silent(self, now: float) -> None:
        for state in self._ranks:
            limit = self._silence if state.ready else max(self._silence, STARTUP_SILENCE_SECONDS)
            if state.handle and not state.ended and not state.exited and now - state.last_sign > limit:
                state.silence = limit

    def _in_trouble(self) -> list[int]:
        return [rank for rank, state in enumerate(self._ranks) if not state.lost_reason and state.in_trouble]

    def _go_on_without(self, rank: int) -> bool:
        """Write a rank off, where the strategy goes on without it. Returns whether that is so.

        One that blames another rank is not lost itself, unless it turns out to be cut off: then something is wrong with
        the run.
        """
        state = self._ranks[rank]
        if not self._is_expendable(rank) or (state.failed and state.failed.kind not in OWN_KINDS):
            return False
        if state.failed and not state.exited and not state.ended:
            return True  # it is about to exit
        self._write_off(rank, state.end())
        return True

    def _is_expendable(self, rank: int) -> bool:
        """Whether the strategy can go on without it: a worker that is training, and not rank 0, whose process holds the
        others' store.
        """
        state = self._ranks[rank]
        training = bool(state.steps) and not state.trained
        return self._survives and self._seats[rank].role == WORKER and rank != 0 and training

    def _suspects(self) -> dict[int, int]:
        """If all ranks in trouble are expendable, and blame only others that are in none: each, and whom it blames.

        Those may have lost their network: then the ones that they blame live on.
        """
        suspects: dict[int, int] = {}
        troubled = self._in_trouble()
        for rank in troubled:
            failed = self._ranks[rank].failed
            if failed is None or failed.suspect_rank is None or not self._is_expendable(rank):
                return {}
            suspects[rank] = failed.suspect_rank
        return {} if set(suspects.values()) & set(troubled) else suspects

    def _go_on_without_the_cut_off(self, suspects: dict[int, int], since: float) -> bool:
        """Write them off, where there are any and whom they blame lives. Returns whether that is so."""
        if not suspects or not all(self._lives(suspect, since) for suspect in suspects.values()):
            return False
        for rank, suspect in suspects.items():
            self._write_off(rank, f"is cut off from {self._name(suspect)}")
        return True

    def _lives(self, rank: int, since: float) -> bool:
        """Whether it did all it had to, or has shown a sign of life long enough after that moment."""
        state = self._ranks[rank]
        return not state.lost_reason and bool(state.finished or state.last_sign - since > BLAME_SECONDS / 4)

    def _write_off(self, rank: int, why: str) -> None:
        """The run goes on without it."""
        state = self._ranks[rank]
        state.lost_reason = why
        if not state.ended and state.handle:
            state.stopped = True
            state.handle.signal("KILL")  # should it come back to life, the others would not know it any more
        message = f"{self._name(rank)} {why} at step {state.steps[-1].step}; the others go on without it"
        self._on_event(events.Warning(rank=rank, message=message))
