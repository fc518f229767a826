"""Pages of sweeps and of reproduced reports: the runs side by side, the report's tables and plots, and the verdicts."""

from monitor import capabilities
from monitor.experiments import figures
from monitor.experiments.cells import texts
from monitor.experiments.comparison import rows, tables
from monitor.experiments.grouping import Group
from monitor.experiments.sweep import Sweep
from monitor.report import run_page
from monitor.report.page import Item, Page, Section
from monitor.report.plots import PHASE_NAMES, Bars, Lines, Series
from monitor.results.result import Result
from monitor.results.table import Table, Value
from monitor.statistics.estimate import Estimate
from trainer.events import PHASES
from trainer.registry import SYNCS

RATES: dict[figures.RateOf, str] = {  # figures.RATES in words
    "step": "samples per second of steps",
    "without_sync": "samples per second of steps, had they exposed no synchronisation",
    "training": "samples per second of training, its end included",
}


def sweep_page(job: Sweep, groups: list[Group]) -> Page:
    """The cells of a sweep side by side."""
    first = next((g for g in groups if g.results), None)
    sections = [
        Section("Side by side", [*comparison(groups), *speed_up(groups)]),
        Section("What failed", failed(job)),
        Section("Runs", [runs_table(job)]),
        Section("On what", [run_page.machine(first.results[0])] if first else []),
    ]
    words = " ".join(f"{name}={text}" for name, text in job.settings.items())
    lead = [f"make sweep {words}", progress(job), *where(groups), *job.notes]
    return Page(f"Sweep {job.folder.name}", lead, [section for section in sections if section.items])


def where(groups: list[Group]) -> list[str]:
    """On what the runs ran, which decides what a speed-up means."""
    first = {g.results[0].runtime: g.results[0] for g in reversed(groups) if g.results}
    return [machine_sentence(first[name]) for name in sorted(first)]


def machine_sentence(result: Result) -> str:
    """Which cores the ranks of a run had."""
    runtime = capabilities.of(result.runtime)
    words = f"RUNTIME={runtime.name}"
    if runtime.shares_machine:
        return f"{words}: ranks share this machine's cores and loopback; few ranks have more threads each."
    if not runtime.has_limits:
        return words
    shares = dict.fromkeys(f"{limit.cpus:g} cores" for limit in result.limits if limit.cpus)
    cores = " and ".join(shares) or "its share of the cores"
    return f"{words}: a node has {cores}, however many take part; the workers of one node share them."


def progress(job: Sweep) -> str:
    """How much of it is finished."""
    finished = sum(job.is_finished(*which) for which in job.order())
    return f"{finished} of {job.total} runs finished, {len(job.failures())} failed."


def comparison(groups: list[Group], name: str = "compare") -> list[Item]:
    """The comparison as tables, and phases as bars."""
    items: list[Item] = [*tables(groups, name=name).values()]
    timed = [row for row in rows(groups) if row["step_seconds"]]
    if timed:
        parts = {PHASE_NAMES.get(p, p): [row[f"{p}_seconds"].value for row in timed] for p in PHASES}
        labels = [row["label"] for row in timed]
        items.append(Bars(f"{name}-steps", "A step by phase, mean of the workers", "seconds", labels, parts))
    return items


def speed_up(groups: list[Group], name: str = "speed-up", what: figures.RateOf = "step") -> list[Lines]:
    """Speed-up over one node, of one of figures.RATES, against the workers: a line per strategy, and the ideal one."""
    lines: dict[str, list[tuple[int, Estimate]]] = {}
    for group in groups:
        base = figures.baseline(group, groups) if group.results else None
        estimate = figures.speed_up(group, base, what) if base else None
        if estimate:
            workers = len(group.results[0].workers)
            lines.setdefault(family(group), []).append((workers, estimate))
    lines = {label: sorted(points, key=lambda p: p[0]) for label, points in lines.items()}
    lines = {label: points for label, points in lines.items() if len({n for n, _ in points}) == len(points) > 1}
    if not lines:
        return []
    most = max(n for points in lines.values() for n, _ in points)
    series = [Series("ideal", [1, most], [1, most], ideal=True)]
    for label, points in lines.items():
        x, y = [n for n, _ in points], [estimate for _, estimate in points]
        series.append(Series(label, x, [e.value for e in y], [e.low for e in y], [e.high for e in y]))
    title = f"Speed-up over one node ({RATES[what]}), with 95 % intervals"
    return [Lines(f"{name}-plot", title, "workers", "speed-up", series, whole_x=True)]


def family(group: Group) -> str:
    """What runs of one line have in common: all but the number of workers, and a batch that grows with it."""
    spec, workers = group.spec, len(group.results[0].workers)
    strategy = SYNCS.get(spec.sync)
    batch = f"batch {spec.batch}"
    if strategy and strategy.batch_per_worker and spec.batch % workers == 0:
        batch = f"batch {spec.batch // workers} a worker"
    return f"{spec.sync} {spec.model} {batch}"


def failed(job: Sweep) -> list[Table]:
    """What failed when it was last tried, and why."""
    names = texts(job.cells)
    cells: list[list[Value]] = [[names[t.cell], t.repeat, t.error] for t in job.failures()]
    return [Table("failed", "Failed runs", ["cell", "repeat", "why"], cells)] if cells else []


def runs_table(job: Sweep) -> Table:
    """Every run by its id: its folder lies beside this page."""
    names = texts(job.cells)
    cells: list[list[Value]] = []
    for cell, repeat in job.order():
        last = job.last(cell, repeat)
        state = "open"
        if last:
            state = "failed" if last.error else "finished"
        cells.append([names[cell], repeat, state, last and last.run, last and last.seconds])
    places = [None, None, None, None, 1]
    return Table("runs", "In the order in which they ran", ["cell", "repeat", "", "run", "s"], cells, places)
