"""CPU, memory, network and packets of a run's nodes over time."""

from monitor import capabilities
from monitor.conditions.faults import AT_ONCE
from monitor.metrics.rates import rates, values
from monitor.metrics.sampling import Row
from monitor.report.load import Run
from monitor.report.plots import Lines, Series, Span
from trainer.spec import MAX_NODES

MOST_SPANS = 50  # that can be told from each other


def over_time(run: Run) -> list[Lines]:
    """CPU, memory, network and packets of each node, with the run's phases marked."""
    if not run.rows:
        return []
    zero = run.began or run.rows[0].time
    spans, marks = time_spans(run, zero), fault_marks(run)
    seconds = "seconds since the first step began" if run.began else "seconds since the first look at a node"
    quantities = (
        ("cpu", "CPU", "% of one core", lambda rows: rates(rows, "cpu_seconds_total", 100)),
        ("memory", "Memory, working set", "MB", lambda rows: values(rows, "memory_working_set_bytes", 1e-6)),
        ("received", "Network received", "MB/s", lambda rows: rates(rows, "network_receive_bytes_total", 1e-6)),
        ("sent", "Network sent", "MB/s", lambda rows: rates(rows, "network_transmit_bytes_total", 1e-6)),
        ("packets-received", "Packets received", "1/s", lambda rows: rates(rows, "network_receive_packets_total", 1)),
        ("packets-sent", "Packets sent", "1/s", lambda rows: rates(rows, "network_transmit_packets_total", 1)),
    )
    plots = []
    for name, title, unit, take in quantities:
        series = []
        for node, rows in by_node(run.rows).items():
            times, curve = take(rows)
            if any(value is not None for value in curve):
                series.append(Series(node, [time - zero for time in times], curve))
        if series:
            plots.append(Lines(f"node-{name}", title, seconds, unit, series, spans[:MOST_SPANS], marks[:MOST_SPANS]))
    return plots


def by_node(rows: list[Row]) -> dict[str, list[Row]]:
    """The rows of each node, by its name; of so many nodes as a run has at most."""
    nodes: dict[str, list[Row]] = {}
    for row in rows:
        if row.node in nodes or len(nodes) < MAX_NODES:
            nodes.setdefault(row.node, []).append(row)
    return dict(sorted(nodes.items()))


def loopback(run: Run) -> list[str]:
    """What a reader must know of the network curves where nodes share one machine."""
    runtime = capabilities.of(run.result.runtime)
    if not (runtime.shares_machine and run.rows):
        return []
    return [
        f"RUNTIME={runtime.name}: all nodes share this machine's loopback, so their network and packet curves are one."
    ]


def time_spans(run: Run, zero: float) -> list[Span]:
    """Start-up, training, restarts and evaluation on the time axis that begins at `zero`."""
    if not run.began:
        return []
    first, last = min(row.time for row in run.rows), max(row.time for row in run.rows)
    ends = max((event.time for event in run.trained.values()), default=None)
    spans = [Span("start-up", first - zero, 0.0)] if first < zero else []
    begins = zero
    for restart, first_step in run.restarts:  # a restart, and the first step after it if there was one
        again = first_step or last
        spans += [Span("training", begins - zero, restart - zero), Span("restart", restart - zero, again - zero)]
        begins = again
    spans.append(Span("training", begins - zero, (ends or last) - zero))
    if ends and last > ends:
        spans.append(Span("evaluation", ends - zero, last - zero))
    return spans


def fault_marks(run: Run) -> list[Span]:
    """The faults of the run on the time axis that begins with the first step, each by its kind and target; one that
    does not last is a moment.
    """
    marks = []
    for record in run.result.faults:
        if record.began_seconds is None:
            continue
        end = record.ended_seconds
        if end is None or record.fault.split(":")[0] in AT_ONCE:
            end = record.began_seconds
        marks.append(Span(record.fault.split("@")[0], record.began_seconds, end))
    return marks
