"""Grafana's dashboards: what is committed is what the code makes, and every query asks for metrics that exist."""

import json
import re

import pytest
from agent_scrape import get as scrape
from agent_scrape import rank, serving
from promql import known, labels, metrics, promtool

from monitor.dashboards.check import Window, queries, variables
from monitor.dashboards.parts import MAY_BE_EMPTY
from monitor.dashboards.render import FOLDER, render

BOARDS = {name: json.loads(text) for name, text in render().items()}
UIDS = {"cluster.json": "syncbed-cluster", "training.json": "syncbed-training", "compare.json": "syncbed-compare"}
UIDS |= {"serving.json": "syncbed-serving"}
DATA_SOURCE = {"type": "prometheus", "uid": "syncbed-prometheus"}
PANEL_TYPES = {"timeseries", "state-timeline", "heatmap", "bargauge", "trend"}  # none of graph, singlestat, table-old
UNITS = {"none", "percentunit", "s", "decbytes", "Bps", "pps", "reqps"}  # ids of Grafana's unit list; all are decimal
QUERIES = [pytest.param(query, id=f"{query.dashboard}: {query.panel}: {query.legend}") for query in queries()]
RUN = Window("20260101-000000-ddp-vgg11-4n-a.b", 1000.0, 1600.0)


def panels(board):
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def all_panels():
    return [
        pytest.param(panel, id=f"{board['title']}: {panel['title']}")
        for board in BOARDS.values()
        for panel in panels(board)
    ]


def test_committed_files_are_what_the_code_makes():
    committed = {file.name: file.read_text(encoding="utf-8") for file in FOLDER.glob("*.json")}
    assert committed == render(), "run `python -m monitor.dashboards` and commit what it writes"


@pytest.mark.parametrize("query", QUERIES)
def test_every_metric_and_label_of_a_query_exists(query):
    named = metrics(query.expression)
    assert named and named <= known().keys(), named - known().keys()
    exist = {label for name in named for label in known()[name][1]} | set(
        re.findall(r'count_values.*?"(\w+)"', query.expression)
    )
    used = labels(query.expression) | set(re.findall(r"{{(\w+)}}", query.legend))
    assert used <= exist, used - exist


@pytest.mark.parametrize("query", QUERIES)
def test_a_label_of_a_legend_survives_the_aggregation(query):
    outer = re.match(r"(?:sum|max|avg) by \(([^)]*)\) ", query.expression)
    if outer:
        assert set(re.findall(r"{{(\w+)}}", query.legend)) == set(re.split(r",\s*", outer[1]))


@pytest.mark.parametrize("query", QUERIES)
def test_rates_are_of_counters_and_of_nothing_else(query):
    for name in metrics(query.expression):
        rated = re.search(rf"(?:rate|increase)\({name}\b", query.expression)
        assert not rated or known()[name][0] == "counter", name


@pytest.mark.parametrize("query", QUERIES)
def test_counters_since_the_start_are_of_the_run_never_of_the_node(query):
    """A rank's counters begin with its run: their value is a figure of the run. A node's begin with its container."""
    for name in metrics(query.expression):
        if known()[name][0] == "counter" and not re.search(rf"(?:rate|increase)\({name}\b", query.expression):
            assert name.startswith("syncbed_training_"), name


@pytest.mark.parametrize("file", BOARDS)
def test_frame(file):
    board = BOARDS[file]
    assert board["uid"] == UIDS[file]
    assert board["schemaVersion"] >= 39
    assert "__inputs" not in board and "__requires" not in board
    assert "id" not in board  # Grafana gives its own
    names = {"serving.json": ["model"], "compare.json": ["run"]}.get(file, ["run", "node"])
    assert [v["name"] for v in board["templating"]["list"]] == names
    assert all(v["datasource"] == DATA_SOURCE and v["multi"] and v["includeAll"] for v in board["templating"]["list"])
    (link,) = board["links"]
    assert link["type"] == "dashboards" and set(link["tags"]) <= set(board["tags"])
    assert link["includeVars"] and link["keepTime"], "what was chosen goes along"
    (stretches,) = board["annotations"]["list"]
    assert stretches["datasource"] == DATA_SOURCE and stretches["enable"]
    assert stretches["expr"] == stretches["target"]["expr"]
    named = {"serving.json": 'syncbed_serving_model_info{model=~"$model"}'}
    assert stretches["expr"] == named.get(file, 'syncbed_training_run_info{run=~"$run"}')


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_each_choice_changes_something_and_each_query_uses_choices_that_there_are(board):
    expressions = [target["expr"] for panel in panels(board) for target in panel["targets"]]
    expressions += [note["expr"] for note in board["annotations"]["list"]]
    used = {name for expression in expressions for name in variables(expression)}
    assert used == {variable["name"] for variable in board["templating"]["list"]}


@pytest.mark.parametrize("query", QUERIES)
def test_what_an_annotation_says_is_known_of_its_series(query):
    if query.panel.startswith("annotation"):
        (board,) = [board for board in BOARDS.values() if board["title"] == query.dashboard]
        (note,) = board["annotations"]["list"]
        (metric,) = metrics(query.expression)
        said = set(re.findall(r"{{(\w+)}}", note["titleFormat"] + note["textFormat"])) | set(note["tagKeys"].split(","))
        assert said <= known()[metric][1]
        assert query.empty == ("nothing is served." if query.dashboard == "Serving" else "")


def test_there_is_a_uid_for_each():
    assert BOARDS.keys() == UIDS.keys()
    assert len({board["uid"] for board in BOARDS.values()}) == len(BOARDS)


@pytest.mark.parametrize("panel", all_panels())
def test_panel(panel):
    assert panel["type"] in PANEL_TYPES
    assert panel["datasource"] == DATA_SOURCE
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    what, _, empty = panel["description"].partition(MAY_BE_EMPTY)
    assert what.strip().endswith(".")
    assert not empty or panel["fieldConfig"]["defaults"]["noValue"] == "no data: " + empty.rstrip(".")
    references = [target["refId"] for target in panel["targets"]]
    assert references and len(set(references)) == len(references)
    for target in panel["targets"]:
        assert target["datasource"] == DATA_SOURCE
        assert target["legendFormat"]
        assert target["range"] != target["instant"]
        of_all = panel["type"] == "state-timeline" or "syncbed_serving_process_" in target["expr"]
        assert of_all or any(variable in target["expr"] for variable in ("$node", "$run", "$model"))
    assert panel["options"].get("legend") or panel["type"] == "bargauge", "its bars carry the legend"


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_titles_and_numbers_of_panels_are_unique(board):
    titles = [panel["title"] for panel in panels(board)]
    assert len(set(titles)) == len(titles)
    identities = [panel["id"] for panel in board["panels"]]
    assert len(set(identities)) == len(identities)


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_panels_lie_on_the_grid_without_overlap(board):
    taken = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.parametrize("board", [BOARDS["compare.json"]], ids=["compare"])
def test_curves_by_step_have_the_column_that_the_transformations_make(board):
    curves = [panel for panel in panels(board) if panel["type"] == "trend"]
    assert len(curves) >= 3
    for panel in curves:
        matrix, convert, sort = panel["transformations"]
        assert matrix["id"] == "groupingToMatrix"
        column = matrix["options"]["rowField"] + "\\" + matrix["options"]["columnField"]
        assert convert["options"]["conversions"] == [{"targetField": column, "destinationType": "number"}]
        assert sort["options"]["sort"] == [{"field": column, "desc": False}], "Grafana wants x ascending"
        assert panel["options"]["xField"] == column
        (target,) = panel["targets"]
        assert target["format"] == "table" and target["instant"]


def test_variables_are_filled_in_as_grafana_does():
    assert RUN.fill('a{run=~"$run"}') == r'a{run=~"20260101\\-000000\\-ddp\\-vgg11\\-4n\\-a\\.b"}'
    assert RUN.fill('rate(a{node=~"$node"}[$__rate_interval])') == 'rate(a{node=~".*"}[4s])'
    assert RUN.fill("a[$__range:$__interval]") == "a[600s:1s]"
    long = Window("r", 0.0, 36000.0)
    assert long.fill("a[$__range:$__interval] b[$__rate_interval]") == "a[36000s:10s] b[11s]"


def test_promtool_parses_every_query(tmp_path):
    expressions = [RUN.fill(query.values[0].expression) for query in QUERIES]
    rules = [{"record": f"query:{i}", "expr": expression} for i, expression in enumerate(expressions)]
    file = tmp_path / "rules.json"  # JSON is YAML
    file.write_text(json.dumps({"groups": [{"name": "dashboards", "rules": rules}]}))
    done = promtool("check", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(expressions)} rules found" in done.stdout


def test_promtool_finds_no_fault_in_a_scrape(tmp_path):
    with rank(tmp_path), serving("cgroup-v2/container", tmp_path) as port:
        text = scrape(port)[2]
    done = promtool("check", "metrics", text=text)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
