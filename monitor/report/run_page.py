"""The page of one run, from what its folder holds."""

from dataclasses import dataclass
from typing import TypeVar

from monitor.report import nodes
from monitor.report.load import Run
from monitor.report.page import Item, Page, Printed, Section
from monitor.report.plots import PHASE_NAMES, Bars, Lines, Matrix, Series
from monitor.results import sentences, words
from monitor.results.parts import Link
from monitor.results.result import Result
from monitor.results.table import PER_CENT, Places, Table, Value
from monitor.results.tables import TOO_MANY, class_table, confusion_table, has_small_matrix, rank_table
from monitor.results.text import count, number, share
from monitor.statistics.joined import joined_loss
from monitor.text import plural
from trainer import events
from trainer.events import PHASES
from trainer.registry import MODELS

MOST_POINTS = 1000  # of a curve; a longer one is thinned, its ends kept
T = TypeVar("T")
MOST_AGES = 40  # bars of staleness; the last has what is older, too


def run_page(run: Run) -> Page:
    """Everything a run left, as a page. What it does not have, it does not show."""
    result, spec = run.result, run.result.spec
    nodes_text = f"{plural(spec.nodes, 'node')} ({result.runtime})"
    lead = [
        f"{spec.sync} {spec.model} on {result.data.label}, {nodes_text}, batch {spec.batch}, "
        f"{spec.precision}: {result.status}",
        *(f"Warning: {warning}" for warning in result.warnings),
    ]
    sections = [
        Section("What failed", failure(result)),
        Section("Result", [outcome(result)]),
        Section("Training", [*learning(run), *evaluations(result)]),
        Section("Where the time of a step goes", ranks(result)),
        Section("Classes", classes(result)),
        Section("Faults", fault_table(result)),
        Section("Nodes over time", [*nodes.loopback(run), *nodes.over_time(run)]),
        Section("Staleness", staleness(result)),
        Section("What was run, and on what", [settings(result), *conditions(result), machine(result)]),
    ]
    return Page(f"Run {result.id}", lead, [section for section in sections if section.items])


def failure(result: Result) -> list[Item]:
    """What failed, and the failed rank's last lines."""
    if result.error is None:
        return []
    lines = result.error.last_lines
    return [result.error.message, Printed(lines)] if lines else [result.error.message]


def outcome(result: Result) -> Table:
    """Losses, accuracy, samples and seconds."""
    seconds = result.seconds
    distinct = f"{count(result.distinct_samples)} of {count(result.data.train_samples)}"
    figures = {
        "training loss of the last step": number(result.train_loss, 4),
        "test loss": number(result.test_loss, 4),
        "test accuracy": share(result.test_accuracy),
        "test images counted": count(result.test_samples_counted),
        "steps": count(result.steps),
        "distinct training images seen": "-" if result.distinct_samples is None else distinct,
        "synchronisations": count(result.synchronisations),
        "seconds of startup": number(seconds.startup, 2),
        "seconds of training": number(seconds.training, 2),
        "seconds of evaluation": number(seconds.evaluation, 2),
        "seconds of total": number(seconds.total, 2),
    }
    if result.restarts:
        figures["seconds of training that restarts took"] = number(seconds.recovery, 2)
    rows: list[list[Value]] = [[name, value] for name, value in figures.items() if value != "-"]
    for restart in result.restarts:
        rows.append([f"restart {restart.attempt}", sentences.of_restart(restart)])
    for worker in result.lost_workers:
        rows.append(["went on without", sentences.of_lost_worker(worker)])
    return Table("outcome", "What it came to", ["", "value"], rows)


def ranks(result: Result) -> list[Item]:
    """The table per rank with its mean, as report R1 prints it, and the phases as stacked bars."""
    return [rank_table(result), phases(result)] if result.workers else []


def phases(result: Result) -> Bars:
    """Mean seconds of a step by phase, a bar per worker."""
    seconds = [rank.phase_seconds.by_phase() for rank in result.workers]
    parts = {PHASE_NAMES.get(phase, phase): [of_rank[phase] for of_rank in seconds] for phase in PHASES}
    labels = [f"rank {rank.rank}" for rank in result.workers]
    return Bars("phases", "Phases of a step, mean of each rank", "seconds", labels, parts)


def learning(run: Run) -> list[Lines]:
    """Loss and accuracy of the joined batch against steps and against seconds of training."""
    joined = joined_steps(run)
    if not joined:
        return []
    steps: list[float] = [point.step for point in joined]
    seconds = [point.seconds for point in joined]
    per_epoch = run.steps_per_epoch
    if per_epoch and steps[-1] < per_epoch:
        per_epoch = None
    plots = []
    for name, y_top in (("loss", None), ("accuracy", 1.0)):
        values = [getattr(point, name) for point in joined]
        for by, x_label, x in (("steps", "step", steps), ("seconds", "seconds since the first step began", seconds)):
            series = [Series(f"{name} of the joined batch", *thinned(x, values)), *_scores(run.result, by, name)]
            both = "Training and test" if len(series) > 1 else "Training"
            plots.append(
                Lines(
                    f"{name}-by-{by}",
                    f"{both} {name} against {by}",
                    x_label,
                    name,
                    series,
                    y_top=y_top,
                    whole_x=by == "steps",
                    per_epoch=per_epoch if by == "steps" else None,
                )
            )
    return plots


def _scores(result: Result, by: str, name: str) -> list[Series]:
    """The test set's loss or accuracy, where it was scored on the way."""
    scores = at_most(result.evaluations)
    if not scores:
        return []
    startup = result.seconds.startup or 0.0
    x = [score.step if by == "steps" else score.seconds - startup for score in scores]
    return [Series(f"{name} on the test set", x, [getattr(score, name) for score in scores])]


@dataclass(frozen=True)
class JoinedStep:
    """A step that all workers did, over their joined batch. Seconds count from the beginning of the first step."""

    step: int
    seconds: float
    loss: float | None  # None: not finite
    accuracy: float


def joined_steps(run: Run) -> list[JoinedStep]:
    """The steps that all workers did, in order."""
    by_step: dict[int, list[events.Step]] = {}
    for of_rank in run.steps.values():
        for step in of_rank:
            by_step.setdefault(step.step, []).append(step)
    began = run.began or 0.0
    joined = []
    for index, steps in sorted(by_step.items()):
        if len(steps) == len(run.steps):
            samples = sum(step.samples for step in steps)
            accuracy = sum(step.accuracy * step.samples for step in steps) / samples
            seconds = max(step.time for step in steps) - began
            joined.append(JoinedStep(index, seconds, joined_loss(steps), accuracy))
    return joined


def evaluations(result: Result) -> list[Table]:
    """Scores on the test set while training went on."""
    shown = at_most(result.evaluations)
    rows: list[list[Value]] = [[e.step, e.seconds, e.loss, e.accuracy] for e in shown]
    headings = ["step", "s since the command", "test loss", "test accuracy"]
    return [Table("evaluations", "Scores on the test set", headings, rows, [None, 1, 4, PER_CENT])] if rows else []


def classes(result: Result, suffix: str = "", of: str = "") -> list[Item]:
    """The classification report and the confusion matrix."""
    if not result.per_class:
        return []
    if not has_small_matrix(result):
        return [class_table(result, suffix, of), TOO_MANY]
    labels, counts = result.classes or [], result.confusion_matrix or []
    matrix = Matrix("confusion" + suffix, "Confusion matrix" + of, "predicted class", "true class", labels, counts)
    return [class_table(result, suffix, of), matrix, confusion_table(result, suffix, of)]


def fault_table(result: Result) -> list[Table]:
    """What was done to ranks and nodes, and when, in seconds from the beginning of the first step."""
    rows: list[list[Value]] = [
        [record.fault, record.began_seconds, record.ended_seconds, record.step, record.error or ""]
        for record in result.faults
    ]
    headings = ["fault", "began s", "ended s", "after step", "could not be done"]
    return [Table("faults", "Faults of the run (FAULT=)", headings, rows, [None, 1, 1, 0, None])] if rows else []


def staleness(result: Result) -> list[Bars]:
    """How stale the workers' updates were, where there is such a thing."""
    histograms = {f"rank {rank.rank}": rank.staleness.histogram for rank in result.ranks if rank.staleness}
    if not histograms:
        return []
    most = max((int(age) for histogram in histograms.values() for age in histogram), default=0)
    ages = [str(age) for age in range(min(most, MOST_AGES) + 1)]
    parts = {rank: [_steps_of(histogram, age) for age in range(len(ages))] for rank, histogram in histograms.items()}
    if most > MOST_AGES:
        ages[-1] += " or more"
    return [Bars("staleness", "Updates between a pull and its push, by steps of each rank", "steps", ages, parts)]


def _steps_of(histogram: dict[str, int], age: int) -> int:
    """Steps of this age; the last bar has those of all that are older."""
    return sum(steps for text, steps in histogram.items() if min(int(text), MOST_AGES) == age)


def settings(result: Result) -> Table:
    """Every setting that decided what was computed, in the words of `make run`."""
    rows: list[list[Value]] = [[name, text] for name, text in words.relevant_settings(result.spec.values()).items()]
    return Table("settings", "Settings", ["setting", "value"], rows)


CONDITIONS: dict[str, Places] = {  # columns after the node
    "cores": 2,
    "MiB": 0,
    "Mbit/s": 1,
    "delay ms": 1,
    "jitter ms": 1,
    "loss %": 2,
    "congestion control": None,
    "measured Mbit/s": 1,
    "round trip ms": 2,
}


def conditions(result: Result) -> list[Table]:
    """What each node could use and send: limits and links that were asked for, and what the links were measured at."""
    rows: list[list[Value]] = []
    for node, limits in enumerate(result.limits):
        link = result.links[node] if result.links else Link()
        memory = limits.memory_bytes and limits.memory_bytes / 2**20
        rows.append([str(node), limits.cpus, memory, *_link_figures(link)])
    headings, places = ["node", *CONDITIONS], [None, *CONDITIONS.values()]
    columns = [0, *(i for i in range(1, len(headings)) if any(row[i] for row in rows))]
    if len(columns) < 2:
        return []
    rows = [[row[i] for i in columns] for row in rows]
    title = "Limits and links of the nodes"
    return [Table("conditions", title, [headings[i] for i in columns], rows, [places[i] for i in columns])]


def _link_figures(link: Link) -> list[Value]:
    """A link as CONDITIONS names it: as it was asked for, then as it was measured."""
    rate = link.rate_bits and link.rate_bits / 1e6
    settings = [rate, link.delay_ms, link.jitter_ms, link.loss_percent, link.congestion]
    if link.measured is None:
        return [*settings, None, None]
    return [*settings, link.measured.rate_bits / 1e6, link.measured.round_trip_ms]


def machine(result: Result) -> Table:
    """The machine and the versions."""
    host, model = result.host, result.spec.model
    rows: list[list[Value]] = [
        ["processor", host.cpu],
        ["cores", str(host.cores)],
        ["memory", f"{host.memory_bytes / 2**30:.1f} GiB"],
        ["system", host.system],
        *([name, version] for name, version in result.versions.items()),
        ["model", MODELS[model].summary if model in MODELS else model],
        ["parameters", count(result.parameters)],
        ["bytes of gradients", count(result.gradient_bytes)],
        ["data", result.data.label],
    ]
    return Table("machine", "Machine, versions, model", ["", "value"], rows)


def thinned(x: list[float], y: list) -> tuple[list[float], list]:
    """At most MOST_POINTS points of a curve, its ends among them."""
    return at_most(x), at_most(y)


def at_most(items: list[T]) -> list[T]:
    """About MOST_POINTS of the items, evenly, the first and the last among them."""
    every = -(-len(items) // MOST_POINTS) or 1
    return [items[i] for i in sorted({*range(0, len(items), every), len(items) - 1})] if items else []
