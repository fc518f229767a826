"""`syncbed run`: one spec, one run, one event stream, one result.

runs/<id>/  spec.json  events.jsonl  metrics.csv  result.json  checkpoints/      runs/latest -> <id>
"""

import errno
import json
import os
import secrets
import shutil
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from rich.console import Console

from monitor import data, results, resume, runtime, summary
from monitor.conditions import SETTINGS, Conditions
from monitor.errors import BAD_INPUT, FAILED, Busy, RunFailed, UserError, refuse_unknown
from monitor.interrupt import Stop
from monitor.progress import Progress
from monitor.runtime.base import Job, Runtime
from monitor.sampling import Row, missing, write_csv
from monitor.supervise import Supervisor
from monitor.verdict import Failure
from trainer import events
from trainer.checkpoint_folder import COMPLETE, FOLDER
from trainer.registry import SYNCS
from trainer.spec import DEFAULT_BATCH, RunSpec, SpecError

TENSORBOARD = "tensorboard"  # the folder that ranks write event files into
REMOVED = "was removed while the run went on"

NOT_IN_SPEC = {
    "RUNTIME": "docker or local; default: docker where a cluster is up",
    "PROJECT": "name of the cluster; default: syncbed",
    "DATA_DIR": "a folder that holds the data set in its public layout, in place of a download",
    "DATA_CACHE": "folder of prepared data sets; default: data",
    "RUNS_DIR": "folder of results; default: runs",
    "PAGES": "0: leave out report.html and report.md; default: 1",
    **SETTINGS,
    "RESUME": "go on from a run's last complete checkpoint: its id, latest, or a path; its settings are taken over",
}


def command(settings: dict[str, str], args) -> int:
    """CLI `run`. 0: finished; 1: the run failed. Raises UserError or SpecError (exit 2) before anything was started."""
    began = time.time()
    stop = Stop().listen()
    say = summary.console(stderr=args.json)
    runs = Path(settings.get("RUNS_DIR", "runs"))
    pages = settings.get("PAGES", "1")
    if pages not in ("0", "1"):
        raise UserError(f"PAGES={pages}: 0 or 1")
    result = run({name: value for name, value in settings.items() if name != "PAGES"}, say, began, stop)
    stop.done()
    if args.json:
        print(json.dumps(result, indent=1))
    else:
        summary.show(result, say, warnings=False)  # which were told as they came
    say.print(f"result: {runs / result['id'] / 'result.json'}", highlight=False)
    if pages == "1":
        write_pages(runs / result["id"], say)
    if result["status"] == results.FINISHED:
        return 0
    return BAD_INPUT if result["error"]["kind"] == "input" else FAILED


def write_pages(folder: Path, say: Console) -> None:
    """Write the run's report and say where it is, or why there is none: the result stands without it."""
    from monitor.report.command import write  # it loads what plots need

    try:
        say.print(f"report: {write(folder)}", highlight=False)
    except Exception as error:
        say.print(f"warning: no report was written: {error}", style="yellow", highlight=False)


def run(settings: dict[str, str], say: Console, began: float, stop: Stop) -> dict:
    """Train once and return the result, which is in its folder by then. Raises UserError, RunFailed or SpecError."""
    refuse_unknown(settings, RunSpec.settings_help() | NOT_IN_SPEC)
    runs = Path(settings.pop("RUNS_DIR", "runs"))
    cache = Path(settings.pop("DATA_CACHE", data.CACHE))
    data_dir = data.folder(settings)
    settings.pop("DATA_DIR", None)
    source = resume.find(settings.pop("RESUME"), runs) if "RESUME" in settings else None
    place = runtime.choose(settings)
    asked = {name: settings.pop(name) for name in SETTINGS if name in settings}
    spec = source.spec_of(settings) if source else RunSpec.from_settings(with_nodes(settings, place))
    place.preflight(spec, Conditions.of(asked, spec.nodes, place.name))
    say.print(place.note(spec), highlight=False)
    if not source and "BATCH" not in settings and spec.batch != DEFAULT_BATCH:
        say.print(f"BATCH={spec.batch}: {DEFAULT_BATCH} does not divide over {spec.workers} workers", highlight=False)
    warnings = []

    def tell(line: str) -> None:
        say.print(line, markup=False, highlight=False)
        if line.startswith("warning: "):
            warnings.append(line.removeprefix("warning: "))

    if source:
        prepared = source.data(data_dir, cache, tell)
        source.check_length(spec, prepared.manifest["train_samples"])
    else:
        get = data.prepare if "DATA" in settings else data.default
        prepared = get(spec.data, seed=spec.seed, data_dir=data_dir, cache=cache, say=tell, shape=spec.shape)
        spec = replace(spec, data=prepared.manifest["name"])
    if spec.batch > prepared.manifest["train_samples"]:
        raise SpecError("BATCH", spec.batch, f"the training set has {prepared.manifest['train_samples']} images")
    place.push_data(prepared.path)
    stop.running()
    recorder = Recorder(place, spec, prepared, runs, say, began, stop, source)
    recorder.warnings += warnings
    if url := place.watch(recorder.job.run_id):
        say.print(f"watch: {url}", highlight=False)
    return recorder.follow()


def with_nodes(settings: dict[str, str], place: Runtime) -> dict[str, str]:
    """The settings with NODES, the runtime's own number where none is named and the strategy takes more than one."""
    if "NODES" in settings or SYNCS.get(settings.get("SYNC"), SYNCS["ddp"]).one_node:
        return settings
    return settings | {"NODES": str(place.default_nodes)}


class Recorder:
    """Follows one run and writes its folder."""

    def __init__(
        self,
        place: Runtime,
        spec: RunSpec,
        prepared: data.Prepared,
        runs: Path,
        say: Console,
        began: float,
        stop: Stop,
        source: resume.Source | None = None,
    ):
        self.place, self.spec, self.say, self.began, self.source = place, spec, say, began, source
        self.folder = make_folder(runs, spec)
        self.job = Job(self.folder.name, spec, prepared.key, self.folder)
        self.names = [place.node_name(seat.node) for seat in self.job.seats]
        about, before = {"label": prepared.label, "key": prepared.key}, None
        if source:
            before = {"run": source.run_id, "step": source.step}
            say.print(f"going on from step {source.step} of run {source.run_id}", highlight=False)
        conditions = {"limits": place.limits, "links": place.links}
        self.result = results.begin(self.job.run_id, place.name, spec, about, conditions, before)
        self._begin(len(prepared.manifest["classes"]))
        self.evaluated: events.Evaluated | None = None
        self.warnings: list[str] = []
        self.checkpoints: list[tuple[events.Checkpoint, Future]] = []
        self._couriers = ThreadPoolExecutor(1)  # checkpoints are fetched beside the stream, in order
        self._heard = 0.0  # Unix seconds of the last event
        self._held: set[int] = set()  # ranks whose node is this run's
        self.supervisor = Supervisor(place, self.job, self._take, stop)

    def _begin(self, classes: int) -> None:
        """Write what is known before the run, and take the room for its result. Raises RunFailed."""
        try:
            results.save(self.result, self.folder)
            results.reserve(self.folder, classes)
            (self.folder / "spec.json").write_text(self.spec.to_json() + "\n")
        except OSError as error:
            shutil.rmtree(self.folder, ignore_errors=True)
            why = error.strerror or error
            raise RunFailed(f"{self.folder} cannot be written: {why}; nothing was started") from None

    def follow(self) -> dict:
        """Run, then write what came of it, however it ended. Raises Busy when another run holds the nodes."""
        failure = None
        try:
            with (
                (self.folder / "events.jsonl").open("w") as self._log,
                Progress(self.say, self.names, self.spec.workers) as self._progress,
            ):
                if self.source:
                    self.place.push_checkpoint(self.job, self.source.folder)
                failure = self.supervisor.run()
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
        self._progress.take(event)

    def _check_disk(self) -> None:
        """Raise OSError when a checkpoint found no room: the later ones of this run will do no better."""
        for checkpoint, future in self.checkpoints:
            if future.done() and isinstance(error := future.exception(), OSError):
                raise OSError(error.errno, f"checkpoint of step {checkpoint.step}: {error.strerror or error}")

    def _point_latest(self) -> None:
        """Make runs/latest this run."""
        with suppress(OSError):
            _point(self.folder.parent / "latest", self.folder.name)

    def _rows(self) -> list[Row]:
        started = min((rank.started.time for rank in self.supervisor.ranks if rank.started), default=None)
        if started is None:
            return []
        rows = self.place.rows(self.job, started, time.time(), self.warnings.append)
        for node, seconds in missing(rows, self.names, started, self._heard).items():
            self.warnings.append(f"{node}: metrics.csv has no rows for {seconds:g} s of the run; its figures lack them")
        # The row before the start is there for the counters; its training figures are an earlier run's.
        none = {"training_step": None, "training_loss": None}
        return [row if row.time >= started else replace(row, **none) for row in rows]

    def _release(self) -> None:
        self._couriers.shutdown(wait=True)
        for folder in (self.folder / FOLDER).glob("step-*"):
            if not (folder / COMPLETE).exists():
                shutil.rmtree(folder, ignore_errors=True)  # being written when the run ended
        try:
            if self.spec.tensorboard and any(rank.steps for rank in self.supervisor.ranks):
                self.place.fetch(self.job, TENSORBOARD)
        except (UserError, OSError) as error:
            self.warnings.append(f"TensorBoard's files could not be fetched: {error}")
        try:
            self.place.release(self.job)
        except (UserError, OSError) as error:
            self.warnings.append(f"the nodes could not be tidied: {error}")

    def _finish(self, failure: Failure | None, rows: list[Row]) -> dict:
        if not (self.folder / "spec.json").exists():
            shutil.rmtree(self.folder, ignore_errors=True)  # a rank may have made it again
            raise RunFailed(f"{self.folder} {REMOVED}: there is no result")
        self._point_latest()
        kept = []
        for event, future in self.checkpoints:
            error = future.exception()
            if isinstance(error, OSError):
                failure = failure or self._disk(f", checkpoint of step {event.step},", error)
            elif error:
                self.warnings.append(f"the checkpoint of step {event.step} could not be fetched: {error}")
            else:
                kept.append(
                    {"step": event.step, "path": future.result(), "bytes": event.bytes, "seconds": event.seconds}
                )
        try:
            write_csv(self.folder / "metrics.csv", rows)
        except OSError as error:
            (self.folder / "metrics.csv.part").unlink(missing_ok=True)
            failure = failure or self._disk("/metrics.csv", error)
        result = results.complete(
            self.result | {"links": self.place.links},
            ranks=self.supervisor.ranks,
            node_names=self.names,
            roles=[seat.role for seat in self.job.seats],
            failure=failure,
            evaluated=self.evaluated,
            checkpoints=kept,
            warnings=self.warnings,
            rows=rows,
            began=self.began,
            ended=time.time(),
        )
        try:
            results.save(result, self.folder)
        except OSError as error:
            why = error.strerror or error
            raise RunFailed(
                f"{self.folder}: the result could not be written: {why}; earlier runs are untouched"
            ) from None
        return result


def make_folder(runs: Path, spec: RunSpec) -> Path:
    """A new folder named by the time in UTC, what runs, and a random part: nodes know a run by this name, and two
    orchestrators with different `runs` may use the same nodes. Raises UserError when `runs` cannot be written.
    """
    stamp = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
    folder = runs / f"{stamp}-{spec.sync}-{spec.model}-{spec.nodes}n-{secrets.token_hex(3)}"
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"RUNS_DIR={runs}: cannot be written ({error.strerror}); name another with RUNS_DIR=") from None
    return folder


def _point(link: Path, target: str) -> None:
    """Make `link` point to `target`, atomically."""
    part = link.with_name(f".{link.name}-{target}")
    try:
        part.symlink_to(target)
        part.replace(link)
    finally:
        part.unlink(missing_ok=True)
