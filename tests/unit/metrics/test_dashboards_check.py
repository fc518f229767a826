"""`syncbed dashboards-check` with a Prometheus that answers from a table."""

import json
import re

import pytest

from monitor import cli
from monitor.dashboards import check
from monitor.dashboards.check import Query, Window, queries
from monitor.metrics.prometheus import NotAnswering

RUNS = {"20260101-000000-a": (100.0, 160.0), "20260101-001000-b": (700.0, 760.0)}
EMPTY = [query for query in queries() if query.empty]


class Prometheus:
    """Answers every query with two series, the later ended one with the value 7; `without`: those with no data."""

    def __init__(self, without=()):
        self.without, self.asked = without, []

    def query(self, url, expression, when=None):
        self.asked.append((expression, when))
        if expression.startswith(("min by (run)", "max by (run)")):
            end = expression.startswith("max")
            return [{"metric": {"run": run}, "value": [0, str(seen[end])]} for run, seen in RUNS.items()]
        if any(part in expression for part in self.without):
            return [{"metric": {}, "values": [[when, "NaN"]]}]
        if expression.endswith("s]"):
            points = [[[when - 9, "3"], [when - 8, "4"]], [[when - 1, "6"], [when, "7"], [when, "NaN"]]]
            return [{"metric": {}, "values": values} for values in points]
        return [{"metric": {}, "value": [when - 1, "3"]}, {"metric": {}, "value": [when, "7"]}]


@pytest.fixture
def prometheus(monkeypatch):
    made = Prometheus()
    monkeypatch.setattr("monitor.engine.sdk.connect", lambda: None)
    monkeypatch.setattr("monitor.engine.containers.urls", lambda client, name: {"prometheus": f"http://{name}"})
    monkeypatch.setattr("monitor.metrics.prometheus.query", made.query)
    return made


def say(capsys, *words):
    code = cli.main(["dashboards-check", *words])
    told = capsys.readouterr()
    return code, told.out, told.err


def test_every_query_is_in_the_table_with_its_series_and_last_value(prometheus, capsys):
    code, out, err = say(capsys)
    assert (code, err) == (0, "")
    head, _, *rows = out.splitlines()
    assert head.startswith("run 20260101-001000-b, 60 s from ")
    assert len(rows) == len(list(queries()))
    assert all(re.search(r" 2 +7 *$", row) for row in rows), "two series, and what the last to end ended with"
    asked = prometheus.asked[2:]
    assert {when for _, when in asked} == {760.0}
    assert not any("$" in expression for expression, _ in asked)
    assert len([e for e, _ in asked if e.endswith("[60s:1s]")]) == len([q for q in queries() if not q.instant])


def test_a_query_is_a_line_whatever_its_panel_says_of_being_empty(prometheus, capsys):
    prometheus.without = tuple(query.expression[:20] for query in EMPTY)
    _, out, _ = say(capsys)
    assert len(out.splitlines()) == len(list(queries())) + 2
    assert all(query.empty.rstrip(".") in out for query in EMPTY)


def test_a_run_is_chosen_by_its_id(prometheus, capsys):
    code, out, _ = say(capsys, "RUN=20260101-000000-a", "--json")
    told = json.loads(out)
    assert (code, told["run"], told["start"], told["end"]) == (0, "20260101-000000-a", 100.0, 160.0)
    assert {query["dashboard"] for query in told["queries"]} == {"Cluster", "Training", "Compare", "Serving"}
    assert all((query["series"], query["last"], query["missing"]) == (2, 7.0, False) for query in told["queries"])


def test_panels_without_data_are_named_once_each(prometheus, capsys):
    prometheus.without = ("syncbed_node_memory_peak_bytes", "syncbed_node_network_transmit_drops", "training_loss")
    code, out, err = say(capsys)
    assert code == 1
    named = "Cluster / Memory with page cache, Cluster / Packet drops, Training / Loss, Compare / Loss by step"
    assert err == f"syncbed: no data for run 20260101-001000-b in: {named}\n"
    assert len(re.findall(r" 0 +-  NO DATA *$", out, re.M)) == 4


def test_a_run_of_this_moment_is_asked_again_until_rules_have_seen_it(prometheus, capsys, monkeypatch):
    """Of the rules' figures the first round sees none, nor the second: a run of a few seconds, checked at once."""
    now, slept = 765.0, []

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) == 2:
            prometheus.without = ()

    monkeypatch.setattr("time.time", lambda: now)
    monkeypatch.setattr("time.sleep", sleep)
    prometheus.without = ("rank:syncbed_training_step_seconds",)
    assert say(capsys)[0] == 0
    assert len(slept) == 2
    now, slept[:], prometheus.without = 790.0, [], ("rank:syncbed_training_step_seconds",)
    assert say(capsys)[0] == 1 and slept == [], "long ago: what is missing does not come any more"


def test_a_panel_that_may_be_empty_says_why(prometheus, capsys):
    prometheus.without = ("syncbed_training_staleness", "ALERTS")
    code, out, err = say(capsys)
    assert (code, err) == (0, "")
    assert re.search(r" 0 +-  none: no parameter servers *$", out, re.M)
    assert re.search(r" 0 +-  none: no alert fires *$", out, re.M)


def test_only_what_depends_on_the_run_may_be_empty():
    assert all(query.empty for query in queries() if query.dashboard == "Serving" and "annotation" not in query.panel)
    assert {query.panel for query in EMPTY if query.dashboard != "Serving"} == {
        "Alerts",
        "Bytes sent per step",
        "Bytes received per step",
        "Traffic by collective",
        "Staleness",
    }


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["RUN=c"], "RUN=c: Prometheus knows no such run; the latest are 20260101-000000-a, 20260101-001000-b"),
        (["SYNC=ddp"], "SYNC=ddp: no such setting"),
        (["PROMETHEUS_PORT=9191"], "PROMETHEUS_PORT=9191: leave it out: the port is read from the cluster"),
    ],
)
def test_bad_input_is_one_line(prometheus, capsys, words, says):
    code, out, err = say(capsys, *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err


def test_no_run_and_no_prometheus_are_said(prometheus, capsys, monkeypatch):
    monkeypatch.setattr("monitor.metrics.prometheus.query", lambda *_: [])
    assert say(capsys) == (2, "", "syncbed: Prometheus has seen no run yet: make run SYNC=ddp STEPS=100 is one\n")
    monkeypatch.setattr("monitor.engine.containers.urls", lambda *_: {})
    code, _, err = say(capsys, "PROJECT=mine")
    assert (code, err) == (2, "syncbed: no Prometheus runs in cluster mine: make cluster-up PROJECT=mine starts one\n")


def test_a_query_that_prometheus_refuses_is_named(monkeypatch):
    def refuse(*_):
        raise NotAnswering("HTTP 400: parse error")

    monkeypatch.setattr("monitor.metrics.prometheus.query", refuse)
    query = Query("Training", "Loss", "rank", "((", False, "")
    with pytest.raises(NotAnswering, match=r"^Training / Loss: HTTP 400: parse error$"):
        check.ask("http://x", query, Window("r", 0.0, 1.0))
