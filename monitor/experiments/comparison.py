"""Groups of runs side by side: columns of figures, as rows for tables, pages and programs."""

import itertools
from collections.abc import Callable
from dataclasses import asdict, dataclass

from monitor.experiments import figures
from monitor.experiments.grouping import Group
from monitor.results.result import Result
from monitor.results.table import PER_CENT, Places, Table, Value
from monitor.statistics.estimate import Estimate, mean
from trainer.events import PHASES

RESUMED = "resumed"  # in place of what it took to reach a goal
RESTARTED = "restarted"


@dataclass(frozen=True)
class Column:
    """A figure of every group: its heading with the unit, how it is shown, and how it is had.

    `interval`: whether tables show how far off it may be.
    """

    name: str
    heading: str
    places: Places
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
        Column("train_loss", "train loss", 3, mean_of(lambda result: result.train_loss)),
        Column("test_loss", "test loss", 3, mean_of(lambda result: result.test_loss)),
        Column("test_accuracy", "accuracy", PER_CENT, mean_of(lambda result: result.test_accuracy)),
    ]


def goal_columns(goal: float) -> list[Column]:
    """What it took to reach an accuracy."""

    def seconds(group: Group, _: Group | None) -> Estimate | str | None:
        return to_goal(group, goal, lambda reached: reached.seconds)

    def megabytes(group: Group, _: Group | None) -> Estimate | str | None:
        return to_goal(group, goal, lambda reached: reached.sent_bytes / 1e6)

    return [
        Column("goal_seconds", f"s to {goal:g}", 1, seconds),
        Column("goal_bytes", f"MB to {goal:g}", 1, megabytes),
    ]


def mean_of(figure: Callable[[Result], float | None]) -> Callable[[Group, Group | None], Estimate | None]:
    """A column's figure: the mean over the repeats."""
    return lambda group, base: group.estimate(figure)


def runs_text(group: Group) -> str:
    """How many runs the figures are of, how many of them were restarted, and how many failed."""
    counts = {RESTARTED: sum(bool(result.restarts) for result in group.results), "failed": group.failed}
    return ", ".join([str(len(group.results)), *(f"{count} {what}" for what, count in counts.items() if count)])


def efficiency(group: Group, base: Group | None) -> Estimate | None:
    """Speed-up per worker."""
    speed_up = figures.speed_up(group, base) if base else None
    if not speed_up:
        return None
    workers = len(group.results[0].workers)
    low, high = (None if bound is None else bound / workers for bound in (speed_up.low, speed_up.high))
    return Estimate(speed_up.value / workers, low, high, speed_up.repeats)


def to_goal(group: Group, goal: float, figure: Callable[[figures.Reached], float]) -> Estimate | str | None:
    """The mean of a figure of what it took until the goal was seen reached. Raises UserError."""
    if any(result.resumed_from for result in group.results):
        return RESUMED
    values = []
    for result, folder in zip(group.results, group.folders, strict=True):
        reached = figures.reached(result, folder, goal)
        if reached is None:
            return "not reached"
        values.append(figure(reached))
    return mean(values) if values else None


def rows(groups: list[Group], goal: float | None = None) -> list[dict]:
    """A row per group: its label, and every column's figure by name."""
    table = []
    for group in groups:
        base = figures.baseline(group, groups) if group.results else None
        cells = {}
        for column in itertools.chain(*columns(goal).values()):
            is_known = bool(group.results) or column.name == "runs"
            cells[column.name] = column.figure(group, base) if is_known else None
        table.append({"label": group.label, "baseline": base.label if base else None, **cells})
    return table


def tables(groups: list[Group], goal: float | None = None, name: str = "compare") -> dict[str, Table]:
    """The comparison as tables, by their headings, with what a reader must know below the first."""
    by_heading, figures_of_groups = {}, rows(groups, goal)
    for heading, part in columns(goal).items():
        cells: list[list[Value]] = []
        for row in figures_of_groups:
            cells.append([row["label"], *(table_value(row[column.name], column) for column in part)])
        places = [None, *(column.places for column in part)]
        title = heading.capitalize() or "Runs side by side"
        headings = ["", *(column.heading for column in part)]
        notes = [] if by_heading else footnotes(figures_of_groups)
        by_heading[heading] = Table("-".join([name, *heading.split()]), title, headings, cells, places, notes)
    return by_heading


def table_value(value: Estimate | float | str | None, column: Column) -> Estimate | float | str | None:
    """A figure as a table takes it: with its interval where the column has one."""
    return value.value if isinstance(value, Estimate) and not column.interval else value


def footnotes(table: list[dict]) -> list[str]:
    """What a reader must know of the figures."""
    notes = ["[ ] is the 95 % interval over the repeats; one run has none. Each run's first step is left out."]
    bases = sorted({row["baseline"] for row in table if row["baseline"]})
    if bases:
        what = "efficiency: per worker; without sync: had the steps exposed none"
        notes.append(f"speed-up: samples per second over those of {' / '.join(bases)}; {what}.")
    else:
        notes.append("no speed-up: no run is on one node with the same model, data, precision, runtime and limits.")
    notes.append("MB/step: payload sent by all ranks; node-s: nodes times seconds of training.")
    if any(RESTARTED in row["runs"] for row in table):
        text = "lost steps and the way back are in training s and node-s, lost steps in the way to an accuracy"
        notes.append(f"{RESTARTED}: {text}; figures of a step have each step once.")
    if any(row.get("goal_seconds") == RESUMED for row in table):
        notes.append(f"{RESUMED}: what the run before took is not in it, so that the way to an accuracy is not told.")
    return notes


def records(groups: list[Group], goal: float | None = None) -> list[dict]:
    """The rows for programs: an estimate is its value, low, high and repeats."""
    return [
        {name: asdict(value) if isinstance(value, Estimate) else value for name, value in row.items()}
        for row in rows(groups, goal)
    ]
