"""What the agents and Prometheus say of real containers, against what the kernel and the engine say of the same ones.

Counters are compared by bracketing: the engine is read, then the agent, then the engine again, and the agent's value
must lie between. That holds on a machine of any speed.
"""

import json
import re
import threading
import time
import urllib.request
from statistics import mode

import pytest
from orchestrator import wait_until
from prometheus_client.parser import text_string_to_metric_families
from testbed import asked, said, scraped

from monitor.checkout import ROOT
from monitor.metrics import prometheus
from monitor.metrics.sampling import summarise

METRICS_FOLDER = "/run/syncbed/metrics"
METRICS = ROOT / "docs/reference/metrics.md"
GET = r'exec 3<>"/dev/tcp/$0/9400"; printf "GET /metrics HTTP/1.0\r\n\r\n" >&3; cat <&3'
TICK_SECONDS = 0.03  # cgroup v1 gives user and system time in whole ticks of 10 ms each
BURN = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done"
HOLD = "held = bytearray(96 * 2**20); print('held', flush=True); input()"
RANK = """
from trainer.events import PHASES, Step
from trainer.run.metrics import Metrics
from trainer.spec import RunSpec
figures = {"loss": 2.25, "accuracy": 0.5, "samples": 64, "sent_bytes": 1, "received_bytes": 1}
metrics = Metrics(2)
metrics.run("a-run", RunSpec(sync="ddp", nodes=4))
metrics.begin(lambda: (1, 1), 0, 0)
metrics.step(Step(rank=2, step=5, epoch=1, seconds=dict.fromkeys(PHASES, 0.1), step_seconds=0.5, **figures))
metrics.synchronised({("all_reduce", "sent"): 1, ("all_reduce", "received"): 1}, 1)
print("written", flush=True)
input()
"""


def run(container, *command: str) -> str:
    code, output = container.exec_run(list(command))
    assert code == 0, output.decode()
    return output.decode()


def scrape(container, host: str = "127.0.0.1") -> str:
    """/metrics of a node, asked for from inside a container; by Bash, since a Python would add to what is measured."""
    head, _, body = said(container, "bash", "-c", GET, host).partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 200")
    return body


def samples(text: str) -> dict[tuple, float]:
    """(name, label values) to value, without the prefix that all names share."""
    families = text_string_to_metric_families(text)
    return {
        (s.name.removeprefix("syncbed_node_"), *s.labels.values()): s.value
        for family in families
        for s in family.samples
    }


def engine_says(container) -> dict:
    return container.client.api.stats(container.id, stream=False, one_shot=True)


def bracketed(container) -> tuple[dict, dict[tuple, float], dict]:
    """(engine's figures before, the agent's, engine's figures after)"""
    before = engine_says(container)
    return before, samples(scrape(container)), engine_says(container)


def processes(container) -> float:
    """The node's processes with one scrape, as the agent mostly counts them: beside some a health check runs, and in
    others the shell that scrapes has not started `cat` yet.
    """
    return mode(samples(scrape(container))[("processes",)] for _ in range(9))


@pytest.fixture(autouse=True, scope="module")
def idle(cluster):
    """Waits until the figures of earlier tests' ranks are gone, which they are some seconds after they are seen."""
    for node in cluster.nodes:
        wait_until(lambda node=node: not any("training" in name for name, *_ in samples(scrape(node))))


class Held:
    """A Python in the node that has said its first line and waits; its end comes with the end of its input."""

    def __init__(self, container, program: str, **environment: str):
        api = container.client.api
        # PYTHONPATH and the interpreter are the image's own.
        self._exec = api.exec_create(
            container.id, ["python", "-c", program], stdin=True, environment=environment, stderr=False
        )["Id"]
        self._socket = api.exec_start(self._exec, socket=True)
        self._raw = getattr(self._socket, "_sock", self._socket)

    def __enter__(self):
        said = b""
        self._raw.settimeout(60)
        while not said.endswith(b"\n"):
            data = self._raw.recv(4096)
            assert data, f"ended before it was ready: {said!r}"
            said += data
        return self

    def __exit__(self, *_):
        self._raw.sendall(b"\n")
        while self._raw.recv(4096):  # until the process has ended
            pass
        self._socket.close()


def test_cpu_is_what_the_engine_counts(cluster):
    node = cluster.node(1)
    start = samples(scrape(node))
    loops = int(node.attrs["HostConfig"]["CpuQuota"] / 1e5) + 2  # more than the node has cores, so that some must wait
    run(node, "bash", "-c", f"({BURN}) & " * loops + "wait")
    before, agent, after = bracketed(node)
    used = agent["cpu_seconds_total", "user"] + agent["cpu_seconds_total", "system"]
    low, high = (s["cpu_stats"]["cpu_usage"]["total_usage"] / 1e9 for s in (before, after))
    assert low - TICK_SECONDS <= used <= high + TICK_SECONDS
    assert used - start["cpu_seconds_total", "user"] - start["cpu_seconds_total", "system"] > 0.1
    throttling = [s["cpu_stats"]["throttling_data"] for s in (before, after)]
    for metric, key, unit in (
        ("cpu_periods_total", "periods", 1),
        ("cpu_throttled_periods_total", "throttled_periods", 1),
        ("cpu_throttled_seconds_total", "throttled_time", 1e-9),
    ):
        low, high = (t[key] * unit for t in throttling)
        assert low - 1e-6 <= agent[(metric,)] <= high + 1e-6, metric
    assert agent[("cpu_throttled_periods_total",)] > start[("cpu_throttled_periods_total",)]


def test_limits_are_those_the_cluster_was_started_with(cluster):
    for node in cluster.nodes:
        agent, host = samples(scrape(node)), node.attrs["HostConfig"]
        assert agent[("cpu_limit_cores",)] == pytest.approx(host["CpuQuota"] / host["CpuPeriod"], abs=0.01)
        assert agent[("memory_limit_bytes",)] == pytest.approx(host["Memory"], abs=4096)


def test_memory_is_what_the_engine_counts(cluster):
    node = cluster.node(2)
    idle, count = samples(scrape(node)), processes(node)
    with Held(node, HOLD):
        before, agent, after = bracketed(node)
        wait_until(lambda: processes(node) == count + 1)
    wait_until(lambda: processes(node) == count)

    def working_set(stats):
        memory = stats["memory_stats"]
        inactive = memory["stats"].get("total_inactive_file", memory["stats"].get("inactive_file"))
        return memory["usage"] - inactive

    slack = 8 * 2**20  # the short-lived shells that scrape
    for got, figures in (
        (agent[("memory_working_set_bytes",)], [working_set(s) for s in (before, after)]),
        (agent[("memory_usage_bytes",)], [s["memory_stats"]["usage"] for s in (before, after)]),
    ):
        assert min(figures) - slack <= got <= max(figures) + slack
    assert agent[("memory_working_set_bytes",)] - idle[("memory_working_set_bytes",)] > 90 * 2**20
    if "max_usage" in before["memory_stats"]:  # cgroup v1
        assert agent[("memory_peak_bytes",)] >= before["memory_stats"]["max_usage"]
    assert agent.get(("memory_peak_bytes",), 97 * 2**20) > 96 * 2**20


def test_open_files_are_those_of_all_processes(cluster):
    node = cluster.node(1)
    count = "for p in /proc/[0-9]*; do ls $p/fd; done 2>/dev/null | wc -l"
    with Held(node, "held = [open('/dev/null') for _ in range(200)]; print('held', flush=True); input()"):
        kernel = int(said(node, "bash", "-c", count))
        assert kernel > 200
        # Shells that scrape and count come and go, and while one starts nobody may look into it.
        wait_until(lambda: samples(scrape(node)).get(("open_files",)) == pytest.approx(kernel, abs=40))
    wait_until(lambda: samples(scrape(node)).get(("open_files",), kernel) < kernel - 150)


def test_network_is_what_the_kernel_and_the_engine_count(cluster):
    node = cluster.node(3)
    body = len(scrape(node, "trainer-0"))
    first = samples(scrape(node))
    for _ in range(10):
        scrape(node, "trainer-0")
    columns = {"receive_bytes": 0, "receive_packets": 1, "receive_errors": 2, "receive_drops": 3}
    columns |= {name.replace("receive", "transmit"): column + 8 for name, column in columns.items()}

    def kernel():
        table = said(node, "cat", "/proc/net/dev")
        return [int(n) for n in re.search(r"eth0:\s*(.*)", table)[1].split()]

    kernel_before, (before, agent, after), kernel_after = kernel(), bracketed(node), kernel()
    for name, column in columns.items():
        got = agent[f"network_{name}_total", "eth0"]
        assert kernel_before[column] <= got <= kernel_after[column], name
        key = name.replace("receive", "rx").replace("transmit", "tx").replace("drops", "dropped")
        assert before["networks"]["eth0"][key] <= got <= after["networks"]["eth0"][key], name
    received = agent["network_receive_bytes_total", "eth0"] - first["network_receive_bytes_total", "eth0"]
    assert 10 * body < received < 30 * body
    assert not any("lo" in key for key in agent)


def test_a_node_exports_what_the_docs_say(cluster):
    documented = set(re.findall(r"^\| `(syncbed_node_\w+)`", METRICS.read_text(), re.M))
    may_lack = {"syncbed_node_memory_peak_bytes", "syncbed_node_oom_kills_total"}  # old kernels

    def exported():
        return {"syncbed_node_" + name for name, *_ in samples(scrape(cluster.node(0)))}

    assert exported() <= documented
    wait_until(lambda: documented - exported() <= may_lack)  # open files are not to be seen while an exec starts


def test_prometheus_has_every_node_each_second(cluster):
    names = [f"trainer-{rank}" for rank in range(len(cluster.nodes))]
    for _ in range(5):  # on a starved machine a scrape may fail, and then its second has no row
        start = time.time() + 1  # the second before it is there too, and has nothing of an earlier test's rank
        warnings = []
        rows = prometheus.window(
            cluster.prometheus_url, start, start + 3, nodes=names, warn=warnings.append, wait_seconds=60
        )
        assert warnings == []
        failed = asked(cluster, f'sum(count_over_time((up{{job="node"}} == 0)[{round(time.time() - start) + 1}s:1s]))')
        if not failed:
            break
    assert {row.node for row in rows} == set(names)
    for name in names:
        own = [row for row in rows if row.node == name]
        assert own[-1].time >= start + 3
        for row in own:
            assert None not in (row.cpu_seconds_total, row.cpu_throttled_seconds_total, row.memory_working_set_bytes)
            assert row.network_receive_bytes_total > 0 and row.network_transmit_packets_total > 0
            assert row.training_step is None
        summary = summarise(rows, name)
        assert summary["cpu_seconds"] >= 0
        assert summary["peak_memory_bytes"] < 512 * 2**20


def test_what_prometheus_keeps_is_bounded(cluster):
    with urllib.request.urlopen(f"{cluster.prometheus_url}/api/v1/status/flags") as answer:
        flags = json.load(answer)["data"]
    assert flags["storage.tsdb.retention.time"] == "12h"
    assert flags["storage.tsdb.retention.size"] == "256MiB"
    assert flags["storage.tsdb.min-block-duration"] == "15m"
    (room,) = [size for place, size in filesystems(cluster.service("prometheus")) if place == "/prometheus"]
    assert room >= 2 * 256 * 2**20  # what is kept, and a block as large that is being made of smaller ones


def filesystems(container) -> list[tuple[str, int]]:
    """(mount point, bytes) of each of the container's file systems."""
    lines = said(container, "df", "-P", "-k").splitlines()[1:]
    return [(fields[5], int(fields[1]) * 1024) for fields in map(str.split, lines) if fields[1].isdigit()]


def test_prometheus_and_the_agent_agree(cluster):
    node = cluster.node(1)
    run(node, "bash", "-c", BURN)
    agent = samples(scrape(node))
    now = time.time()
    scraped(cluster, "trainer-1", now)
    rows = prometheus.window(cluster.prometheus_url, now, now + 1, nodes=["trainer-1"], wait_seconds=60)
    used = agent["cpu_seconds_total", "user"] + agent["cpu_seconds_total", "system"]
    last = max((row for row in rows if row.node == "trainer-1"), key=lambda row: row.time)
    assert used <= last.cpu_seconds_total < used + 5
    assert last.network_receive_bytes_total >= agent["network_receive_bytes_total", "eth0"]


def test_training_figures_reach_prometheus_and_go_with_the_rank(cluster):
    def figure():
        found = asked(cluster, 'syncbed_training_step{node="trainer-2"}')
        return [(series["metric"]["rank"], series["value"][1]) for series in found]

    pause = threading.Event()
    node = cluster.node(2)
    run(node, "mkdir", "-p", METRICS_FOLDER)
    with Held(node, RANK, PROMETHEUS_MULTIPROC_DIR=METRICS_FOLDER):
        while figure() != [("2", "5")]:  # the test's time limit ends this
            pause.wait(0.2)
        text = scrape(node)
        assert "syncbed_training_phase_seconds_bucket" in text
        command = ["sh", "-c", 'printf "%s" "$0" | promtool check metrics', text]
        code, faults = cluster.service("prometheus").exec_run(command)
        assert (code, faults) == (0, b"")
    wait_until(lambda: run(node, "ls", METRICS_FOLDER) == "")
    while figure():
        pause.wait(0.2)


def test_garbage_from_a_neighbour_does_not_end_the_agent(cluster):
    started = cluster.node(0).attrs["State"]["StartedAt"]
    send = r'exec 3<>/dev/tcp/trainer-0/9400; printf "\x00\xff junk\r\n\r\n" >&3; cat <&3 >/dev/null'
    for _ in range(3):
        cluster.node(1).exec_run(["bash", "-c", send])
    assert samples(scrape(cluster.node(1), "trainer-0"))["info", "trainer-0", "cgroup"] == 1
    node = cluster.node(0)
    node.reload()
    assert (node.attrs["State"]["StartedAt"], node.attrs["RestartCount"]) == (started, 0)
