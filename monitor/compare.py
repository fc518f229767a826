"""`syncbed compare`: runs, or the cells of a sweep, side by side.

make compare RUNS="20260301-101500-ddp-vgg11-4n 20260301-102000-ring-vgg11-4n"
make compare SWEEP=monday GOAL=0.8
"""

import itertools
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from monitor import figures, results, summary, sweep
from monitor.errors import UserError, refuse_unknown
from monitor.estimate import Estimate, mean
from monitor.figures import Group
from monitor.report import tables
from trainer.events import PHASES

SETTINGS = {
    "RUNS": "ids of runs, parted by spaces or commas",
    "SWEEP": "name of a sweep, instead of RUNS",
    "GOAL": "an accuracy on the test set, from 0 to 1: what it took to reach it",
    "RUNS_DIR": "folder of results; default: runs",
    "SWEEPS_DIR": "folder of sweeps; default: sweeps",
}
RESUMED = "resumed"  # in place of what it took to reach a goal
RESTARTED = "restarted"


@dataclass(frozen=True)
class Column:
    """A figure of every group: its heading with the unit, how it is shown, and how it is had.

    `interval`: whether tables show how far off it may be.
    """

    name: str
    heading: str
    places: tables.Places
    figure: Callable[[Group, Group | None], Estimate | float | str | None]  # of a group and its baseline
    interval: bool = False


def columns(goal: float | None = None) -> dict[str, list[Column]]:
    """The columns of a comparison, by the heading of the table that they make."""
    return {
        "": step_columns(),
        "seconds of a step": [phase_column(phase) for phase in PHASES],
        "outcome": [*outcome_columns(), *(goal_columns(goal) if goal is not None else [])],
    }


def step_columns() -> list[Column]:
    """What a step takes, and beside one node."""
    return [
        Column("runs", "runs", 0, lambda group, base: runs_text(group)),
        Column("step_seconds", "s/step", 3, mean_of(figures.step_seconds), interval=True),
        Column("step_megabytes", "MB/step", 2, mean_of(figures.step_megabytes)),
        Column("speed_up", "speed-up", 2, lambda group, base: base and figures.speed_up(group, base), interval=True),
        Column("efficiency", "efficiency", 2, efficiency),
        Column(
            "speed_up_without_sync",
            "without sync",
            2,
            lambda group, base: base and figures.speed_up(group, base, "without_sync"),
        ),
    ]


def phase_column(phase: str) -> Column:
    """Mean seconds of a phase of a step."""
    return Column(f"{phase}_seconds", phase, 3, mean_of(lambda result: figures.phase_seconds(result)[phase]))


def outcome_columns() -> list[Column]:
    """What the whole run took, and what it came to."""
    return [
        Column("training_seconds", "training s", 1, mean_of(figures.training_seconds), interval=True),
        Column("node_seconds", "node-s", 1, mean_of(figures.node_seconds)),
        Column("train_loss", "train loss", 3, mean_of(lambda result: result["train_loss"])),
        Column("test_loss", "test loss", 3, mean_of(lambda result: result["test_loss"])),
        Column("test_accuracy", "accuracy", tables.PER_CENT, mean_of(lambda result: result["test_accuracy"])),
    ]


def goal_columns(goal: float) -> list[Column]:
    """What it took to reach an accuracy."""
    return [
        Column("goal_seconds", f"s to {goal:g}", 1, lambda group, base: to_goal(group, goal, "seconds")),
        Column("goal_bytes", f"MB to {goal:g}", 1, lambda group, base: to_goal(group, goal, "sent_bytes")),
    ]


def mean_of(figure: Callable[[dict], float | None]) -> Callable[[Group, Group | None], Estimate | None]:
    """A column's figure: the mean over the repeats."""
    return lambda group, base: group.estimate(figure)


def runs_text(group: Group) -> str:
    """How many runs the figures are of, how many of them were restarted, and how many failed."""
    restarted = sum(bool(result.get("restarts")) for result in group.results)
    told = {RESTARTED: restarted, "failed": group.failed}
    return ", ".join([str(len(group.results)), *(f"{count} {what}" for what, count in told.items() if count)])


def efficiency(group: Group, base: Group | None) -> Estimate | None:
    """Speed-up per worker."""
    found = base and figures.speed_up(group, base)
    if not found:
        return None
    workers = len(figures.workers(group.results[0]))
    bounds = [None if bound is None else bound / workers for bound in (found.low, found.high)]
    return Estimate(found.value / workers, *bounds, found.repeats)


def to_goal(group: Group, goal: float, what: str) -> Estimate | str | None:
    """Mean seconds of training, or MB sent by all ranks, until the goal was seen reached. Raises UserError."""
    if any(result.get("resumed_from") for result in group.results):
        return RESUMED
    found = [figures.reached(*run, goal) for run in zip(group.results, group.folders, strict=True)]
    if None in found:
        return "not reached"
    values = [getattr(reached, what) / (1e6 if what == "sent_bytes" else 1) for reached in found]
    return mean(values) if values else None


def rows(groups: list[Group], goal: float | None = None) -> list[dict]:
    """A row per group: its label, and every column's figure by name."""
    found = []
    for group in groups:
        base = figures.baseline(group, groups) if group.results else None
        wanted = itertools.chain(*columns(goal).values())
        cells = {c.name: c.figure(group, base) if group.results or c.name == "runs" else None for c in wanted}
        found.append({"label": group.label, "baseline": base.label if base else None, **cells})
    return found


def shown(value: Estimate | float | str | None, column: Column) -> Estimate | float | str | None:
    """A figure as a table takes it: with its interval where the column has one."""
    return value.value if isinstance(value, Estimate) and not column.interval else value


def footnotes(found: list[dict]) -> list[str]:
    """What a reader must know of the figures."""
    notes = ["[ ] is the 95 % interval over the repeats; one run has none. Each run's first step is left out."]
    bases = sorted({row["baseline"] for row in found if row["baseline"]})
    if bases:
        what = "efficiency: per worker; without sync: had the steps exposed none"
        notes.append(f"speed-up: samples per second over those of {' / '.join(bases)}; {what}.")
    else:
        notes.append("no speed-up: no run is on one node with the same model, data, precision, runtime and limits.")
    notes.append("MB/step: payload sent by all ranks; node-s: nodes times seconds of training.")
    if any(RESTARTED in row["runs"] for row in found):
        text = "lost steps and the way back are in training s and node-s, lost steps in the way to an accuracy"
        notes.append(f"{RESTARTED}: {text}; figures of a step have each step once.")
    if any(row.get("goal_seconds") == RESUMED for row in found):
        notes.append(f"{RESUMED}: what the run before took is not in it, so that the way to an accuracy is not told.")
    return notes


def show(groups: list[Group], say: Console, goal: float | None = None) -> None:
    """Print the comparison as a table."""
    found = rows(groups, goal)
    for heading, part in columns(goal).items():
        table = Table(box=None, header_style="bold", pad_edge=False)
        table.add_column(heading, overflow="fold")
        for column in part:
            table.add_column(column.heading, justify="right")
        for row in found:
            table.add_row(Text(row["label"]), *(tables.text(shown(row[c.name], c), c.places) for c in part))
        say.print(table)
    for note in footnotes(found):
        say.print(note, style="dim", highlight=False)


def records(groups: list[Group], goal: float | None = None) -> list[dict]:
    """The rows for programs: an estimate is its value, low, high and repeats."""
    return [
        {name: asdict(value) if isinstance(value, Estimate) else value for name, value in row.items()}
        for row in rows(groups, goal)
    ]


def command(settings: dict[str, str], args) -> int:
    """CLI `compare`. Raises UserError in one line."""
    refuse_unknown(settings, SETTINGS)
    goal = goal_of(settings)
    if ("RUNS" in settings) == ("SWEEP" in settings):
        raise UserError('RUNS= or SWEEP=: give one of them, as in RUNS="id id"')
    if "SWEEP" in settings:
        groups = cell_groups(sweep.load(sweep.named({"NAME": settings["SWEEP"]} | settings, {})))
    else:
        groups = named_runs(settings["RUNS"], Path(settings.get("RUNS_DIR", "runs")))
    if args.json:
        print(json.dumps(records(groups, goal), indent=1))
    else:
        show(groups, summary.console(), goal)
    return 0


def goal_of(settings: dict[str, str]) -> float | None:
    """GOAL= as a number. Raises UserError."""
    text = settings.get("GOAL")
    if text is None:
        return None
    if not re.fullmatch(r"0?\.[0-9]+|[01](\.0*)?", text):
        raise UserError(f"GOAL={text}: an accuracy from 0 to 1, as in GOAL=0.8")
    return float(text)


def named_runs(text: str, folder: Path) -> list[Group]:
    """The groups of the runs that RUNS= names. Raises UserError for one that cannot be read or failed."""
    ids = re.split(r"[\s,]+", text.strip())
    if ids == [""]:
        raise UserError('RUNS=: an empty list; as in RUNS="id id"; `make runs` lists them')
    paths = [(folder / run).resolve() for run in ids]
    if twice := next((run for i, run in enumerate(ids) if paths[i] in paths[:i]), None):
        raise UserError(f"RUNS={text}: {twice} stands there twice")
    runs = []
    for run in ids:
        result = results.load(run, folder)
        if result["status"] != results.FINISHED:
            raise UserError(f"RUNS={run}: it is {result['status']}, only finished runs can be compared")
        try:
            if not results.whole(result):
                raise KeyError(*sorted(results.WHOLE - result.keys())[:1])
            rows(figures.grouped([(result, folder / run)]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"run {run}: its result.json is not one that syncbed wrote ({error!r})") from None
        runs.append((result, folder / run))
    return figures.grouped(runs)


def cell_groups(job: sweep.Sweep) -> list[Group]:
    """The finished runs of each cell, labelled by what tells the cell from the others."""
    groups = []
    for i, cell in enumerate(job.cells):
        found = tuple(job.results(i))
        folders = tuple(job.folder / result["id"] for result in found)
        failed = sum(t.cell == i for t in job.failures())
        groups.append(Group(cell.text(job.cells), found, folders, failed))
    return groups


def report_sweep(job: sweep.Sweep, say: Console, as_json: bool = False) -> None:
    """What a sweep ends with: the comparison of its cells, on screen and as a page."""
    from monitor.report.sweep_page import sweep_page

    groups = cell_groups(job)
    publish(job, sweep_page(job, groups), say)
    if as_json:
        print(json.dumps(records(groups), indent=1))
    else:
        show(groups, say)


def publish(job: sweep.Sweep, page, say: Console) -> None:
    """Write the sweep's page and say where it is, or why there is none."""
    from monitor.report.page import write_page

    try:
        say.print(f"report: {write_page(job.folder, 'report', page)}", highlight=False)
    except OSError as error:
        say.print(f"warning: no report was written: {error.strerror or error}", style="yellow", highlight=False)
