"""Metrics as text, of which each scrape makes the values alone.

prometheus-client writes every series once, and its line is kept without the value: names, labels and help texts stay
the same from scrape to scrape, and to write them again took a third of what an agent costs.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.utils import floatToGoString

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"  # the one that every Prometheus reads


class Series(NamedTuple):
    """A series as text."""

    head: str  # its metric's # HELP and # TYPE
    line: str  # name, labels and a blank: what comes before the value


@lru_cache(maxsize=8192)  # more than a node's ranks have; those of former runs go
def series(kind: str, metric: str, text: str, name: str, labels: tuple[tuple[str, str], ...] = ()) -> Series:
    """The series `name` of a metric; `kind` and `metric` as prometheus-client has them: a counter's without _total.

    Raises ValueError where prometheus-client does not know the kind.
    """
    family = Metric(metric, text, kind)
    family.add_sample(name, dict(labels), 0)
    *head, line, _ = generate_latest(_One(family)).decode().split("\n")
    return Series("\n".join(head) + "\n", line.removesuffix("0.0"))


class _One:
    """A collector of one metric."""

    def __init__(self, family: Metric):
        self._family = family

    def collect(self) -> list[Metric]:
        return [self._family]


def page(samples: Iterable[tuple[Series, float]]) -> bytes:
    """The samples in the text format, those of a metric together."""
    metrics: dict[str, list[str]] = {}
    for (head, line), value in samples:
        metrics.setdefault(head, [head]).append(f"{line}{floatToGoString(value)}\n")
    return "".join(text for lines in metrics.values() for text in lines).encode()
