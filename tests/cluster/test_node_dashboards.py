"""Dashboards and rules on the real Prometheus after a real run: all queries have data, and the data are right.

What is right is known from sources that have nothing to do with Prometheus: the Docker engine's figures of the same
container, the kernel's interface counters, the run's own events, the strategy's formula.
"""

import json
import os
import re
import time
import urllib.request
from dataclasses import replace
from urllib.parse import urlencode

import pytest
from orchestrator import Orchestrator
from test_monitoring import HOLD, Held, engine_says, run
from testbed import said, scraped, syncbed

from monitor.dashboards.check import Query, Window, find, queries, results
from monitor.dashboards.render import DASHBOARDS
from node.training_metrics import KEEP_SECONDS
from trainer.events import PHASES

NODES = 4
STEPS = 500
SAME = 1e-6  # relative: the same floats, added up in another order
MAY_LACK = {"Alerts", "Staleness"}  # of this run
BURN = "touch /tmp/burn; for _ in 1 2; do while [ -e /tmp/burn ]; do :; done & done; wait"


def get(url: str, body: dict | None = None) -> dict:
    """What an HTTP API answers, as JSON; no proxy is asked."""
    data, head = (None, {}) if body is None else (json.dumps(body).encode(), {"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(url, data, head), timeout=30) as answer:
        return json.load(answer)


def panel(dashboard: str, title: str, legend: str | None = None) -> Query:
    """The one query of a panel, or the one of this legend."""
    (found,) = [q for q in queries() if (q.dashboard, q.panel) == (dashboard, title) and legend in (None, q.legend)]
    return found


def over_all(query: Query, window: Window) -> Query:
    """The query's value at the end of the window, its rates taken over all of it."""
    milliseconds = round(1000 * (window.end - window.start))
    return replace(query, instant=True, expression=query.expression.replace("$__rate_interval", f"{milliseconds}ms"))


def last(cluster, query: Query, window: Window, label: str) -> dict[str, float]:
    """The last value of each series of a query, by one of its labels."""
    return {labels[label]: points[-1][1] for labels, points in results(cluster.prometheus_url, query, window)}


def comes_to(cluster, trained, title: str, legend: str, value: float, **labels: str) -> bool:
    """Whether a curve over all ranks is at this value at some time: at its end some ranks are gone before others."""
    found = results(cluster.prometheus_url, panel("Training", title, legend), trained.window)
    return any(
        figure == pytest.approx(value, rel=SAME)
        for own, points in found
        if labels.items() <= own.items()
        for _, figure in points
    )


def interface(container) -> tuple[int, int]:
    """Bytes that the node's interface has received and sent, as the kernel counts."""
    fields = re.search(r"eth0:\s*(.*)", said(container, "cat", "/proc/net/dev"))[1].split()
    return int(fields[0]), int(fields[8])


def between_scrapes(cluster, node: str, window: Window) -> Window:
    """From a node's first scrape in the window to its last: over this, rate() has nothing to extrapolate."""
    query = f'syncbed_node_network_receive_bytes_total{{node="{node}"}}[{round(window.end - window.start)}s]'
    (series,) = at(cluster, query, window.end)
    first, last = (series["values"][i][0] for i in (0, -1))
    return replace(window, start=first - 0.001, end=last)


def at(cluster, expression: str, when: float) -> list[dict]:
    """What Prometheus says to a query as of a time."""
    words = urlencode({"query": expression, "time": f"{when:.3f}"})
    return get(f"{cluster.prometheus_url}/api/v1/query?{words}")["data"]["result"]


def settled(cluster, run: str) -> bool:
    """Whether rules were worked out, 3 s ago at least, while the last figures of all ranks were there."""
    name = "cluster:syncbed_training_samples:rate1m"
    of_run = f'count(syncbed_training_step_seconds_count == {STEPS}) and on () syncbed_training_run_info{{run="{run}"}}'
    times = {when for series in at(cluster, f"{name}[20s]", time.time() - 3) for when, _ in series["values"]}
    # A scrape's time is that of its beginning: what rules had, was there a second before.
    found = ([at(cluster, of_run, when - ago) for ago in (1, 0)] for when in times)
    return any(all(one and one[0]["value"][1] == str(NODES) for one in both) for both in found)


@pytest.fixture(scope="module")
def trained(cluster, tmp_path_factory):
    """One run, with the interfaces' counters before and after it, that Prometheus and its rules have seen the end of:
    on a starved machine scrapes fail. Then another one is done.
    """
    for _ in range(3):
        one = train(cluster, tmp_path_factory.mktemp("trained"))
        while not (seen := settled(cluster, one.run.name)) and time.time() < one.around.end + KEEP_SECONDS:
            time.sleep(0.2)
        if seen:
            break
    one.window = find(cluster.prometheus_url, one.run.name)
    one.steps = {rank: one.events("step", rank) for rank in range(NODES)}
    return one


def train(cluster, folder) -> Orchestrator:
    settings = {"SYNC": "ddp", "MODEL": "logistic", "DATA": "synthetic", "BATCH": 64, "STEPS": STEPS, "PAGES": 0}
    before, began = [interface(node) for node in cluster.nodes], time.time()
    one = Orchestrator(folder, bare=True, RUNTIME="docker", PROJECT=cluster.project, **settings)
    code, one.out = one.finish()
    assert code == 0, one.out
    after, ended = [interface(node) for node in cluster.nodes], time.time()
    one.traffic = [(now[0] - then[0], now[1] - then[1]) for now, then in zip(after, before, strict=True)]
    one.around = Window(one.run.name, began, ended + 2)
    return one


def test_the_run_says_where_it_can_be_watched(trained, cluster):
    (url,) = re.findall(r"^watch: (\S+)$", trained.out, re.M)
    grafana = cluster.report["urls"].get("grafana")
    assert url.startswith(
        f"{grafana}/d/syncbed-training?var-run={trained.run.name}&" if grafana else cluster.prometheus_url
    )


def test_prometheus_has_loaded_all_rules_and_each_is_well(trained, cluster):
    groups = get(cluster.prometheus_url + "/api/v1/rules")["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert {(rule["health"], rule.get("lastError", "")) for rule in rules} == {("ok", "")}
    assert {rule["name"] for rule in rules if rule["type"] == "alerting"} >= {"NodeDown", "RunStalled", "Straggler"}
    assert len([rule for rule in rules if rule["type"] == "recording"]) >= 10


def test_every_query_of_every_panel_has_data(trained, cluster):
    done = syncbed("dashboards-check", f"PROJECT={cluster.project}", f"RUN={trained.run.name}")
    print(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == len(list(queries())) + 2
    done = syncbed("dashboards-check", f"PROJECT={cluster.project}", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["run"] == trained.run.name, "the latest"
    assert {
        query["panel"] for query in told["queries"] if not query["series"] and query["dashboard"] != "Serving"
    } <= MAY_LACK
    for query in told["queries"]:
        if "{{node}}" in query["legend"] and "{{rank}}" not in query["legend"]:
            assert query["series"] % NODES == 0, query
        elif "{{rank}}" in query["legend"] and query["series"]:
            assert query["panel"] == "Alerts" or query["series"] == NODES, query


def test_loss_and_accuracy_are_those_of_the_events(trained, cluster):
    for title, key in (("Loss", "loss"), ("Accuracy", "accuracy"), ("Step", "step")):
        shown = last(cluster, panel("Training", title), trained.window, "rank")
        assert shown == {str(rank): pytest.approx(own[-1][key], rel=SAME) for rank, own in trained.steps.items()}


def test_runs_are_compared_step_by_step_as_the_events_say(trained, cluster):
    own = {event["step"]: event for event in trained.steps[0]}
    for title, key in (("Loss by step", "loss"), ("Accuracy by step", "accuracy")):
        shown = results(cluster.prometheus_url, panel("Compare", title), trained.window)
        assert {labels["run"] for labels, _ in shown} == {trained.run.name}
        points = {int(labels["step"]): points[-1][1] for labels, points in shown}
        assert max(points) == STEPS and len(points) >= 3
        for step, value in points.items():
            # A scrape may fall between the writing of a step's number and of its figures.
            nearby = [own[n][key] for n in (step, step - 1) if n in own]
            assert any(value == pytest.approx(figure, rel=SAME) for figure in nearby), (title, step)


def test_phases_shares_and_speed_are_those_of_the_events(trained, cluster):
    if trained.window.end - trained.window.start > 55:
        pytest.skip("the run took over a minute: these figures are then of its last minute, not of all")
    mean = {
        phase: {rank: sum(e["seconds"][phase] for e in own) / STEPS for rank, own in trained.steps.items()}
        for phase in PHASES
    }
    whole = {rank: sum(e["step_seconds"] for e in own) / STEPS for rank, own in trained.steps.items()}
    for phase in PHASES:
        assert comes_to(cluster, trained, "Step phases", phase, sum(mean[phase].values()) / NODES)
    shown = last(cluster, panel("Training", "Exposed sync"), trained.window, "rank")
    assert shown == {str(rank): pytest.approx(mean["sync"][rank] / whole[rank], rel=SAME) for rank in whole}
    assert comes_to(
        cluster, trained, "Samples per second", "all ranks", sum(16 / seconds for seconds in whole.values())
    )
    compute = {rank: sum(mean[phase][rank] for phase in PHASES if phase != "sync") for rank in whole}
    middle = sorted(compute.values())[1]  # of a slow rank's others
    for rank, seconds in compute.items():
        assert comes_to(cluster, trained, "Stragglers", "rank {{rank}}", seconds / middle, rank=str(rank))


def test_bytes_per_step_are_the_formula(trained, cluster):
    gradient = trained.events("ready", 0)[0]["gradient_bytes"]
    formula = 2 * (NODES - 1) / NODES * gradient
    for direction in ("sent", "received"):
        for legend in ("rank {{rank}}", "rank {{rank}} formula"):
            shown = last(cluster, panel("Training", f"Bytes {direction} per step", legend), trained.window, "rank")
            assert shown == {str(rank): pytest.approx(formula, abs=1) for rank in range(NODES)}, legend


def test_network_is_what_the_interfaces_counted(trained, cluster):
    for rank, counted in enumerate(trained.traffic):
        window = between_scrapes(cluster, f"trainer-{rank}", trained.around)
        for title, way in (("Network received", 0), ("Network sent", 1)):
            shown = last(cluster, over_all(panel("Cluster", title), window), window, "node")[f"trainer-{rank}"]
            growth = shown * (window.end - window.start)
            assert growth == pytest.approx(counted[way], rel=0.05), (title, rank)


def test_cpu_is_what_the_engine_counts(cluster):
    """Of a node that computes without a pause. Each end of the time is known to a scrape's second."""
    node, name = cluster.node(1), "trainer-1"
    cores = node.attrs["HostConfig"]["CpuQuota"] / node.attrs["HostConfig"]["CpuPeriod"]

    def used() -> float:
        return engine_says(node)["cpu_stats"]["cpu_usage"]["total_usage"] / 1e9

    def burnt(seconds: float) -> None:
        """Wait until it has used so much at its limit."""
        first = used()
        while used() < first + seconds * cores:
            time.sleep(0.1)
            counted.append((time.time(), used()))

    counted = [(time.time(), used())]
    node.exec_run(["bash", "-c", BURN], detach=True)
    try:
        burnt(3)  # it is at its limit by then
        began, first = counted[-1]
        burnt(10)
        ended, second = counted[-1]
        scraped(cluster, name, ended)
    finally:
        run(node, "rm", "/tmp/burn")
    window = Window("", began, ended)

    def shown(title: str, legend: str) -> float:
        return last(cluster, over_all(panel("Cluster", title, legend), window), window, "node")[name]

    cpu = shown("CPU", "{{node}}")
    assert cpu == pytest.approx((second - first) / (ended - began), abs=2 * cores / (ended - began))
    assert shown("CPU", "{{node}} limit") == pytest.approx(cores, abs=0.01)
    # Of some 10 s of these, known to a scrape's second at each end, and on a busy machine not all alike.
    of_limit = [(b - a) / (end - start) / cores for start, a in counted for end, b in counted if 9 <= end - start <= 11]
    assert min(of_limit) - 0.15 <= shown("CPU of the limit", "{{node}}") <= max(of_limit) + 0.15


def test_memory_is_what_the_engine_counts(cluster):
    node, name = cluster.node(2), "trainer-2"

    def working_set():
        memory = engine_says(node)["memory_stats"]
        inactive = memory["stats"].get("total_inactive_file", memory["stats"].get("inactive_file"))
        return memory["usage"] - inactive

    idle = working_set()
    with Held(node, HOLD):
        before, now = working_set(), time.time()
        scraped(cluster, name, now)
        after, ended = working_set(), time.time()
        window = Window("", now, ended)
        shown = last(cluster, over_all(panel("Cluster", "Memory", "{{node}}"), window), window, "node")[name]
    slack = 8 * 2**20  # health checks come and go
    assert min(before, after) - slack <= shown <= max(before, after) + slack
    assert shown - idle > 90 * 2**20


@pytest.fixture(scope="module")
def grafana(request) -> str:
    """A Grafana with our dashboards: the one that GRAFANA_URL names, which has seen a run, or the cluster's."""
    if url := os.environ.get("GRAFANA_URL"):
        return url.rstrip("/")
    url = request.getfixturevalue("cluster").report["urls"].get("grafana")
    if not url:
        pytest.skip("no Grafana can be had here: its image cannot be pulled, and GRAFANA_URL names none")
    request.getfixturevalue("trained")
    return url


@pytest.mark.parametrize("name", DASHBOARDS)
def test_grafana_loads_every_dashboard_and_has_data_for_every_panel(grafana, name):
    ours = DASHBOARDS[name]()
    loaded = get(f"{grafana}/api/dashboards/uid/{ours['uid']}")["dashboard"]
    assert [panel["title"] for panel in loaded["panels"]] == [panel["title"] for panel in ours["panels"]]
    source = loaded["panels"][1]["datasource"]["uid"]
    window = find(f"{grafana}/api/datasources/proxy/uid/{source}", "latest")
    for one in loaded["panels"]:
        asked = [
            target | {"expr": window.fill(target["expr"]), "intervalMs": 1000, "maxDataPoints": 1000}
            for target in one.get("targets", ())
        ]
        if not asked:
            continue
        times = {"from": str(round(window.start * 1000)), "to": str(round(window.end * 1000))}
        answers = get(f"{grafana}/api/ds/query", {"queries": asked, **times})["results"]
        assert answers.keys() == {target["refId"] for target in asked}
        for answer in answers.values():
            assert answer["status"] == 200 and "error" not in answer, one["title"]
            rows = [values for frame in answer["frames"] for values in frame["data"]["values"]]
            assert any(rows) or one["title"] in MAY_LACK or name == "serving", one["title"]
