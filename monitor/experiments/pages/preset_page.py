"""The page of a reproduced report: its verdicts, its tables and plots."""

from collections.abc import Callable
from dataclasses import replace

from monitor.experiments import figures
from monitor.experiments.cells import Cell
from monitor.experiments.grouping import Group
from monitor.experiments.pages import sweep_page
from monitor.experiments.pages.against import against
from monitor.report import run_page
from monitor.report.load import load
from monitor.report.nodes import over_time as nodes_over_time
from monitor.report.page import Item, Page, Section
from monitor.report.plots import Lines, Series
from monitor.results.result import Result
from monitor.results.table import PER_CENT, Table, Value
from monitor.results.tables import rank_table


def reproduced_page(reproduction) -> Page:
    """The page of a reproduce.Reproduction: verdicts first, then the report's tables and plots."""
    preset, job = reproduction.preset, reproduction.sweep
    sections = [Section("Claims", verdicts(reproduction))]
    for i, table in enumerate(preset.tables):
        heading, build = KINDS[table.kind]
        options, pairs = table.model_dump(exclude={"kind", "runs"}), _pairs(reproduction, table.runs)
        parts = pairs if build is against else [group for _, group in pairs]  # against() asks cells for their words
        sections.append(Section(heading, build(parts, f"{table.kind}-{i + 1}", **options)))
    first = next((g for g in reproduction.groups.values() if g.results), None)
    sections += [
        Section("Beside the report", published(reproduction)),
        Section("What failed", sweep_page.failed(job)),
        Section("Runs", [sweep_page.runs_table(job)]),
        Section("On what", [run_page.machine(first.results[0])] if first else []),
    ]
    labels = sorted({g.results[0].data.label for g in reproduction.groups.values() if g.results})
    lead = [
        preset.about,
        sweep_page.progress(job),
        *sweep_page.where(list(reproduction.groups.values())),
        *job.notes,
        *([f"Data: {'; '.join(labels)}."] if labels else []),
    ]
    return Page(f"{preset.name}: {preset.title}", lead, [section for section in sections if section.items])


def _pairs(reproduction, names: list[str] | None) -> list[tuple[Cell, Group]]:
    """The cells of these parts of the preset, and what came of them; all without names."""
    groups = reproduction.groups.values()  # after those of the cells come those of what was left out
    cells = zip(reproduction.sweep.cells, groups, strict=False)
    return [pair for pair in cells if names is None or pair[0].group in names]


def verdicts(reproduction) -> list[Table]:
    """Each claim with its verdict, figures and reason."""
    rows: list[list[Value]] = [[v.claim, v.verdict, v.figures or None, v.reason] for v in reproduction.verdicts]
    note = "Ratios are of geometric means over the repeats, [ ] their 95 % intervals."
    headings = ["claim", "verdict", "figures", "reason"]
    return [Table("claims", "Verdicts", headings, rows, notes=[note])] if rows else []


def published(reproduction) -> list[Table]:
    """The report's figures beside ours, both as ratios to its first row: the machines are not the same."""
    report = reproduction.preset.published
    if not report:
        return []
    figure, values = figures.SECONDS[report.what], report.values
    groups = {cell.group: g for cell, g in zip(reproduction.sweep.cells, reproduction.groups.values(), strict=False)}
    first = next(iter(values))
    ours = {name: groups[name].estimate(figure) if name in groups and groups[name].results else None for name in values}
    rows: list[list[Value]] = []
    base = ours[first]
    for name, value in values.items():
        estimate = ours[name]
        rows.append([name, value / values[first], estimate.value / base.value if estimate and base else None])
    what = {"step": "seconds of a step", "training": "seconds of training"}[report.what]
    return [Table("published", f"Ratios of {what} to {first}", ["", "report", "here"], rows, [None, 3, 3])]


def nodes(groups: list[Group], name: str) -> list[Table]:
    """The per-node table of each group's first run."""
    return [rank_table(g.results[0], f"{name}-{i + 1}", g.label) for i, g in enumerate(groups) if g.results]


def losses(groups: list[Group], name: str, every: int) -> list:
    """Loss, accuracy and seconds of the joined batch each `every` steps, the first and the last step included."""
    rows: list[list[Value]] = []
    series = []
    for group in groups:
        if not group.results:
            continue
        joined = run_page.joined_steps(load(group.folders[0]))
        last = joined[-1].step if joined else 0
        for point in joined:
            if point.step % every == 0 or point.step in (1, last):
                rows.append([group.label, point.step, point.seconds, point.loss, point.accuracy])
        series.append(Series(group.label, [p.step for p in joined], [p.loss for p in joined]))
    headings = ["", "step", "s since the first step began", "loss", "accuracy"]
    table = Table(name, f"Loss of the joined batch each {every} steps", headings, rows, [None, None, 2, 4, PER_CENT])
    return [table, Lines(f"{name}-curve", "Training loss", "step", "loss", series, whole_x=True)] if rows else []


def classes(groups: list[Group], name: str) -> list[Item]:
    """The classification report and the confusion matrix of each group's first run."""
    items: list[Item] = []
    for i, group in enumerate(groups):
        if group.results:
            items += run_page.classes(group.results[0], f"-{name}-{i + 1}", f": {group.label}")
    return items


def curves(groups: list[Group], name: str) -> list[Lines]:
    """Loss and accuracy against epochs: of training, and on the test set where it was scored on the way."""
    plots = []
    for figure, y_top in (("loss", None), ("accuracy", 1.0)):
        series = []
        for group in groups:
            if not group.results:
                continue
            result, joined = group.results[0], run_page.joined_steps(load(group.folders[0]))
            per_epoch = max((result.data.train_samples or 0) // group.spec.batch, 1)
            epochs = [point.step / per_epoch for point in joined]
            x, y = run_page.thinned(epochs, [getattr(point, figure) for point in joined])
            series.append(Series(f"{group.label}, training", x, y))
            scores = result.evaluations
            if scores:
                x = [score.step / per_epoch for score in scores]
                series.append(Series(f"{group.label}, test", x, [getattr(score, figure) for score in scores]))
        if series:
            title = f"{figure.title()} against epochs"
            plots.append(Lines(f"{name}-{figure}", title, "epoch", figure, series, y_top=y_top))
    return plots


RESOURCES: dict[str, Callable[[Result], float | None]] = {  # figures of the first node, by heading
    "peak memory (bytes)": lambda result: result.ranks[0].node_peak_memory_bytes,
    "peak CPU %": lambda result: result.ranks[0].peak_cpu_percent,
    "network received (bytes)": lambda result: result.ranks[0].network_received_bytes,
    "network sent (bytes)": lambda result: result.ranks[0].network_sent_bytes,
}


def resources(groups: list[Group], name: str) -> list[Table]:
    """Peak memory, peak CPU and network of the first node, means over the repeats."""
    rows: list[list[Value]] = []
    for group in groups:
        if group.results:
            estimates = [group.estimate(figure) for figure in RESOURCES.values()]
            rows.append([group.nodes, group.spec.batch, *(e and e.value for e in estimates)])
    headings = ["nodes", "batch", *RESOURCES]
    note = (
        "Of node 0: worker and, where servers share the workers' nodes, server at once. Peak CPU: of one core, over a "
        "second. Memory: working set, without inactive file cache. RUNTIME=local counts the loopback of all ranks."
    )
    title = "Peak memory, peak CPU and network of the first node"
    return [Table(name, title, headings, rows, [None, None, 0, 1, 0, 0], [note])] if rows else []


def utilisation(groups: list[Group], name: str, plots: list[str]) -> list[Lines]:
    """CPU, memory and packets of the last node of each group's first run over time, those that `plots` names."""
    lines = []
    for i, group in enumerate(groups):
        if not group.results:
            continue
        run = load(group.folders[0])
        last = group.results[0].ranks[-1].node
        rows = [row for row in run.rows if row.node == last]
        for plot in nodes_over_time(replace(run, rows=rows)):
            what = plot.name.removeprefix("node-")
            if what in plots:
                title = f"{plot.title}: {group.label}"
                lines.append(
                    Lines(f"{name}-{i + 1}-{what}", title, plot.x_label, plot.y_label, plot.series, plot.spans)
                )
    return lines


def competition(groups: list[Group], name: str) -> list[Table]:
    """Rank, loss, accuracy, learning rate and wall time, as the report prints it."""
    rows: list[list[Value]] = []
    for group in groups:
        for result in group.results[:1]:
            figures_of_all = [result.test_loss, result.test_accuracy, group.spec.lr, result.seconds.training]
            rows += [[rank.rank, *figures_of_all] for rank in result.workers]
    headings = ["Rank", "Loss/Validation", "Accuracy/Validation", "Learning Rate", "Wall Time (s)"]
    note = "Replicas are alike, so that loss and accuracy are of all ranks; the test set is counted once."
    return [Table(name, "Competition run", headings, rows, [None, 4, PER_CENT, 4, 1], [note])] if rows else []


def just_speed_up(groups: list[Group], name: str, what: figures.RateOf) -> list[Item]:
    """Speed-up, of one of figures.RATES, and accuracy against the number of workers."""
    rows: list[list[Value]] = []
    for group in groups:
        base = figures.baseline(group, groups) if group.results else None
        speed_up = figures.speed_up(group, base, what) if base else None
        accuracy = group.estimate(lambda result: result.test_accuracy)
        seconds = group.estimate(figures.training_seconds)
        rows.append([group.label, seconds and seconds.value, speed_up, accuracy and accuracy.value])
    headings = ["", "training s", "speed-up", "test accuracy"]
    title = f"Speed-up ({sweep_page.RATES[what]}) and accuracy"
    return [Table(name, title, headings, rows, [None, 2, 2, PER_CENT]), *sweep_page.speed_up(groups, name, what)]


KINDS = {
    "compare": ("Side by side", sweep_page.comparison),
    "nodes": ("Per node", nodes),
    "losses": ("Loss", losses),
    "classes": ("Classes", classes),
    "curves": ("Curves", curves),
    "speed_up": ("Speed-up", just_speed_up),
    "against": ("Against a setting", against),
    "resources": ("Resources", resources),
    "utilisation": ("A node over time", utilisation),
    "competition": ("Competition run", competition),
}
