"""`syncbed reproduce`: a preset's runs, its tables, and a verdict on each of its claims.

    make reproduce REPORT=r1 SCALE=quick          # monitor/experiments/presets/r1.toml, into sweeps/r1-quick/

The runs are a sweep: kill it anywhere, and the same command goes on.
"""

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console

from monitor import capabilities
from monitor import console as consoles
from monitor.data import catalogue
from monitor.engine import naming
from monitor.errors import UserError
from monitor.experiments import carry_out, claims, comparison, grouping, preset, publishing, sweep, sweep_command
from monitor.experiments.cells import Cell
from monitor.experiments.grouping import Group
from monitor.experiments.preset import Preset
from monitor.experiments.sweep import Sweep
from monitor.experiments.sweep_folder import has_sweep
from monitor.runtime import choice
from monitor.runtime.base import Runtime
from monitor.runtime.choice import Place
from trainer.registry import Shape

SETTINGS = sweep_command.SETTINGS | {
    "REPORT": "r1, r2, r3, r4 or r5, or the path of a preset of your own",
    "SCALE": "quick or full; default: quick",
    "REPEATS": "how often each run is made; default: the preset's",
    "DATA_DIR": "folders that hold data sets in their public layouts, parted by colons",
    "NAME": "name of the folder; default: the report's and the scale's",
    "SWEEPS_DIR": "folder of sweeps; default: sweeps",
}
# What is of the set of runs, and not of each run. REPEATS is of each: a preset may ask for fewer.
OF_THE_SET = ("REPORT", "SCALE", "KEEP", "NAME", "SWEEPS_DIR", "DATA_DIR")


NOT_THE_PRESETS = ("REPEATS", "PROJECT", "RUNTIME", "DATA_CACHE")  # words that change nothing of what a preset says


@dataclass(frozen=True)
class Reproduction:
    """A preset and what came of its runs. `groups`: by the name that claims use."""

    preset: Preset
    sweep: Sweep
    groups: dict[str, Group]
    verdicts: list[claims.Verdict]


def command(settings: dict[str, str], args) -> int:
    """CLI `reproduce`. 0: every run finished, whatever the verdicts. Raises UserError and SpecError."""
    sweep_command.check_settings(settings, SETTINGS)
    if "REPORT" not in settings:
        raise UserError("REPORT= is missing; as in REPORT=r1")
    report = preset.read(settings["REPORT"], settings.get("SCALE", "quick"))
    folder = sweep.folder_of({"NAME": f"{report.name}-{report.scale}"} | settings, {})
    sweep_settings = without(settings, ("NAME", "SWEEPS_DIR", "SCALE"))
    sweep_settings |= {"REPORT": report.name, "SCALE": report.scale, "preset's runs": report.digest}
    console = consoles.console(stderr=args.json)
    console.print(f"{report.name}: {report.title}", highlight=False)
    job = (
        sweep.load_matching(folder, sweep_settings)
        if has_sweep(folder)
        else plan(report, folder, sweep_settings, settings, console)
    )
    judge(report, job)  # a claim of runs that do not exist is found before they are made
    code = carry_out.carry_out(job, console)
    show(judge(report, job), console, args.json)
    return code


def without(settings: dict[str, str], names: Collection[str]) -> dict[str, str]:
    """The settings but for those of these names."""
    return {name: value for name, value in settings.items() if name not in names}


def show(reproduction: Reproduction, console: Console, as_json: bool) -> None:
    """The comparison and the verdicts, on screen or as JSON, and everything as a page."""
    from monitor.experiments.pages.preset_page import reproduced_page

    groups = list(reproduction.groups.values())
    if as_json:
        verdicts = [asdict(verdict) for verdict in reproduction.verdicts]
        report = {"report": reproduction.preset.name, "runs": comparison.records(groups), "claims": verdicts}
        print(json.dumps(report, indent=1))
    else:
        publishing.show(groups, console)
        for verdict in reproduction.verdicts:
            console.print(f"{verdict.verdict}: {verdict.claim}", style="bold", highlight=False)
            console.print(f"  {'; '.join(filter(None, (verdict.figures, verdict.reason)))}", highlight=False)
    publishing.publish(reproduction.sweep, reproduced_page(reproduction), console)


def plan(
    report: Preset, folder: Path, sweep_settings: dict[str, str], settings: dict[str, str], console: Console
) -> Sweep:
    """The sweep of a preset, on data that can be had. Raises UserError and SpecError before anything is started."""
    sweep_command.check_keep(settings)
    if "REPEATS" in settings:
        sweep_command.whole("REPEATS", settings["REPEATS"], sweep_command.MAX_REPEATS)
    words = without(settings, OF_THE_SET)
    runtime = choice.choose(Place.of(words))
    cells, left_out = report.cells(runtime, words)
    if not cells:
        raise UserError(f"REPORT={report.name}: nothing of it can be run here: {'; '.join(left_out)}")
    _check_size(report, cells, runtime, words)
    notes = [f"SCALE={report.scale}: {report.note}"]
    if changes := without(words, NOT_THE_PRESETS):
        text = " ".join(f"{name}={value}" for name, value in changes.items())
        notes.append(f"{text} in place of the preset's own: what it says of sizes and published figures does not hold")
    notes += [f"left out: {line}" for line in left_out]
    cells, substitutions = _with_data(cells, settings, console)
    return Sweep(folder, sweep_settings, cells, notes + substitutions)


def _check_size(report: Preset, cells: list[Cell], runtime: Runtime, words: dict[str, str]) -> None:
    """Raise UserError when the runtime has fewer nodes than a cell needs, and does not add them by itself."""
    largest = max(int(cell.words.get("NODES", 1)) for cell in cells)
    goal = runtime.capabilities.grows_with
    if goal is None or largest <= runtime.default_nodes:
        return
    larger = f"make {goal} NODES={largest}{naming.words(words.get('PROJECT', naming.DEFAULT_PROJECT))}"
    others = capabilities.runtimes_with(lambda other: other.grows_with is None)
    raise UserError(
        f"REPORT={report.name}: it needs NODES={largest}, the cluster has {runtime.default_nodes}; "
        f"`{larger}` or {others} would do"
    )


def _with_data(cells: list[Cell], settings: dict[str, str], console: Console) -> tuple[list[Cell], list[str]]:
    """The cells with data that can be had, and a note for each data set that another one stands in for."""
    folders = [Path(part).expanduser() for part in settings.get("DATA_DIR", "").split(":") if part]
    cache = Path(settings.get("DATA_CACHE", catalogue.CACHE))
    data: dict[tuple, dict[str, str]] = {}
    notes, placed = [], []
    for cell in cells:
        spec = cell.spec()
        key = spec.data, spec.shape, spec.seed
        if key not in data:
            data[key] = available(*key, folders, cache, console)
            if (name := data[key]["DATA"]) != spec.data:
                notes.append(
                    f"{spec.data} could not be had: {name} images are used instead; DATA_DIR= names its folder"
                )
        placed.append(replace(cell, words=cell.words | data[key]))
    return placed, notes


def available(name: str, shape: Shape, seed: int, folders: list[Path], cache: Path, console: Console) -> dict[str, str]:
    """The words with which runs have this data set: from one of the folders, a download, or else synthetic."""

    def say(line: str) -> None:
        console.print(line, highlight=False)

    problems = []
    for folder in folders:
        try:
            catalogue.prepare(name, seed=seed, data_dir=folder, cache=cache, say=say, shape=shape)
            return {"DATA": name, "DATA_DIR": str(folder)}
        except UserError as error:
            problems.append(str(error))
    if problems and len(folders) == 1 and not folders[0].is_dir():
        raise UserError(problems[0])
    prepared = catalogue.prepare(name, seed=seed, data_dir=None, cache=cache, say=say, shape=shape, or_synthetic=True)
    return {"DATA": prepared.manifest["name"]}


def judge(report: Preset, job: Sweep) -> Reproduction:
    """The preset's claims, judged on what has finished."""
    groups = {group.label: group for group in grouping.cell_groups(job)}
    for runs in report.file.runs:  # what was left out is there too, with nothing to show
        if not any(cell.group == runs.name for cell in job.cells):
            groups[runs.name] = Group(runs.name, (), ())
    verdicts = [claims.judge(claim, groups) for claim in report.claims]
    return Reproduction(report, job, groups, verdicts)
