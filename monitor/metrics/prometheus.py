"""A run's window, read back from the cluster's Prometheus through its HTTP API.

Asks for the scrapes themselves (a range selector in an instant query), not for values at regular times: Prometheus
fills those from up to five minutes back, which would hide every gap.
"""

import http.client
import json
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Collection, Iterator
from functools import reduce
from operator import getitem
from typing import Any, TypeVar

from monitor.metrics.sampling import METRICS, Row, make_row

WAIT_SECONDS = 10.0  # for the last scrape of a run: one scrape interval, with room for a busy machine
_PAGE_SECONDS = 600  # keeps an answer of 16 nodes at a few MB
_RETRY_SECONDS = 0.25
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy for the internet cannot reach it
_NAMES = "|".join(METRICS)
T = TypeVar("T")
Samples = dict[tuple[str, float], list[tuple[str, float]]]  # by node and Unix seconds: name and value of each
# When each node was last scraped. A busy node answers late now and then, and a good scrape follows; one that is gone
# answers none, and is not waited for longer than this.
_GONE_SECONDS = 3
_LAST = f'timestamp(up{{job="node"}}) - {_GONE_SECONDS} * (up{{job="node"}} == bool 0)'


class NotAnswering(Exception):
    """Prometheus did not give an answer that can be used; str() says why."""


def _warn(message: str) -> None:
    print(f"warning: {message}", file=sys.stderr)


def window(
    url: str,
    start: float,
    end: float,
    step_seconds: float = 1.0,
    nodes: Collection[str] = (),
    wait_seconds: float = WAIT_SECONDS,
    warn: Callable[[str], None] = _warn,
) -> list[Row]:
    """The scrapes of every node from one step before `start` to one step after `end` (Unix seconds), by time.

    At most one row per node and step, the last one; a step without a scrape has no row. The step before and the step
    after are there so that a counter's growth covers the whole run; so is the first scrape after `end` of a node whose
    scrapes come late. Waits until Prometheus holds a scrape at or after `end` of every one of `nodes` (none named: of
    every node it knows), at most `wait_seconds`. Never raises for a Prometheus that is late, away or broken: `warn` is
    called, and what could be read is returned.
    """
    deadline = time.monotonic() + wait_seconds
    try:
        last_scrapes = _retry(lambda: _last(url, nodes), deadline, until=lambda times: min(times.values()) >= end)
        if late := sorted(node for node, when in last_scrapes.items() if when < end):
            warn(f"Prometheus has no scrape of {', '.join(late)} since the run ended; metrics.csv lacks its end")
        stop = max(end + step_seconds, min(max(last_scrapes.values()), end + wait_seconds))
        # One that has just answered gets a moment for the data too, however long the wait was.
        deadline = max(deadline, time.monotonic() + 2.0)
        samples: Samples = {}
        for first, last in _pages(start - step_seconds, stop):
            _sort_in(samples, _retry(lambda a=first, b=last: _range(url, a, b), deadline))
    except NotAnswering as error:
        warn(f"Prometheus at {url} does not answer ({error}); metrics.csv is empty")
        return []
    return _rows(samples, start, end, step_seconds)


def scrapes(url: str, first: float, last: float) -> list[Row]:
    """Every scrape of every node after `first`, up to and with `last` (Unix seconds), by time. Raises NotAnswering."""
    samples: Samples = {}
    for begin, end in _pages(first, last):
        _sort_in(samples, _range(url, begin, end))
    rows = (make_row(when, node, values) for (node, when), values in samples.items())
    return sorted(rows, key=lambda row: (row.time, row.node))


def _sort_in(samples: Samples, series: list[dict]) -> None:
    for line in series:
        name, node = line["metric"]["__name__"], line["metric"].get("node", "")
        for when, value in line["values"]:
            samples.setdefault((node, when), []).append((name, float(value)))


def _rows(samples: Samples, start: float, end: float, step_seconds: float) -> list[Row]:
    """The last scrape of each node and step; after the step that follows `end`, a node's first one only."""
    newest: dict[tuple[str, float], Row] = {}
    complete = set()  # nodes with a scrape at or after `end`
    for (node, when), values in sorted(samples.items()):
        if start - step_seconds <= when and (when <= end + step_seconds or node not in complete):
            newest[node, when // step_seconds] = make_row(when, node, values)
        if when >= end:
            complete.add(node)
    return sorted(newest.values(), key=lambda row: (row.time, row.node))


def _last(url: str, nodes: Collection[str]) -> dict[str, float]:
    """When each of these nodes, or every one that it knows, was last scraped; of failed scrapes those of some seconds
    before count. 0.0: never.
    """
    last = {s["metric"].get("node", ""): float(s["value"][1]) for s in query(url, _LAST)}
    return {node: last.get(node, 0.0) for node in set(nodes) or last or {"any node"}}


def _range(url: str, first: float, last: float) -> list[dict]:
    """Every scrape after `first`, up to and with `last`, of the metrics that have a column."""
    milliseconds = max(1, round(1000 * (last - first)))  # a range of 0 is refused
    return query(url, f'{{job="node",__name__=~"{_NAMES}"}}[{milliseconds}ms]', last)


def _pages(start: float, end: float) -> Iterator[tuple[float, float]]:
    while start < end:
        yield start, min(start + _PAGE_SECONDS, end)
        start += _PAGE_SECONDS


def query(url: str, expression: str, when: float | None = None) -> list[dict]:
    """The result of one instant query. Raises NotAnswering."""
    form = {"query": expression}
    if when is not None:
        form["time"] = f"{when:.3f}"
    return _ask(url, "query", form, "data", "result")


def series(url: str, start: float, end: float) -> list[dict[str, str]]:
    """The labels, __name__ among them, of every series that may have samples in this time. Raises NotAnswering."""
    return _ask(url, "series", {"match[]": '{__name__!=""}', "start": f"{start:.3f}", "end": f"{end:.3f}"}, "data")


def _ask(url: str, what: str, form: dict[str, str], *keys: str) -> Any:
    """What the HTTP API answers, below these keys. Raises NotAnswering."""
    request = urllib.request.Request(f"{url.rstrip('/')}/api/v1/{what}", urllib.parse.urlencode(form).encode())
    try:
        with _OPENER.open(request, timeout=5) as answer:
            return reduce(getitem, keys, json.load(answer))
    except urllib.error.HTTPError as error:
        raise NotAnswering(f"HTTP {error.code}: {error.read(200).decode(errors='replace').strip()}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NotAnswering(str(getattr(error, "reason", error)) or type(error).__name__) from None
    except http.client.HTTPException as error:  # an answer that is cut short while Prometheus stops
        raise NotAnswering(f"{type(error).__name__}: {error}") from None


def _retry(ask: Callable[[], T], deadline: float, until: Callable[[T], bool] = lambda answer: True) -> T:
    """Ask until the answer is as wanted or time is up. Returns the last answer; raises NotAnswering if it was none."""
    while True:
        try:
            answer = ask()
            if until(answer) or time.monotonic() + _RETRY_SECONDS > deadline:
                return answer
        except NotAnswering:
            if time.monotonic() + _RETRY_SECONDS > deadline:
                raise
        time.sleep(_RETRY_SECONDS)
