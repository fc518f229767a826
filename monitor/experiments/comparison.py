"""Groups of runs side by side: columns of figures, as rows for tables, pages and programs."""

import itertools
from collections.abc import Callable
from dataclasses import asdict, dataclass

from monitor.experiments import figures
from monitor.experiments.grouping import Group
from monitor.results import scores, table
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
    places: table.Places
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
        Column("test_accuracy", "accuracy", table.PER_CENT, mean_of(lambda result: result["test_accuracy"])),
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
    workers = len(scores.workers(group.results[0]))
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


def records(groups: list[Group], goal: float | None = None) -> list[dict]:
    """The rows for programs: an estimate is its value, low, high and repeats."""
    return [
        {name: asdict(value) if isinstance(value, Estimate) else value for name, value in row.items()}
        for row in rows(groups, goal)
    ]
