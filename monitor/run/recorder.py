"""One run and its folder: one spec, one event stream, one result.

runs/<id>/  spec.json  events.jsonl  metrics.csv  result.json  checkpoints/      runs/latest -> <id>
"""

import errno
import math
import os
from contextlib import suppress
from dataclasses import replace
from io import TextIOWrapper

from rich.console import Console

from monitor.clock import CLOCK
from monitor.errors import Busy, RunFailed, UserError
from monitor.interrupt import Stop
from monitor.metrics.sampling import Row, missing, write_csv
from monitor.results import store
from monitor.results.parts import CheckpointEntry, DataInfo, ResumedFrom
from monitor.results.result import Result
from monitor.run import outcome
from monitor.run.checkpoints import CheckpointFetcher
from monitor.run.folder import make_folder
from monitor.run.injection import Injection
from monitor.run.plan import Plan
from monitor.run.progress import Progress
from monitor.run.recovery import Origin, Recovery, RestartPolicy
from monitor.run.verdict import Failure
from monitor.runtime.base import Job, Runtime
from monitor.watch.facts import Facts, facts_of
from trainer import events
from trainer.files import new_file, remove_folder, replace_link, write_whole

TENSORBOARD = "tensorboard"  # the folder that ranks write event files into
REMOVED = "was removed while the run went on"


class Recorder:
    """Follows one run and writes its folder. `began`: Unix seconds of the command."""

    def __init__(self, runtime: Runtime, plan: Plan, console: Console, began: float, stop: Stop):
        self.runtime, self.plan, self.spec, self.console, self.began = runtime, plan, plan.spec, console, began
        self.folder = make_folder(plan.runs, plan.spec)
        self.job = Job(self.folder.name, plan.spec, plan.prepared.key, self.folder)
        self.node_names = [runtime.node_name(seat.node) for seat in self.job.seats]
        self.result = self._first_result()
        self._begin(len(plan.prepared.manifest["classes"]))
        self.warnings: list[str] = list(plan.warnings)
        self.evaluated: events.Evaluated | None = None
        self.checkpoints = CheckpointFetcher(runtime, self.job)
        self._last_event = 0.0  # Unix seconds
        self._holding: set[int] = set()  # ranks whose node is this run's
        origin = Origin(plan.source.folder, plan.source.step) if plan.source else Origin()
        policy = RestartPolicy(plan.restarts, origin, self.checkpoints.wait)
        self.recovery = Recovery(runtime, self.job, self._take, stop, policy)

    def _first_result(self) -> Result:
        """What `runs` shows of it from now on, should the orchestrator be killed."""
        source, resumed_from = self.plan.source, None
        if source:
            resumed_from = ResumedFrom(run=source.run_id, step=source.step)
            self.console.print(f"going on from step {source.step} of run {source.run_id}", highlight=False)
        return outcome.begin(
            self.job.run_id,
            self.runtime.name,
            self.spec,
            DataInfo(label=self.plan.prepared.label, key=self.plan.prepared.key),
            limits=self.runtime.limits,
            links=self.runtime.links,
            faults=[Injection(fault).facts() for fault in self.runtime.faults],
            resumed_from=resumed_from,
        )

    def _begin(self, classes: int) -> None:
        """Write what is known before the run, and take the room for its result. Raises RunFailed."""
        try:
            store.save(self.result, self.folder)
            store.reserve(self.folder, classes)
            write_whole(self.folder / "spec.json", self.spec.to_json() + "\n")
        except OSError as error:
            remove_folder(self.folder, may_stay=True)
            why = error.strerror or error
            raise RunFailed(f"{self.folder} cannot be written: {why}; nothing was started") from None

    def page_facts(self) -> Facts:
        """What the live page begins with. Raises OSError."""
        return facts_of(self.folder, self.spec, self.plan.prepared.label, self.runtime)

    def follow(self) -> Result:
        """Run, then write what came of it, however it ended. Raises Busy when another run holds the nodes."""
        failure = None
        try:
            with (
                TextIOWrapper(new_file(self.folder / "events.jsonl"), encoding="utf-8") as self._log,
                Progress(self.console, self.node_names, self.spec.workers) as self._progress,
            ):
                if self.plan.source:
                    self.runtime.push_checkpoint(self.job, self.plan.source.folder)
                failure = self.recovery.run()
        except Busy:
            if any(rank.started or rank.steps for rank in self.recovery.ranks):
                raise  # something ran: its events stay
            remove_folder(self.folder)
            raise
        except UserError as error:
            failure = Failure("engine", str(error))
        except OSError as error:
            failure = self._disk_failure("", error)
        finally:
            self._release()
        return self._finish(failure, self._rows())

    def _disk_failure(self, what: str, error: OSError) -> Failure:
        return Failure("disk", f"{self.folder}{what} cannot be written: {error.strerror or error}")

    def _take(self, event: events.Event) -> None:
        """Write the event down and act on it. Raises OSError."""
        if os.fstat(self._log.fileno()).st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, REMOVED)
        event = replace(event, time=CLOCK.steady(event.time))
        self._last_event = max(self._last_event, event.time)
        self._log.write(events.to_line(event) + "\n")
        self._log.flush()
        match event:
            case events.Held():
                self._holding.add(event.rank)
                if len(self._holding) == len(self.node_names):
                    self._point_latest()
            case events.Step():
                self.checkpoints.check_disk()
            case events.Checkpoint():
                self.checkpoints.fetch(event)
            case events.Evaluated():
                self.evaluated = event
            case events.Warning():
                self.warnings.append(event.message)
            case events.Fault(error=str()):
                self.warnings.append(f"FAULT={event.fault}: {event.error}")
        self._progress.take(event)

    def _point_latest(self) -> None:
        """Make runs/latest this run."""
        with suppress(OSError):
            replace_link(self.folder.parent / "latest", self.folder.name)

    def _rows(self) -> list[Row]:
        """CPU, memory and network of its nodes from the start of the first rank on. Warns of what is missing."""
        first = self.recovery.attempts[0]
        started = min((rank.started.time for rank in first.ranks if rank.started), default=None)
        if started is None:
            return []
        rows = self.runtime.rows(self.job, started, CLOCK.now(), self.warnings.append)
        for node, seconds in missing(rows, self.node_names, started, self._last_event).items():
            self.warnings.append(f"{node}: metrics.csv has no rows for {seconds:g} s of the run; its figures lack them")
        return self._without_figures_of_earlier_runs(rows)

    def _without_figures_of_earlier_runs(self, rows: list[Row]) -> list[Row]:
        """An agent shows the training figures of a rank that has ended for some seconds more: those that a node shows
        before its own start are of another run.
        """
        starts: dict[str, float] = {}
        for attempt in self.recovery.attempts:
            for node, rank in zip(self.node_names, attempt.ranks, strict=True):
                if rank.started:
                    starts[node] = min(starts.get(node, math.inf), rank.started.time)
        return [
            row if row.time >= starts.get(row.node, math.inf) else replace(row, training_step=None, training_loss=None)
            for row in rows
        ]

    def _release(self) -> None:
        """Fetch what is left and let go of the nodes."""
        self.checkpoints.close()
        try:
            if self.spec.tensorboard and any(rank.steps for rank in self.recovery.ranks):
                self.runtime.fetch(self.job, TENSORBOARD)
        except (UserError, OSError) as error:
            self.warnings.append(f"TensorBoard's files could not be fetched: {error}")
        try:
            self.runtime.release(self.job)
        except (UserError, OSError) as error:
            self.warnings.append(f"the nodes could not be tidied: {error}")

    def _finish(self, failure: Failure | None, rows: list[Row]) -> Result:
        """Write metrics.csv and the result. Raises RunFailed when that cannot be done."""
        if not (self.folder / "spec.json").exists():
            remove_folder(self.folder, may_stay=True)  # a rank may have made it again
            raise RunFailed(f"{self.folder} {REMOVED}: there is no result")
        self._point_latest()
        checkpoints, disk_error = self.checkpoints.facts(self.warnings.append)
        if disk_error:
            step, error = disk_error
            failure = failure or self._disk_failure(f", checkpoint of step {step},", error)
        try:
            write_csv(self.folder / "metrics.csv", rows)
        except OSError as error:
            failure = failure or self._disk_failure("/metrics.csv", error)
        result = self._last_result(failure, checkpoints, rows)
        try:
            store.save(result, self.folder)
        except OSError as error:
            why = error.strerror or error
            raise RunFailed(
                f"{self.folder}: the result could not be written: {why}; earlier runs are untouched"
            ) from None
        return result

    def _last_result(self, failure: Failure | None, checkpoints: list[CheckpointEntry], rows: list[Row]) -> Result:
        record = outcome.RunRecord(
            node_names=self.node_names,
            roles=[seat.role for seat in self.job.seats],
            ranks=self.recovery.ranks,
            first=self.recovery.first,
            restarts=self.recovery.restarts(),
            links=self.runtime.links,
            faults=self.recovery.injector.facts(),
            failure=failure,
            evaluated=self.evaluated,
            checkpoints=checkpoints,
            warnings=self.warnings,
            rows=rows,
            began=self.began,
            ended=CLOCK.now(),
        )
        return outcome.complete(self.result, record)
