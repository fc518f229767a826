"""A run's CPU, memory, network and training figures over time: one row per node and second, as in metrics.csv.

With containers the rows come from Prometheus (prometheus.py). Without, a Sampler asks each agent once a second:

    sampler = Sampler()
    sampler.keep(path)                       # from now on each row is added there as it comes, for the live page
    sampler.watch("local-0", agent.stdout)   # where the agent prints the port it got
    ...
    sampler.stop()
    write_csv(path, sampler.rows())
"""

import csv
import http.client
import io
import json
import math
import re
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from io import RawIOBase
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import IO, Any

from prometheus_client.parser import text_string_to_metric_families

from monitor.clock import CLOCK
from trainer.files import added_to, write_whole


@dataclass(frozen=True, kw_only=True)
class Row:
    """One scrape of one node; the fields are the columns of metrics.csv. None: the scrape did not have it.

    Columns that end in _total only grow. Network is the sum over the node's interfaces; training_step is the furthest
    of the node's ranks and training_loss their mean.
    """

    time: float  # Unix seconds of the scrape
    node: str
    cpu_seconds_total: float | None = None
    cpu_throttled_seconds_total: float | None = None
    memory_working_set_bytes: float | None = None
    memory_usage_bytes: float | None = None
    memory_peak_bytes: float | None = None
    network_receive_bytes_total: float | None = None
    network_transmit_bytes_total: float | None = None
    network_receive_packets_total: float | None = None
    network_transmit_packets_total: float | None = None
    training_step: float | None = None
    training_loss: float | None = None


HEADER = tuple(field.name for field in fields(Row))
# metric name: column. Every column but the first two is one metric.
METRICS = {f"syncbed_{name if name.startswith('training') else 'node_' + name}": name for name in HEADER[2:]}
_LINES = re.compile(rf"^(?:{'|'.join(METRICS)})[{{ ].*$", re.MULTILINE)  # the few of a scrape that have a column
GAP_SECONDS = 4.0
ANSWER_SECONDS = 1.0  # in which an agent answers; one that is later is asked again
_COMBINE = {"training_step": max, "training_loss": fmean}  # the others: the sum over modes or interfaces


def make_row(when: float, node: str, samples: Iterable[tuple[str, float]]) -> Row:
    """The row of one scrape, from (metric name, value) pairs, without other metrics and values that are not finite."""
    values: dict[str, list[float]] = {}
    for name, value in samples:
        if name in METRICS and math.isfinite(value):
            values.setdefault(METRICS[name], []).append(value)
    return Row(time=when, node=node, **{column: _COMBINE.get(column, sum)(v) for column, v in values.items()})


class Sampler:
    """Asks agents for their metrics once a second, each in a thread of its own. A scrape that fails is a gap."""

    def __init__(self, interval_seconds: float = 1.0):
        self._interval = interval_seconds
        self._rows: list[Row] = []
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        self._file: RawIOBase | None = None

    def keep(self, path: Path) -> None:
        """Add each row to this new file as it comes, until `close`; another one is not begun before that.

        Where that cannot be, `rows` has them all the same.
        """
        if self._file:
            return
        with suppress(OSError):
            self._file = added_to(path)
            self._file.write(_text([HEADER]))

    def watch(self, node: str, announced: IO) -> None:
        """Sample the agent that prints {"port": n} as the first line of this stream. Returns at once."""
        arguments = node, announced, self._stopped
        thread = threading.Thread(target=self._sample, args=arguments, daemon=True, name=f"sampler {node}")
        self._threads.append(thread)
        thread.start()

    def rows(self) -> list[Row]:
        """What was seen so far, by time."""
        return sorted(self._rows, key=lambda row: (row.time, row.node))

    def stop(self) -> None:
        """Scrape each agent once more, and no more after that; others may be watched then. Returns when that is done,
        within seconds.
        """
        self._stopped.set()
        for thread in self._threads:
            thread.join(2 * ANSWER_SECONDS)  # an agent that never announced its port is not waited for longer
        self._stopped, self._threads = threading.Event(), []

    def close(self) -> None:
        """Add no more rows to the file."""
        if self._file:
            self._file.close()
            self._file = None

    def _sample(self, node: str, announced: IO, stopped: threading.Event) -> None:
        try:
            port = json.loads(announced.readline())["port"]
        except (ValueError, KeyError, TypeError, OSError):
            return  # the agent died before it listened
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS)
        due, last = time.monotonic(), False
        while not last:  # one comes after the stop: what was counted until then
            last = stopped.wait(max(0.0, due - time.monotonic()))
            due = max(due + self._interval, time.monotonic())
            try:
                row = scrape(connection, node)
            except (OSError, http.client.HTTPException, ValueError):
                connection.close()  # opens again with the next request
                continue
            self._rows.append(row)
            if self._file:
                with suppress(OSError, ValueError):  # the disk is full; it was closed meanwhile
                    self._file.write(_text([_cells(row)]))
        connection.close()


def scrape(connection: http.client.HTTPConnection, node: str) -> Row:
    """One GET /metrics. Raises OSError, HTTPException, or ValueError when the answer is not metrics."""
    when = CLOCK.now()
    connection.request("GET", "/metrics")
    answer = connection.getresponse()
    text = answer.read().decode()
    if answer.status != 200:
        raise ValueError(f"agent of {node} answered {answer.status}")
    lines = _LINES.findall(text)  # to parse all would cost milliseconds of each second, for each node
    if not lines:
        raise ValueError(f"agent of {node} answered with something else than metrics")
    families = text_string_to_metric_families("\n".join(lines) + "\n")
    samples = [(s.name, s.value) for family in families for s in family.samples]
    return make_row(round(when, 3), node, samples)


def write_csv(path: Path, rows: Iterable[Row]) -> None:
    """Write the rows under a header, whole or not at all. What is not known is an empty field."""
    write_whole(path, _text([HEADER, *map(_cells, rows)]))


def read_rows(lines: Iterable[str]) -> Iterator[Row]:
    """The rows of metrics.csv, from its lines, the header first. Rows that are cut short or not finite, and columns
    that are not known, are passed over. Raises csv.Error.
    """
    for line in csv.DictReader(lines):
        try:
            values: dict[str, Any] = {n: v if n == "node" else float(v) for n, v in line.items() if n in HEADER and v}
            if all(math.isfinite(v) for n, v in values.items() if n != "node"):
                yield Row(**values)
        except (TypeError, ValueError):
            continue


def _text(lines: Iterable[Iterable[str]]) -> bytes:
    """Cells as lines of CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue().encode()


def _cells(row: Row) -> list[str]:
    return [_cell(getattr(row, name)) for name in HEADER]


def _cell(value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return str(int(value)) if float(value).is_integer() else str(round(value, 6))


def summarise(rows: Iterable[Row], node: str) -> dict[str, float | None]:
    """One node's run in a few numbers; None where the rows do not say.

    peak_cpu_percent: highest over one interval between scrapes, 100 is one core. cpu_seconds, throttled_seconds,
    network_*_bytes: growth from the first row to the last. peak_memory_bytes: highest working set. Bytes are ints.
    """
    rows = sorted((row for row in rows if row.node == node), key=lambda row: row.time)
    memory = [row.memory_working_set_bytes for row in rows if row.memory_working_set_bytes is not None]
    return {
        "peak_cpu_percent": _peak_percent(rows),
        "cpu_seconds": _growth(rows, "cpu_seconds_total"),
        "throttled_seconds": _growth(rows, "cpu_throttled_seconds_total"),
        "peak_memory_bytes": _whole(max(memory, default=None)),
        "network_received_bytes": _whole(_growth(rows, "network_receive_bytes_total")),
        "network_sent_bytes": _whole(_growth(rows, "network_transmit_bytes_total")),
    }


def missing(rows: Iterable[Row], nodes: Iterable[str], start: float, end: float) -> dict[str, float]:
    """Seconds of the run, from `start` to `end` (Unix seconds), that rows do not cover, by node; only nodes with some.

    Rows are a second apart. One that is late or lost now and then is no gap: only more than GAP_SECONDS count.
    """
    times: dict[str, list[float]] = {node: [] for node in nodes}
    for row in rows:
        if row.node in times and start <= row.time <= end:
            times[row.node].append(row.time)
    seconds_missing = {}
    for node, moments in times.items():
        apart = (later - before for before, later in pairwise([start, *sorted(moments), end]))
        seconds = sum(gap - 1.0 for gap in apart if gap > GAP_SECONDS)
        if seconds:
            seconds_missing[node] = round(seconds, 1)
    return seconds_missing


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _growth(rows: list[Row], column: str) -> float | None:
    """How much a counter grew. A fall means that the node was started again and counts from 0."""
    values = [v for row in rows if (v := getattr(row, column)) is not None]
    if len(values) < 2:
        return None
    return round(sum(new - old if new >= old else new for old, new in pairwise(values)), 6)


def _peak_percent(rows: list[Row]) -> float | None:
    """Of a counter that falls the node was started again: no peak is taken from it."""
    percents: list[float] = []
    base: tuple[float, float] | None = None  # seconds, and CPU seconds
    for row in rows:
        if row.cpu_seconds_total is None:
            continue
        # Counters move in ticks of 10 ms: over a short time one tick would look like a peak.
        if base is not None and row.time - base[0] < 0.5:
            continue
        if base is not None and row.cpu_seconds_total >= base[1]:
            percents.append(100 * (row.cpu_seconds_total - base[1]) / (row.time - base[0]))
        base = row.time, row.cpu_seconds_total
    return round(max(percents), 1) if percents else None
