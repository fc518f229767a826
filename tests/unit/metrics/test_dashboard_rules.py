"""The rules of Grafana's dashboard linter that apply to dashboards which come with their data source.

Source: https://github.com/grafana/dashboard-linter (docs/index.md has the list, lint/rule_*.go what each looks at). The
linter is a program in Go; each of its rules is either a test here, named after it, or in NOT_HERE with the reason.
Where a rule looks at some kinds of panels only, the test looks at all.
"""

import json
import re

import pytest
from promql import known, metrics

from monitor.dashboards.check import queries
from monitor.dashboards.render import render

BOARDS = {name: json.loads(text) for name, text in render().items()}
PANELS = [
    pytest.param(panel, id=f"{board['title']}: {panel['title']}")
    for board in BOARDS.values()
    for panel in board["panels"]
    if panel["type"] != "row"
]
QUERIES = [pytest.param(query, id=f"{query.dashboard}: {query.panel}: {query.legend}") for query in queries()]
# Grafana's list of units (packages/grafana-data/src/valueFormats/categories.ts), those that our figures may have.
UNITS = {"none", "short", "percent", "percentunit", "s", "ms", "decbytes", "Bps", "pps", "reqps", "ops", "hertz"}
RULES = (
    *("template-datasource-rule", "template-job-rule", "template-instance-rule", "template-label-promql-rule"),
    *("template-on-time-change-reload-rule", "panel-datasource-rule", "panel-title-description-rule"),
    *("panel-units-rule", "panel-no-targets-rule", "target-logql-rule", "target-logql-auto-rule"),
    *("target-promql-rule", "target-rate-interval-rule", "target-job-rule", "target-instance-rule"),
    *("target-counter-agg-rule", "uneditable-dashboard"),
)
OWN_SOURCE = "the data source is provisioned with the dashboards, under a fixed uid: there is nothing to choose"
OWN_LABELS = "our series are told apart by node, rank and run, and all are of one job and one Prometheus"
NOT_HERE = {
    "template-datasource-rule": OWN_SOURCE,
    "panel-datasource-rule": OWN_SOURCE,
    "template-job-rule": OWN_LABELS,
    "template-instance-rule": OWN_LABELS,
    "target-job-rule": OWN_LABELS,
    "target-instance-rule": OWN_LABELS,
    "target-logql-rule": "there is no Loki",
    "target-logql-auto-rule": "there is no Loki",
    "target-promql-rule": "tests/unit/test_dashboards.py has promtool parse every query: it is Prometheus' own parser",
}


def test_every_rule_of_the_linter_is_a_test_or_has_its_reason():
    tested = {name for name in RULES if f"test_{name.replace('-', '_')}" in globals()}
    assert tested | NOT_HERE.keys() == set(RULES)
    assert not tested & NOT_HERE.keys()


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_template_label_promql_rule(board):
    """A variable is asked for by a function of the data source, of a metric that there is."""
    for variable in board["templating"]["list"]:
        call = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
        assert call, variable["name"]
        metric, label = call.groups()
        assert metric in known() and label in known()[metric][1] and variable["definition"] == call[0]


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_template_on_time_change_reload_rule(board):
    """Variables are asked for anew when the time range changes."""
    assert all(variable["refresh"] == 2 for variable in board["templating"]["list"] if variable["type"] == "query")


@pytest.mark.parametrize("panel", PANELS)
def test_panel_title_description_rule(panel):
    """Each panel has a title and a description."""
    assert panel["title"].strip() and panel["description"].strip()


@pytest.mark.parametrize("panel", PANELS)
def test_panel_units_rule(panel):
    """Each panel has a unit of Grafana's list; one whose values are mapped to words needs none."""
    defaults = panel["fieldConfig"]["defaults"]
    units = [p["value"] for o in panel["fieldConfig"]["overrides"] for p in o["properties"] if p["id"] == "unit"]
    assert "mappings" in defaults or {*units, defaults["unit"]} <= UNITS


@pytest.mark.parametrize("panel", PANELS)
def test_panel_no_targets_rule(panel):
    """Each panel asks for something."""
    assert panel["targets"] and all(target["expr"].strip() for target in panel["targets"])


@pytest.mark.parametrize("query", QUERIES)
def test_target_rate_interval_rule(query):
    """Rates are over $__rate_interval, which always has enough scrapes; what a panel asks for over a fixed time is an
    increase, and its description names the time.
    """
    for call in re.findall(r"\bi?rate\(([^()]*)\)", query.expression):
        assert call.endswith("[$__rate_interval]"), call
    assert len(re.findall(r"\bi?rate\(", query.expression)) == len(re.findall(r"\bi?rate\([^()]*\)", query.expression))


@pytest.mark.parametrize("query", QUERIES)
def test_target_counter_agg_rule(query):
    """A counter is shown as its growth. A rank's counters begin with its run and end with it, so that their value is a
    figure of the run; a node's begin with its container.
    """
    for metric in metrics(query.expression):
        if metric.endswith("_total") and not metric.startswith("syncbed_training_"):
            uses = len(re.findall(rf"\b{metric}\b", query.expression))
            grown = len(re.findall(rf"\b(?:rate|irate|increase)\({metric}\b", query.expression))
            assert uses == grown, metric


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_uneditable_dashboard(board):
    """The code is the source of a dashboard: what was edited in the browser would be lost."""
    assert board["editable"] is False
