"""RESTARTS=n: after a lost rank the run goes on by itself, on the same nodes, from its last complete checkpoint.

It stays one run with one folder. An attempt is what happens between two restarts; the steps that an attempt did beyond
the checkpoint are lost and done again. What counts: every step once, as it was done last (figures of steps, samples,
bytes); and all the time it took (seconds of training and total). What was lost stands in `restarts` of the result.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from monitor.clock import CLOCK
from monitor.errors import RunFailed, UserError
from monitor.interrupt import Stop
from monitor.results.parts import Restart
from monitor.run.attempts import Attempt, joined_ranks, lost_work
from monitor.run.injection import Injector
from monitor.run.rank_state import RankState
from monitor.run.supervise import Supervisor
from monitor.run.verdict import Failure
from monitor.runtime.base import Job, Runtime
from trainer import events
from trainer.checkpoint_folder import FOLDER, DamagedError, complete_ones, verify
from trainer.spec import SpecError

SETTING = "RESTARTS"
SETTINGS = {SETTING: "how often the run may go on by itself from its last checkpoint after a lost rank; default: 0"}
KINDS = {"killed", "frozen", "lost", "out_of_memory", "deadline", "peer"}  # of a Failure: a rank or its node was lost
NODE_SECONDS = 90.0  # how long a node that went away is waited for
MOST = 1000


def allowed(settings: Mapping[str, str]) -> int:
    """How many restarts were asked for. Raises SpecError."""
    text = settings.get(SETTING, "0")
    if not (text.isascii() and text.isdigit() and int(text) <= MOST):
        raise SpecError(SETTING, text, f"a whole number from 0 to {MOST}")
    return int(text)


@dataclass(frozen=True)
class Origin:
    """What an attempt goes on from: a checkpoint's folder and its step. None and 0: nothing."""

    folder: Path | None = None
    step: int = 0


@dataclass(frozen=True)
class RestartPolicy:
    """How often a run may restart, and from what."""

    restarts: int = 0

    origin: Origin = Origin()
    """What the run itself goes on from."""

    await_checkpoints: Callable[[], None] = lambda: None
    """Returns once every checkpoint that ranks have written is in the run's folder, or cannot be had."""


class Recovery:
    """Runs a job to its end, in as many attempts as it takes and is allowed."""

    def __init__(
        self,
        runtime: Runtime,
        job: Job,
        on_event: Callable[[events.Event], None],
        stop: Stop,
        policy: RestartPolicy,
    ):
        self.runtime, self.job, self.policy = runtime, job, policy
        self.injector = Injector(runtime, on_event)
        self.supervisor = Supervisor(runtime, job, on_event, stop, self.injector, policy.origin.step)
        self.attempts = [Attempt(policy.origin.step, CLOCK.now(), self.supervisor.ranks)]
        self.restart_events: list[events.Restart] = []

    def run(self) -> Failure | None:
        """As Supervisor.run, again after each lost rank. Raises what that raises in the first attempt."""
        failure = self.supervisor.run()
        while failure and self._may_restart(failure):
            self.supervisor.stop.running()
            try:
                self.policy.await_checkpoints()
                self.runtime.prepare_restart(self.job, NODE_SECONDS, lambda: self.supervisor.stop.is_requested)
                if self.supervisor.stop.is_requested:
                    break
                self._begin(failure)
                failure = self.supervisor.run()
            except (UserError, RunFailed) as error:
                failure = replace(failure, message=f"{failure.message}; not restarted: {error}")
                break
        self.supervisor.stop.writing()
        self.injector.close()
        if not (failure and failure.kind in KINDS and self.policy.restarts):
            return failure
        if len(self.restart_events) == self.policy.restarts:
            return replace(failure, message=f"{failure.message}; {SETTING}={self.policy.restarts} is used up")
        if self.supervisor.stop.is_requested:
            return Failure("interrupted", f"interrupted before it was restarted: {failure.message}")
        return failure

    def _may_restart(self, failure: Failure) -> bool:
        restarts_left = self.policy.restarts - len(self.restart_events)
        return failure.kind in KINDS and restarts_left > 0 and not self.supervisor.stop.is_requested

    def _begin(self, failure: Failure) -> None:
        """Say that the run is restarted, and from where; make the next attempt."""
        origin = self._newest()
        self.runtime.push_checkpoint(self.job, origin.folder)
        attempt, now = self.attempts[-1], CLOCK.now()
        times = [step.time for rank in attempt.ranks for step in rank.steps if step.step == origin.step]
        restart = events.Restart(
            rank=failure.rank or 0,
            time=now,
            attempt=len(self.restart_events) + 1,
            kind=failure.kind,
            message=failure.message,
            from_step=origin.step,
            lost_steps=attempt.last - origin.step,
            lost_seconds=now - (max(times) if times else attempt.first_step or attempt.began),
        )
        self.restart_events.append(restart)
        on_event, stop = self.supervisor.on_event, self.supervisor.stop
        on_event(restart)
        self.supervisor = Supervisor(self.runtime, self.job, on_event, stop, self.injector, origin.step)
        self.attempts.append(Attempt(origin.step, now, self.supervisor.ranks))

    def _newest(self) -> Origin:
        """The last checkpoint of this run that every worker can go on from, else what the run itself began with."""
        for folder in reversed(complete_ones(self.job.run_folder / FOLDER)):
            with suppress(DamagedError):
                checkpoint = verify(folder)
                if checkpoint.world_size == self.job.spec.workers:  # else it is of rank 0 alone
                    return Origin(folder, checkpoint.step)
        return self.policy.origin

    @property
    def ranks(self) -> list[RankState]:
        """What is known of each rank over all attempts, of what counts: each step and score once."""
        return joined_ranks(self.attempts)

    @property
    def first(self) -> Attempt:
        """The attempt that came as far as a step, or the last."""
        return next((attempt for attempt in self.attempts if attempt.first_step is not None), self.attempts[-1])

    def restarts(self) -> list[Restart]:
        """What result.json says of each."""
        facts = []
        # One whose attempt did not come to be is not among them.
        for restart, attempt in zip(self.restart_events, self.attempts[1:], strict=False):
            steps = lost_work(self.attempts[: restart.attempt], restart)
            facts.append(
                Restart(
                    attempt=restart.attempt,
                    kind=restart.kind,
                    message=restart.message,
                    from_step=restart.from_step,
                    lost_steps=restart.lost_steps,
                    lost_samples=sum(step.samples for step in steps),
                    lost_sent_bytes=sum(step.sent_bytes for step in steps),
                    lost_seconds=restart.lost_seconds,
                    startup_seconds=None if attempt.first_step is None else attempt.first_step - attempt.began,
                )
            )
        return facts
