"""One run from its settings: checked, placed on a runtime, given its data, and followed to its end."""

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from monitor.conditions import conditions, faults
from monitor.conditions.conditions import Conditions
from monitor.data import catalogue
from monitor.data.command import SETTINGS as DATA_SETTINGS
from monitor.errors import refuse_unknown
from monitor.interrupt import Stop
from monitor.results.result import Result
from monitor.run import recovery, resume
from monitor.run.recorder import Recorder
from monitor.runtime import choice
from monitor.runtime.base import Runtime
from trainer.registry import SYNCS
from trainer.spec import DEFAULT_BATCH, RunSpec, SpecError

NOT_IN_SPEC = {
    "RUNTIME": "docker or local; default: docker where a cluster is up",
    "PROJECT": "name of the cluster; default: syncbed",
    "DATA_DIR": "a folder that holds the data set in its public layout, in place of a download",
    "DATA_CACHE": DATA_SETTINGS["DATA_CACHE"],
    "RUNS_DIR": "folder of results; default: runs",
    "PAGES": "0: leave out report.html and report.md; default: 1",
    **conditions.SETTINGS,
    **recovery.SETTINGS,
    "RESUME": "go on from a run's last complete checkpoint: its id, latest, or a path; its settings are taken over",
}
SETTINGS = RunSpec.settings_help() | NOT_IN_SPEC


def run(settings: dict[str, str], say: Console, began: float, stop: Stop) -> Result:
    """Train once and return the result, which is in its folder by then. Raises UserError, RunFailed or SpecError."""
    refuse_unknown(settings, SETTINGS)
    runs = Path(settings.pop("RUNS_DIR", "runs"))
    cache = Path(settings.pop("DATA_CACHE", catalogue.CACHE))
    data_dir = catalogue.folder(settings)
    settings.pop("DATA_DIR", None)
    source = resume.find(settings.pop("RESUME"), runs) if "RESUME" in settings else None
    place = choice.choose(settings)
    asked = {name: settings.pop(name) for name in conditions.SETTINGS if name in settings}
    restarts = recovery.allowed(settings)
    settings.pop(recovery.SETTING, None)
    spec = source.spec_of(settings) if source else RunSpec.from_settings(with_nodes(settings, place))
    place.preflight(spec, Conditions.of(asked, spec, place.name))
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
        get = catalogue.prepare if "DATA" in settings else catalogue.default
        prepared = get(spec.data, seed=spec.seed, data_dir=data_dir, cache=cache, say=tell, shape=spec.shape)
        spec = replace(spec, data=prepared.manifest["name"])
    if spec.batch > prepared.manifest["train_samples"]:
        raise SpecError("BATCH", spec.batch, f"the training set has {prepared.manifest['train_samples']} images")
    last = spec.steps or (spec.epochs or 0) * (prepared.manifest["train_samples"] // spec.batch)
    faults.in_time(place.faults, source.step if source else 0, last)
    place.push_data(prepared.path)
    stop.running()
    recorder = Recorder(place, spec, prepared, runs, say, began, stop, source, restarts)
    recorder.warnings += warnings
    if url := place.watch(recorder.job.run_id):
        say.print(f"watch: {url}", highlight=False)
    return recorder.follow()


def with_nodes(settings: dict[str, str], place: Runtime) -> dict[str, str]:
    """The settings with NODES, the runtime's own number where none is named and the strategy takes more than one."""
    if "NODES" in settings or SYNCS.get(settings.get("SYNC"), SYNCS["ddp"]).one_node:
        return settings
    return settings | {"NODES": str(place.default_nodes)}
