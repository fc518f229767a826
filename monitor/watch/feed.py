"""What a run that goes on writes, as it comes: events.jsonl and metrics.csv as they grow; its cluster's Prometheus."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from monitor.metrics import prometheus
from monitor.metrics.sampling import HEADER, Row, read_rows
from monitor.runtime.base import Lines
from monitor.watch.facts import Facts
from trainer.events import LINE_BYTES
from trainer.received import open_received

MOST_BYTES = 1 << 20  # read at once
LATE_SECONDS = 5.0  # a scrape is there so long after its time, on a busy machine
MOST_SECONDS = 1800.0  # how far back Prometheus is asked; its answers are large


class Tail:
    """The lines that are added to a file. It need not be there yet."""

    def __init__(self, path: Path):
        self._path = path
        self._file: BinaryIO | None = None
        self._lines = Lines(LINE_BYTES)

    def read(self) -> Iterator[list[str]]:
        """What was added since the last call, some lines at a time. Raises OSError."""
        if self._file is None:
            try:
                self._file = open_received(self._path)
            except FileNotFoundError:
                return
        while data := self._file.read(MOST_BYTES):
            yield self._lines.feed(data)

    def close(self) -> None:
        if self._file:
            self._file.close()


class FileRows:
    """Rows of the nodes, from the metrics.csv of a run whose orchestrator samples them."""

    problem = ""

    def __init__(self, folder: Path):
        self._tail = Tail(folder / "metrics.csv")

    def read(self) -> Iterator[list[Row]]:
        """Those that are new, some at a time. Raises OSError."""
        for lines in self._tail.read():
            yield list(read_rows([",".join(HEADER), *lines]))  # the file's own header is no row

    def close(self) -> None:
        self._tail.close()


class ScrapedRows:
    """Rows of the nodes, from the Prometheus that scrapes them. It is asked every second time: it takes CPU."""

    problem = ""
    """Why there are none; empty when there are."""

    def __init__(self, facts: Facts, url: str):
        self._url = url
        self._from = facts.began
        self._last: dict[str, float] = dict.fromkeys(facts.nodes, self._from)
        self._turn = 0

    def read(self) -> Iterator[list[Row]]:
        """Those that are new. Blocks while Prometheus is asked."""
        self._turn += 1
        if self._turn % 2 == 0:
            return
        now = time.time()
        try:
            rows = prometheus.scrapes(self._url, max(self._from, now - MOST_SECONDS), now)
        except prometheus.NotAnswering as error:
            self.problem = f"Prometheus at {self._url} does not answer ({error}): figures of nodes are missing"
            return
        self.problem = ""
        self._from = max(self._from, now - LATE_SECONDS)
        new = [row for row in rows if row.time > self._last.get(row.node, now)]
        self._last |= {row.node: row.time for row in new}
        yield new

    def close(self) -> None:
        pass


def rows_of(facts: Facts) -> FileRows | ScrapedRows:
    """Where the figures of this run's nodes come from."""
    if facts.prometheus:
        return ScrapedRows(facts, facts.prometheus)
    return FileRows(Path(facts.folder))
