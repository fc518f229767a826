"""Grafana's dashboards: what is committed is what the code makes, and every query asks for metrics that exist."""

import json
import re
import shutil
import subprocess

import pytest
from agent_scrape import get as scrape
from agent_scrape import rank, samples, serving
from test_agent import documented

from monitor.dashboards import FOLDER, render

BOARDS = {name: json.loads(text) for name, text in render().items()}
DATA_SOURCE = {"type": "prometheus", "uid": "syncbed-prometheus"}
PANEL_TYPES = {"timeseries", "stat", "table", "gauge", "bargauge", "barchart", "heatmap", "histogram", "text", "row"}
UNITS = {"none", "percentunit", "s", "bytes", "Bps", "pps"}  # ids of Grafana's unit list
METRIC = re.compile(r"\bsyncbed_\w+")


def panels(board):
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def targets():
    return [
        pytest.param(target, id=f"{board['title']}: {panel['title']}: {target['legendFormat']}")
        for board in BOARDS.values()
        for panel in panels(board)
        for target in panel["targets"]
    ]


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> dict[str, set[str]]:
    """Metric to its labels, as an agent of a limited container with a rank exports them."""
    labels: dict[str, set[str]] = {}
    folder = tmp_path_factory.mktemp("metrics")
    with rank(folder), serving("cgroup-v2/container", folder) as port:
        for name, pairs in samples(scrape(port)[2]):
            labels.setdefault(name, set()).update(label for label, _ in pairs)
    return labels


def test_committed_files_are_what_the_code_makes():
    committed = {file.name: file.read_text(encoding="utf-8") for file in FOLDER.glob("*.json")}
    assert committed == render(), "run `python -m monitor.dashboards` and commit what it writes"


@pytest.mark.parametrize("target", targets())
def test_every_metric_and_label_of_a_query_exists(target, exported):
    names = set(METRIC.findall(target["expr"]))
    assert names
    assert names <= documented().keys()
    assert names <= exported.keys()
    known = {"node", *(label for name in names for label in exported[name])}
    used = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", target["expr"]))
    for group in re.findall(r"by \(([^)]*)\)", target["expr"]):
        used |= set(re.split(r",\s*", group))
    assert used <= known
    by = re.search(r"by \(([^)]*)\)", target["expr"])
    if by:  # a label that the legend shows must survive the aggregation
        assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) == set(re.split(r",\s*", by[1]))


@pytest.mark.parametrize("target", targets())
def test_counters_are_shown_as_rates_and_gauges_are_not(target):
    for name in METRIC.findall(target["expr"]):
        rated = f"rate({name}" in target["expr"]
        assert rated == (documented()[name][0] == "counter"), name


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_frame(board):
    assert board["uid"].startswith("syncbed-")
    assert "__inputs" not in board
    assert "id" not in board  # Grafana gives its own
    assert [v["name"] for v in board["templating"]["list"]] == ["node"]
    for v in board["templating"]["list"]:
        assert v["datasource"] == DATA_SOURCE
        assert set(METRIC.findall(v["definition"])) <= documented().keys()


def test_the_cluster_dashboard_has_its_uid():
    assert BOARDS["cluster.json"]["uid"] == "syncbed-cluster"


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_panels(board):
    for panel in panels(board):
        assert panel["type"] in PANEL_TYPES, panel["title"]
        assert panel["datasource"] == DATA_SOURCE
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)
        for target in panel["targets"]:
            assert target["datasource"] == DATA_SOURCE
            assert "{{node}}" in target["legendFormat"]
            assert "$node" in target["expr"]
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


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed here")
def test_promtool_parses_every_query(tmp_path):
    queries = [target.values[0]["expr"].replace("$__rate_interval", "4s") for target in targets()]
    rules = [{"record": f"query:{i}", "expr": query} for i, query in enumerate(queries)]
    file = tmp_path / "rules.json"  # JSON is YAML
    file.write_text(json.dumps({"groups": [{"name": "dashboards", "rules": rules}]}))
    subprocess.run(["promtool", "check", "rules", str(file)], check=True, capture_output=True)


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed here")
def test_promtool_finds_no_fault_in_a_scrape(tmp_path):
    with rank(tmp_path), serving("cgroup-v2/container", tmp_path) as port:
        text = scrape(port)[2]
    check = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True)
    assert (check.returncode, check.stdout, check.stderr) == (0, "", "")
