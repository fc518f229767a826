"""RESTARTS=n: after a lost rank the run goes on by itself, on the same nodes, from its last complete checkpoint.

It stays one run with one folder. An attempt is what happens between two restarts; the steps that an attempt did beyond
the checkpoint are lost and done again. What counts: every step once, as it was done last (figures of steps, samples,
bytes); and all the time it took (seconds of training and total). What was lost stands in `restarts` of the result.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from monitor.clock import CLOCK
from monitor.errors import RunFailed, UserError
from monitor.interrupt import Stop
from monitor.results.parts import Restart
from monitor.run.injection import Injector
from monitor.run.supervise import Supervisor
from monitor.run.verdict import Failure, RankState
from monitor.runtime.base import Job, Runtime
from trainer import events
from trainer.checkpoint_folder import FOLDER, DamagedError, complete_ones, verify
from trainer.spec import SpecError

SETTING = "RESTARTS"
SETTINGS = {SETTING: "how often the run may go on by itself from its last checkpoint after a lost rank; default: 0"}
KINDS = {"killed", "frozen", "lost", "out_of_memory", "deadline", "peer"}  # of a Failure: a rank or its node was lost
NODE_SECONDS = 90.0  # how long a node that went away is waited for
MOST = 1000


def allowed(settings: dict[str, str]) -> int:
    """How many restarts were asked for. Raises SpecError."""
    text = settings.get(SETTING, "0")
    if not (text.isascii() and text.isdigit() and int(text) <= MOST):
        raise SpecError(SETTING, text, f"a whole number from 0 to {MOST}")
    return int(text)


@dataclass(frozen=True)
class Attempt:
    """`base`: the step it went on from. `began`: Unix seconds. `ranks`: all that is known of each."""

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


class Recovery:
    """Runs a job to its end, in as many attempts as it takes and is allowed.

    `source`: the checkpoint that the run itself goes on from, and its step. `fetched` returns once every checkpoint
    that was told is in the run's folder, or cannot be had.
    """

    def __init__(
        self,
        place: Runtime,
        job: Job,
        on_event: Callable[[events.Event], None],
        stop: Stop,
        restarts: int,
        fetched: Callable[[], None],
        source: tuple[Path | None, int] = (None, 0),
    ):
        self.place, self.job, self.fetched, self.source, self.allowed = place, job, fetched, source, restarts
        self.injector = Injector(place, on_event)
        self.supervisor = Supervisor(place, job, on_event, stop, self.injector, source[1])
        self.attempts = [Attempt(source[1], CLOCK.now(), self.supervisor.ranks)]
        self.told: list[events.Restart] = []

    def run(self) -> Failure | None:
        """As Supervisor.run, again after each lost rank. Raises what that raises in the first attempt."""
        failure = self.supervisor.run()
        while failure and failure.kind in KINDS and len(self.told) < self.allowed and not self.supervisor.stop.asked:
            self.supervisor.stop.running()
            try:
                self.fetched()
                self.place.again(self.job, NODE_SECONDS, lambda: self.supervisor.stop.asked)
                if self.supervisor.stop.asked:
                    break
                self._begin(failure)
                failure = self.supervisor.run()
            except (UserError, RunFailed) as error:
                failure = replace(failure, message=f"{failure.message}; not restarted: {error}")
                break
        self.supervisor.stop.writing()
        self.injector.close()
        if not (failure and failure.kind in KINDS and self.allowed):
            return failure
        if len(self.told) == self.allowed:
            return replace(failure, message=f"{failure.message}; {SETTING}={self.allowed} is used up")
        if self.supervisor.stop.asked:
            return Failure("interrupted", f"interrupted before it was restarted: {failure.message}")
        return failure

    def _begin(self, failure: Failure) -> None:
        """Say that the run is restarted, and from where; make the next attempt."""
        folder, step = self._newest()
        self.place.push_checkpoint(self.job, folder)
        lost, now = self.attempts[-1], CLOCK.now()
        done = [s.time for rank in lost.ranks for s in rank.steps if s.step == step]
        restart = events.Restart(
            rank=failure.rank or 0,
            time=now,
            attempt=len(self.told) + 1,
            kind=failure.kind,
            message=failure.message,
            from_step=step,
            lost_steps=lost.last - step,
            lost_seconds=now - (max(done) if done else lost.first_step or lost.began),
        )
        self.told.append(restart)
        before = self.supervisor
        before.on_event(restart)
        self.supervisor = Supervisor(self.place, self.job, before.on_event, before.stop, self.injector, step)
        self.attempts.append(Attempt(step, now, self.supervisor.ranks))

    def _newest(self) -> tuple[Path | None, int]:
        """The last checkpoint of this run that every worker can go on from, else what the run itself began with."""
        for folder in reversed(complete_ones(self.job.run_folder / FOLDER)):
            with suppress(DamagedError):
                said = verify(folder)
                if said.world_size == self.job.spec.workers:  # else it is of rank 0 alone
                    return folder, said.step
        return self.source

    @property
    def ranks(self) -> list[RankState]:
        """What is known of each rank over all attempts, of what counts: each step and score once."""
        bases = [attempt.base for attempt in self.attempts]
        kept = [(a.ranks, min(bases[i + 1 :], default=None)) for i, a in enumerate(self.attempts)]
        joined = [
            replace(
                state,
                steps=[s for ranks, end in kept for s in _until(ranks[rank].steps, end)],
                evaluations=[e for ranks, end in kept for e in _until(ranks[rank].evaluations, end)],
                ready=next((ranks[rank].ready for ranks, _ in reversed(kept) if ranks[rank].ready), None),
            )
            for rank, state in enumerate(self.attempts[-1].ranks)
        ]
        before = [s for ranks, end in kept[:-1] for state in ranks for s in _until(state.steps, end)]
        servers = [state for state in joined if state.served]
        both = [sum(getattr(state.served, name) for state in servers) or 1 for name in ("sent_bytes", "received_bytes")]
        for state in servers:  # each tells at the very end, of the last attempt; what was before it, the workers know
            own = state.served
            state.served = replace(
                own,
                updates=own.updates + len({step.step for step in before}),
                sent_bytes=own.sent_bytes + sum(s.received_bytes for s in before) * own.sent_bytes // both[0],
                received_bytes=own.received_bytes + sum(s.sent_bytes for s in before) * own.received_bytes // both[1],
            )
        return joined

    @property
    def first(self) -> Attempt:
        """The attempt that came as far as a step, or the last."""
        return next((attempt for attempt in self.attempts if attempt.first_step is not None), self.attempts[-1])

    def restarts(self) -> list[Restart]:
        """What result.json says of each."""
        told, bases = [], [attempt.base for attempt in self.attempts]
        for n, (restart, following) in enumerate(zip(self.told, self.attempts[1:], strict=False), 1):
            counted = [(a.ranks, min(bases[i + 1 : n], default=None)) for i, a in enumerate(self.attempts[:n])]
            before = [s for ranks, end in counted for rank in ranks for s in _until(rank.steps, end)]
            redone = [step for step in before if step.step > restart.from_step]  # an earlier attempt's as well
            begun = following.first_step
            told.append(
                Restart(
                    attempt=restart.attempt,
                    kind=restart.kind,
                    message=restart.message,
                    from_step=restart.from_step,
                    lost_steps=restart.lost_steps,
                    lost_samples=sum(step.samples for step in redone),
                    lost_sent_bytes=sum(step.sent_bytes for step in redone),
                    lost_seconds=restart.lost_seconds,
                    startup_seconds=None if begun is None else begun - following.began,
                )
            )
        return told


def _until(items: Iterable, end: int | None) -> list:
    """Steps or scores up to and with step `end`; all where that is None."""
    return [item for item in items if end is None or item.step <= end]
