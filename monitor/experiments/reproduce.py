"""`syncbed reproduce`: a preset's runs, its tables, and a verdict on each of its claims.

    make reproduce REPORT=r1 SCALE=quick          # monitor/presets/r1.toml, into sweeps/r1-quick/

The runs are a sweep: kill it anywhere, and the same command goes on.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from monitor import console
from monitor.data import catalogue
from monitor.engine import naming
from monitor.errors import UserError
from monitor.experiments import carry_out, claims, comparison, grouping, preset, publishing, sweep, sweep_command
from monitor.experiments.cells import Cell
from monitor.experiments.grouping import Group
from monitor.experiments.preset import Preset
from monitor.experiments.sweep import Sweep
from monitor.experiments.sweep_folder import begun
from monitor.run import request
from trainer.spec import RunSpec

SETTINGS = sweep_command.SETTINGS | {
    "REPORT": "r1, r2, r3, r4 or r5, or the path of a preset of your own",
    "SCALE": "quick or full; default: quick",
    "REPEATS": "how often each run is made; default: the preset's",
    "DATA_DIR": "folders that hold data sets in their public layouts, parted by colons",
    "NAME": "name of the folder; default: the report's and the scale's",
    "SWEEPS_DIR": "folder of sweeps; default: sweeps",
}


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
    sweep_command.known(settings, SETTINGS)
    words = dict(settings)
    if "REPORT" not in words:
        raise UserError("REPORT= is missing; as in REPORT=r1")
    chosen = preset.read(words.pop("REPORT"), words.pop("SCALE", "quick"))
    folder = sweep.named({"NAME": f"{chosen.name}-{chosen.scale}"} | settings, {})
    asked = {n: v for n, v in settings.items() if n not in ("NAME", "SWEEPS_DIR", "SCALE")}
    asked |= {"REPORT": chosen.name, "SCALE": chosen.scale, "preset's runs": chosen.digest}
    say = console.console(stderr=args.json)
    say.print(f"{chosen.name}: {chosen.title}", highlight=False)
    job = sweep.goes_on(folder, asked) if begun(folder) else plan(chosen, folder, asked, words, say)
    judged(chosen, job)  # a claim of runs that do not exist is found before they are made
    code = carry_out.carry_out(job, say)
    show(judged(chosen, job), say, args.json)
    return code


def show(reproduction: Reproduction, say, as_json: bool) -> None:
    """The comparison and the verdicts, on screen or as JSON, and everything as a page."""
    from monitor.experiments.pages.preset_page import reproduced_page

    groups = list(reproduction.groups.values())
    if as_json:
        verdicts = [asdict(verdict) for verdict in reproduction.verdicts]
        print(
            json.dumps(
                {"report": reproduction.preset.name, "runs": comparison.records(groups), "claims": verdicts}, indent=1
            )
        )
    else:
        publishing.show(groups, say)
        for verdict in reproduction.verdicts:
            say.print(f"{verdict.verdict}: {verdict.claim}", style="bold", highlight=False)
            say.print(f"  {'; '.join(filter(None, (verdict.figures, verdict.reason)))}", highlight=False)
    publishing.publish(reproduction.sweep, reproduced_page(reproduction), say)


def plan(chosen: Preset, folder: Path, asked: dict[str, str], words: dict[str, str], say) -> Sweep:
    """The sweep of a preset, on data that can be had. Raises UserError and SpecError before anything is started."""
    more = {n: v for n, v in words.items() if n not in ("DATA_DIR", "NAME", "SWEEPS_DIR")}
    sweep_command.keep(more)
    if "REPEATS" in more:
        sweep_command.whole("REPEATS", more["REPEATS"], sweep_command.MAX_REPEATS)
    place = sweep_command.place_of(more)
    cells, left_out = chosen.cells(place, more)
    if not cells:
        raise UserError(f"REPORT={chosen.name}: nothing of it can be run here: {'; '.join(left_out)}")
    _check_size(chosen, cells, place, more)
    notes = [f"SCALE={chosen.scale}: {chosen.note}"]
    if changes := " ".join(f"{name}={value}" for name, value in more.items() if name not in NOT_THE_PRESETS):
        notes.append(
            f"{changes} in place of the preset's own: what it says of sizes and published figures does not hold"
        )
    notes += [f"left out: {line}" for line in left_out]
    folders = [Path(part).expanduser() for part in words.get("DATA_DIR", "").split(":") if part]
    cache = Path(more.get("DATA_CACHE", catalogue.CACHE))
    sources: dict[tuple, dict[str, str]] = {}
    placed = []
    for cell in cells:
        spec = RunSpec.from_settings({n: v for n, v in cell.words.items() if n not in request.NOT_IN_SPEC})
        key = spec.data, spec.shape, spec.seed
        if key not in sources:
            sources[key] = available(*key, folders, cache, say)
            if (name := sources[key]["DATA"]) != spec.data:
                notes.append(
                    f"{spec.data} could not be had: {name} images are used instead; DATA_DIR= names its folder"
                )
        placed.append(Cell(cell.words | sources[key], cell.repeats, cell.group))
    return Sweep(folder, asked, placed, notes)


def _check_size(chosen: Preset, cells: list[Cell], place, words: dict[str, str]) -> None:
    """Raise UserError when the cluster has too few nodes."""
    largest = max(int(cell.words.get("NODES", 1)) for cell in cells)
    if place.name == "docker" and largest > place.default_nodes:
        larger = f"make cluster-up NODES={largest}{naming.words(words.get('PROJECT', naming.DEFAULT_PROJECT))}"
        raise UserError(
            f"REPORT={chosen.name}: it needs NODES={largest}, the cluster has {place.default_nodes}; "
            f"`{larger}` or RUNTIME=local would do"
        )


def available(name: str, shape, seed: int, folders: list[Path], cache: Path, say) -> dict[str, str]:
    """The words with which runs have this data set: from one of the folders, a download, or else synthetic."""
    how = {"seed": seed, "cache": cache, "say": lambda line: say.print(line, highlight=False)}
    problems = []
    for folder in folders:
        try:
            catalogue.prepare(name, data_dir=folder, shape=shape, **how)
            return {"DATA": name, "DATA_DIR": str(folder)}
        except UserError as error:
            problems.append(str(error))
    if problems and len(folders) == 1 and not folders[0].is_dir():
        raise UserError(problems[0])
    prepared = catalogue.default(name, data_dir=None, shape=shape, **how)
    return {"DATA": prepared.manifest["name"]}


def judged(chosen: Preset, job: Sweep) -> Reproduction:
    """The preset's claims, judged on what has finished."""
    groups = {group.label: group for group in grouping.cell_groups(job)}
    for runs in chosen.file.runs:  # what was left out is there too, with nothing to show
        if not any(cell.group == runs.name for cell in job.cells):
            groups[runs.name] = Group(runs.name, (), ())
    verdicts = [claims.judge(claim, groups) for claim in chosen.claims]
    return Reproduction(chosen, job, groups, verdicts)
