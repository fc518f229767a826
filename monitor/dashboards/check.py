"""`syncbed dashboards-check`: every query of every dashboard, its variables filled in, asked of the real Prometheus.

Grafana asks what stands in the panels; this asks the same without it, over the time of a run, and says what came back.
A query without data is a fault, unless its panel says when it may be empty (`empty=` in monitor/dashboards).
"""

import json
import math
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from rich.table import Table

from monitor import console
from monitor.dashboards.parts import MAY_BE_EMPTY, RUN_INFO
from monitor.dashboards.render import DASHBOARDS
from monitor.engine import containers, naming, sdk
from monitor.engine.naming import project
from monitor.errors import RunFailed, UserError, refuse_unknown
from monitor.metrics import prometheus
from monitor.metrics.promql import escaped_pattern

SETTINGS = {
    "RUN": "the run whose time is looked at: an id, or latest, which is the default",
    "PROJECT": "name of the cluster; default: syncbed",
}
_LOOK_BACK = "12h"  # what Prometheus keeps
_RULES_SECONDS = 7.0  # from a figure's scrape until what rules make of it, each 5 s, can be asked for
_MOST_POINTS = 3600  # of a curve; Grafana asks for as many as its panel is wide, or says


@dataclass(frozen=True)
class Window:
    """A run's time, in Unix seconds: while Prometheus saw it."""

    run: str
    start: float
    end: float

    @property
    def step_seconds(self) -> int:
        """Between two points of a curve."""
        return max(1, math.ceil((self.end - self.start) / _MOST_POINTS))

    def fill(self, query: str) -> str:
        """A query as Grafana sends it: this run chosen, all nodes, this time."""
        values = {
            "__rate_interval": f"{max(4, self.step_seconds + 1)}s",  # of a scrape interval of 1 s
            "__interval": f"{self.step_seconds}s",
            "__range": f"{max(1, math.ceil(self.end - self.start))}s",
            "run": escaped_pattern(self.run),
            "node": ".*",
            "model": ".*",
        }
        return re.sub(r"\$(\w+)", lambda match: values[match[1]], query)


@dataclass(frozen=True)
class Query:
    """One query of a dashboard. `empty`: why it may be without data; "" where it may not."""

    dashboard: str
    panel: str
    legend: str
    expression: str
    instant: bool
    empty: str


@dataclass(frozen=True)
class Answer:
    """What came back: the number of series with data, and the last value of one that goes on to the end."""

    query: Query
    series: int
    last: float | None

    @property
    def missing(self) -> bool:
        """No data, and nothing that excuses it."""
        return not self.series and not self.query.empty


def command(settings: dict[str, str], args) -> int:
    """CLI `dashboards-check`. 0: every query has data, or may be without. RunFailed names the panels that lack it."""
    refuse_unknown(settings, SETTINGS)
    name = project(settings)
    client = sdk.connect()
    with sdk.guard():
        url = containers.urls(client, name).get("prometheus")
    if url is None:
        raise UserError(f"no Prometheus runs in cluster {name}: make cluster-up{naming.words(name)} starts one")
    try:
        window, answers = _ask_all(url, settings.get("RUN", "latest"), naming.words(name))
    except prometheus.NotAnswering as error:
        raise RunFailed(f"Prometheus at {url}: {error}") from None
    if args.json:
        queries = [asdict(answer.query) | _facts(answer) for answer in answers]
        print(json.dumps(asdict(window) | {"queries": queries}))
    else:
        _show(answers, window)
    panels = dict.fromkeys(f"{a.query.dashboard} / {a.query.panel}" for a in answers if a.missing)
    if panels:
        raise RunFailed(f"no data for run {window.run} in: {', '.join(panels)}")
    return 0


def _ask_all(url: str, run: str, words: str) -> tuple[Window, list[Answer]]:
    """Once; of a run that goes on or has just ended again, until nothing is missing or rules had the time to see it."""
    until = time.monotonic() + _RULES_SECONDS
    while True:
        window = find(url, run, words)
        answers = [ask(url, query, window) for query in queries()]
        settled = time.monotonic() >= until or time.time() >= window.end + _RULES_SECONDS
        if settled or not any(answer.missing for answer in answers):
            return window, answers
        time.sleep(1)


def find(url: str, run: str, words: str = "") -> Window:
    """The time of a run, or of the latest. Raises UserError when Prometheus knows no such run, NotAnswering.

    `words`: what names the cluster behind `make run`.
    """
    runs = windows(url)
    if not runs:
        raise UserError(f"Prometheus has seen no run yet: make run SYNC=ddp STEPS=100{words} is one")
    if run == "latest":
        return runs[max(runs, key=lambda name: runs[name].end)]
    if run not in runs:
        raise UserError(f"RUN={run}: Prometheus knows no such run; the latest are {', '.join(sorted(runs)[-3:])}")
    return runs[run]


def windows(url: str) -> dict[str, Window]:
    """Every run that Prometheus has seen, by its id. Raises NotAnswering."""
    timestamps = f'timestamp({RUN_INFO}{{run!=""}})[{_LOOK_BACK}:1s]'
    first, last = (
        {series["metric"]["run"]: float(series["value"][1]) for series in prometheus.query(url, expression)}
        for expression in (f"min by (run) (min_over_time({timestamps}))", f"max by (run) (max_over_time({timestamps}))")
    )
    return {run: Window(run, first[run], last[run]) for run in first.keys() & last.keys()}


def queries() -> Iterator[Query]:
    """Every query of every dashboard, those of annotations and variables included, as the dashboards' code has them."""
    for build in DASHBOARDS.values():
        board = build()
        without = {}  # by variable: why there may be none of it
        for variable in board["templating"]["list"]:
            (metric,) = re.findall(r"^label_values\((\w+), \w+\)$", variable["definition"])
            _, _, without[variable["name"]] = variable["description"].partition(MAY_BE_EMPTY)
            empty = without[variable["name"]]
            yield Query(board["title"], f"variable {variable['name']}", variable["name"], metric, False, empty)
        for note in board["annotations"]["list"]:
            empty = "".join(without[name] for name in variables(note["expr"]))
            yield Query(board["title"], f"annotation {note['name']}", note["titleFormat"], note["expr"], False, empty)
        for panel in board["panels"]:
            _, _, empty = panel.get("description", "").partition(MAY_BE_EMPTY)
            for target in panel.get("targets", ()):
                legend, expression, instant = (target[key] for key in ("legendFormat", "expr", "instant"))
                yield Query(board["title"], panel["title"], legend, expression, instant, empty)


def variables(expression: str) -> list[str]:
    """The dashboard's variables that an expression uses."""
    return [name for name in re.findall(r"\$(\w+)", expression) if not name.startswith("__")]


def ask(url: str, query: Query, window: Window) -> Answer:
    """Ask it as Grafana would. Raises NotAnswering, which names the query when Prometheus refuses it."""
    try:
        curves = results(url, query, window)
    except prometheus.NotAnswering as error:
        raise prometheus.NotAnswering(f"{query.dashboard} / {query.panel}: {error}") from None
    points = [[value for value in values if math.isfinite(value[1])] for _, values in curves]
    ends = [values[-1] for values in points if values]
    return Answer(query, len(ends), max(ends, key=lambda end: end[0])[1] if ends else None)


def results(url: str, query: Query, window: Window) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
    """(labels, [(Unix seconds, value)]) of each series that the query has in the window. Raises NotAnswering."""
    expression = window.fill(query.expression)
    if not query.instant:  # all points of the window at once
        expression = f"({expression})[{window.fill('$__range')}:{window.fill('$__interval')}]"
    return [
        (series["metric"], [(float(t), float(v)) for t, v in series.get("values") or [series["value"]]])
        for series in prometheus.query(url, expression, window.end)
    ]


def _facts(answer: Answer) -> dict:
    return {"series": answer.series, "last": answer.last, "missing": answer.missing}


def _show(answers: list[Answer], window: Window) -> None:
    screen = console.console()
    seconds = window.end - window.start
    when = time.strftime("%H:%M:%S", time.localtime(window.start))
    screen.print(f"run {window.run}, {seconds:.0f} s from {when}", highlight=False)
    table = Table("dashboard", "panel", "query", box=None, header_style="bold", pad_edge=False)
    table.add_column("series", justify="right")
    table.add_column("last value", justify="right")
    table.add_column("")
    for answer in answers:
        query = answer.query
        last = "-" if answer.last is None else f"{answer.last:.6g}"
        if answer.missing:
            remark = "NO DATA"
        elif answer.series:
            remark = ""
        else:
            remark = f"none: {query.empty.rstrip('.')}"
        table.add_row(query.dashboard, query.panel, query.legend, str(answer.series), last, remark)
    screen.print(table)
