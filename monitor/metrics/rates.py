"""Figures of one node as curves: counters as rates between two scrapes, gauges as they are. A gap is None."""

from itertools import pairwise

from monitor.metrics.sampling import Row

SHORT_SECONDS = 0.5  # between two scrapes that tell a rate
LONG_GAP_SECONDS = 3.0  # between two scrapes of a node: the line is broken there


def rate(before: Row, after: Row, column: str, scale: float, gap_seconds: float = LONG_GAP_SECONDS) -> float | None:
    """Growth of a counter per second from one scrape to a later one; None over a gap, and of a counter that fell."""
    old, new, span = getattr(before, column), getattr(after, column), after.time - before.time
    if old is None or new is None or new < old or span > gap_seconds:
        return None
    return scale * (new - old) / span


def rates(rows: list[Row], column: str, scale: float) -> tuple[list[float], list[float | None]]:
    """The rate of a counter between each two scrapes, at the time of the later one.

    Scrapes at nearly one time are taken as one: counters move in ticks of 10 ms, and a tick would read as a peak.
    """
    apart = rows[:1]
    for row in rows[1:]:
        if row.time - apart[-1].time >= SHORT_SECONDS:
            apart.append(row)
    pairs = list(pairwise(apart))
    return [after.time for _, after in pairs], [rate(before, after, column, scale) for before, after in pairs]


def values(rows: list[Row], column: str, scale: float) -> tuple[list[float], list[float | None]]:
    """A gauge at each scrape, with None in the middle of a gap."""
    times, gauge = [], []
    for i, row in enumerate(rows):
        if i and row.time - rows[i - 1].time > LONG_GAP_SECONDS:
            times.append((row.time + rows[i - 1].time) / 2)
            gauge.append(None)
        value = getattr(row, column)
        times.append(row.time)
        gauge.append(None if value is None else scale * value)
    return times, gauge
