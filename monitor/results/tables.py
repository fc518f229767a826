"""The tables of a result. Pages, CSV files and the terminal show the same ones, the terminal fewer columns."""

from dataclasses import replace

from monitor.results.parts import Rank
from monitor.results.result import Result
from monitor.results.table import Table, Value
from monitor.results.text import mean
from trainer.events import PHASES
from trainer.layout import WORKER

RANK_NOTE = (
    "The first step is left out of the step means. sync is the part that backward did not hide. Peak CPU and "
    "throttling are the node's, and stand with its first rank."
)
SHOWN_CLASSES = 100  # of a confusion matrix
TOO_MANY = f"The confusion matrix has more than {SHOWN_CLASSES} classes: it is in result.json alone."
IDENTITY = ("rank", "node", "role", "steps")  # the columns before the figures
STEPS = {"s/step": "s/step", "median s": "median", "p95 s": "p95"}  # a page's heading: a terminal's
SUMMARY = STEPS | {name: name for name in ("sent MB/step", "peak MB", "peak CPU %")}
PHASE = {f"{phase} s": phase for phase in PHASES}
PLACES = dict.fromkeys((*STEPS, *PHASE), 3) | {"sent MB/step": 2, "peak MB": 0, "peak CPU %": 0, "throttled s": 2}


def rank_table(result: Result, name: str = "ranks", title: str = "Ranks") -> Table:
    """A row per rank with seconds, bytes and peaks, and the mean of the workers that trained."""
    first = {rank.node: rank for rank in reversed(result.ranks)}  # of each node
    rows: list[list[Value]] = []
    values: list[list[float | None]] = []
    for rank in result.ranks:
        figures = _figures(rank, is_first=first[rank.node] is rank)
        rows.append([rank.rank, rank.node, rank.role, rank.steps, *figures])
        if rank.is_worker and rank.steps:
            values.append(figures)
    means = [mean(column) for column in zip(*values, strict=True)] if values else [None] * len(PLACES)
    rows.append([None, "mean of the workers", "", None, *means])
    places = [*[None] * len(IDENTITY), *PLACES.values()]
    return Table(name, title, [*IDENTITY, *PLACES], rows, places, [RANK_NOTE])


def _figures(rank: Rank, is_first: bool) -> list[float | None]:
    """The figures of a rank, as PLACES names them. Those of its node stand with the node's first rank."""
    of_node = (rank.peak_cpu_percent, rank.throttled_seconds) if is_first else (None, None)
    return [
        rank.step_seconds.mean,
        rank.step_seconds.median,
        rank.step_seconds.p95,
        *rank.phase_seconds.by_phase().values(),
        rank.sent_bytes / rank.steps / 1e6 if rank.steps else None,
        rank.peak_memory_bytes / 1e6 if rank.peak_memory_bytes is not None else None,
        *of_node,
    ]


def narrow_rank_tables(table: Table) -> list[Table]:
    """The rank table as two that fit a terminal: steps with bytes and peaks, and phases."""
    return [_narrow(table, SUMMARY), _narrow(table, PHASE)]


def _narrow(table: Table, headings: dict[str, str]) -> Table:
    """These columns of the rank table. A role that is not a worker's stands with the node."""
    columns = [table.headings.index(heading) for heading in headings]
    *ranks, means = table.rows
    rows: list[list[Value]] = []
    for rank, node, role, steps, *_ in ranks:
        rows.append([rank, node if role == WORKER else f"{node}, {role}", steps])
    has_others = any(role != WORKER for _, _, role, *_ in ranks)
    rows.append(["mean", "of workers" if has_others else "", ""])
    for row, source in zip(rows, (*ranks, means), strict=True):
        row += [source[i] for i in columns]
    places = [None, None, None, *(table.places[i] for i in columns)]
    return replace(table, headings=["rank", "node", "steps", *headings.values()], rows=rows, places=places, notes=[])


def class_table(result: Result, suffix: str = "", of: str = "") -> Table:
    """The classification report. `suffix` and `of`: what tells its name and title from others of the page."""
    scores = result.per_class or []
    rows: list[list[Value]] = [[c.name, c.precision, c.recall, c.f1, c.support] for c in scores]
    headings = ["class", "precision", "recall", "F1", "support"]
    return Table("classes" + suffix, "Classification report" + of, headings, rows, [None, 3, 3, 3, None])


def has_small_matrix(result: Result) -> bool:
    """Whether a confusion matrix of so many classes can be read, and laid out in time."""
    return len(result.classes or ()) <= SHOWN_CLASSES


def confusion_table(result: Result, suffix: str = "", of: str = "") -> Table:
    """The confusion matrix: a row per true class, a column per predicted one."""
    classes, matrix = result.classes or [], result.confusion_matrix or []
    rows: list[list[Value]] = [[name, *counts] for name, counts in zip(classes, matrix, strict=True)]
    title = "Confusion matrix" + of + ", counts"
    return Table("confusion-matrix" + suffix, title, ["true \\ predicted", *classes], rows)
