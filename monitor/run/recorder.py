"""One run and its folder: one spec, one event stream, one result.

runs/<id>/  spec.json  events.jsonl  metrics.csv  result.json  checkpoints/      runs/latest -> <id>
"""

import errno
import math
import os
import shutil
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from monitor.clock import CLOCK
from monitor.data import catalogue
from monitor.errors import Busy, RunFailed, UserError
from monitor.interrupt import Stop
from monitor.metrics.sampling import Row, missing, write_csv
from monitor.results import store
from monitor.results.parts import CheckpointEntry, DataInfo, ResumedFrom
from monitor.results.result import Result
from monitor.run import outcome, resume
from monitor.run.folder import make_folder, point
from monitor.run.injection import Record
from monitor.run.progress import Progress
from monitor.run.recovery import Recovery
from monitor.run.verdict import Failure
from monitor.runtime.base import Job, Runtime
from trainer import events
from trainer.checkpoint_folder import COMPLETE, FOLDER
from trainer.spec import RunSpec

TENSORBOARD = "tensorboard"  # the folder that ranks write event files into
REMOVED = "was removed while the run went on"


class Recorder:
    """Follows one run and writes its folder."""

    def __init__(
        self,
        place: Runtime,
        spec: RunSpec,
        prepared: catalogue.Prepared,
        runs: Path,
        say: Console,
        began: float,
        stop: Stop,
        source: resume.Source | None = None,
        restarts: int = 0,
    ):
        self.place, self.spec, self.say, self.began, self.source = place, spec, say, began, source
        self.folder = make_folder(runs, spec)
        self.job = Job(self.folder.name, spec, prepared.key, self.folder)
        self.names = [place.node_name(seat.node) for seat in self.job.seats]
        resumed_from = None
        if source:
            resumed_from = ResumedFrom(run=source.run_id, step=source.step)
            say.print(f"going on from step {source.step} of run {source.run_id}", highlight=False)
        self.result = outcome.begin(
            self.job.run_id,
            place.name,
            spec,
            DataInfo(label=prepared.label, key=prepared.key),
            limits=place.limits,
            links=place.links,
            faults=[Record(fault).told() for fault in place.faults],
            resumed_from=resumed_from,
        )
        self._begin(len(prepared.manifest["classes"]))
        self.evaluated: events.Evaluated | None = None
        self.warnings: list[str] = []
        self.checkpoints: list[tuple[events.Checkpoint, Future]] = []
        self._couriers = ThreadPoolExecutor(1)  # checkpoints are fetched beside the stream, in order
        self._heard = 0.0  # Unix seconds of the last event
        self._held: set[int] = set()  # ranks whose node is this run's
        begins = (source.folder, source.step) if source else (None, 0)
        self.recovery = Recovery(place, self.job, self._take, stop, restarts, self._fetched, begins)

    def _begin(self, classes: int) -> None:
        """Write what is known before the run, and take the room for its result. Raises RunFailed."""
        try:
            store.save(self.result, self.folder)
            store.reserve(self.folder, classes)
            (self.folder / "spec.json").write_text(self.spec.to_json() + "\n")
        except OSError as error:
            shutil.rmtree(self.folder, ignore_errors=True)
            why = error.strerror or error
            raise RunFailed(f"{self.folder} cannot be written: {why}; nothing was started") from None

    def follow(self) -> Result:
        """Run, then write what came of it, however it ended. Raises Busy when another run holds the nodes."""
        failure = None
        try:
            with (
                (self.folder / "events.jsonl").open("w") as self._log,
                Progress(self.say, self.names, self.spec.workers) as self._progress,
            ):
                if self.source:
                    self.place.push_checkpoint(self.job, self.source.folder)
                failure = self.recovery.run()
        except Busy:
            shutil.rmtree(self.folder)  # nothing ran
            raise
        except UserError as error:
            failure = Failure("engine", str(error))
        except OSError as error:
            failure = self._disk("", error)
        finally:
            self._release()
        return self._finish(failure, self._rows())

    def _disk(self, what: str, error: OSError) -> Failure:
        return Failure("disk", f"{self.folder}{what} cannot be written: {error.strerror or error}")

    def _take(self, event: events.Event) -> None:
        if os.fstat(self._log.fileno()).st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, REMOVED)
        event = replace(event, time=CLOCK.steady(event.time))
        self._heard = max(self._heard, event.time)
        self._log.write(events.to_line(event) + "\n")
        self._log.flush()
        match event:
            case events.Held():
                self._held.add(event.rank)
                if len(self._held) == len(self.names):
                    self._point_latest()
            case events.Step():
                self._check_disk()
            case events.Checkpoint():
                self.checkpoints.append((event, self._couriers.submit(self.place.fetch, self.job, event.path)))
            case events.Evaluated():
                self.evaluated = event
            case events.Warning():
                self.warnings.append(event.message)
            case events.Fault(error=str()):
                self.warnings.append(f"FAULT={event.fault}: {event.error}")
        self._progress.take(event)

    def _check_disk(self) -> None:
        """Raise OSError when a checkpoint found no room: the later ones of this run will do no better."""
        for checkpoint, future in self.checkpoints:
            if future.done() and isinstance(error := future.exception(), OSError):
                raise OSError(error.errno, f"checkpoint of step {checkpoint.step}: {error.strerror or error}")

    def _point_latest(self) -> None:
        """Make runs/latest this run."""
        with suppress(OSError):
            point(self.folder.parent / "latest", self.folder.name)

    def _rows(self) -> list[Row]:
        first = self.recovery.attempts[0]
        started = min((rank.started.time for rank in first.ranks if rank.started), default=None)
        if started is None:
            return []
        rows = self.place.rows(self.job, started, CLOCK.now(), self.warnings.append)
        for node, seconds in missing(rows, self.names, started, self._heard).items():
            self.warnings.append(f"{node}: metrics.csv has no rows for {seconds:g} s of the run; its figures lack them")
        # An agent shows an ended rank's figures for seconds: what a node shows before its own start is of another run.
        own: dict[str, float] = {}
        for attempt in self.recovery.attempts:
            for name, rank in zip(self.names, attempt.ranks, strict=True):
                if rank.started:
                    own[name] = min(own.get(name, math.inf), rank.started.time)
        none = {"training_step": None, "training_loss": None}
        return [row if row.time >= own.get(row.node, math.inf) else replace(row, **none) for row in rows]

    def _fetched(self) -> None:
        """Wait for the checkpoints that are on their way; remove one that was being written when the ranks ended."""
        wait([future for _, future in self.checkpoints])
        for folder in (self.folder / FOLDER).glob("step-*"):
            if not (folder / COMPLETE).exists():
                shutil.rmtree(folder, ignore_errors=True)

    def _release(self) -> None:
        self._fetched()
        self._couriers.shutdown()
        try:
            if self.spec.tensorboard and any(rank.steps for rank in self.recovery.ranks):
                self.place.fetch(self.job, TENSORBOARD)
        except (UserError, OSError) as error:
            self.warnings.append(f"TensorBoard's files could not be fetched: {error}")
        try:
            self.place.release(self.job)
        except (UserError, OSError) as error:
            self.warnings.append(f"the nodes could not be tidied: {error}")

    def _finish(self, failure: Failure | None, rows: list[Row]) -> Result:
        if not (self.folder / "spec.json").exists():
            shutil.rmtree(self.folder, ignore_errors=True)  # a rank may have made it again
            raise RunFailed(f"{self.folder} {REMOVED}: there is no result")
        self._point_latest()
        checkpoints = {}  # by step: one may have been done again
        for event, future in self.checkpoints:
            error = future.exception()
            if isinstance(error, OSError):
                failure = failure or self._disk(f", checkpoint of step {event.step},", error)
            elif error:
                self.warnings.append(f"the checkpoint of step {event.step} could not be fetched: {error}")
            else:
                checkpoints[event.step] = CheckpointEntry(
                    step=event.step, path=future.result(), bytes=event.bytes, seconds=event.seconds
                )
        try:
            write_csv(self.folder / "metrics.csv", rows)
        except OSError as error:
            (self.folder / "metrics.csv.part").unlink(missing_ok=True)
            failure = failure or self._disk("/metrics.csv", error)
        record = outcome.RunRecord(
            node_names=self.names,
            roles=[seat.role for seat in self.job.seats],
            ranks=self.recovery.ranks,
            first=self.recovery.first,
            restarts=self.recovery.restarts(),
            links=self.place.links,
            faults=self.recovery.injector.told(),
            failure=failure,
            evaluated=self.evaluated,
            checkpoints=[checkpoints[step] for step in sorted(checkpoints)],
            warnings=self.warnings,
            rows=rows,
            began=self.began,
            ended=CLOCK.now(),
        )
        result = outcome.complete(self.result, record)
        try:
            store.save(result, self.folder)
        except OSError as error:
            why = error.strerror or error
            raise RunFailed(
                f"{self.folder}: the result could not be written: {why}; earlier runs are untouched"
            ) from None
        return result
