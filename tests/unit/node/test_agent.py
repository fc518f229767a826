"""The agent: what it exports, that it stays up, and that docs/reference/metrics.md says the same."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from agent_scrape import get, kinds, rank, samples, serving

from node.exposition import page
from node.process_tree import ProcessTree
from node.training_metrics import KEEP_SECONDS, TrainingCollector

ROOT = Path(__file__).resolve().parents[3]
RUN = {"sync": "ddp", "model": "vgg11", "data": "cifar10", "nodes": "4", "precision": "fp32"}
TREES = ("cgroup-v1/container", "cgroup-v2/container")


def documented() -> dict[str, tuple[str, set[str]]]:
    """Metric to (type, labels) from docs/reference/metrics.md, of what an agent tells."""
    rows = re.findall(
        r"^\| `(syncbed_\w+)` \| (\w+) \|[^|]*\|([^|]*)\|", (ROOT / "docs/reference/metrics.md").read_text(), re.M
    )
    return {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows if "_serving_" not in name}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "metrics"


@pytest.fixture(autouse=True)
def hundred_ticks(monkeypatch):
    monkeypatch.setattr("node.cgroup._TICKS_PER_SECOND", 100)


@pytest.mark.parametrize("tree", TREES)
def test_docs_and_scrape_name_the_same_metrics(tree, folder):
    with rank(folder), serving(tree, folder) as port:
        assert kinds(get(port)[2]) == documented()


@pytest.mark.parametrize("tree", TREES)
def test_values_are_those_of_the_tree_and_the_rank(tree, folder):
    with rank(folder), serving(tree, folder) as port:
        status, content, text = get(port)
    assert (status, content) == (200, "text/plain; version=0.0.4; charset=utf-8")
    got = samples(text)

    def value(name, /, **labels):
        return got["syncbed_" + name, tuple(sorted(labels.items()))]

    assert value("node_info", name="trainer-3", source="cgroup") == 1
    assert value("node_cpu_seconds_total", mode="user") == pytest.approx(52.10, abs=0.01)
    assert value("node_cpu_seconds_total", mode="system") == pytest.approx(9.38, abs=0.01)
    assert value("node_cpu_throttled_seconds_total") == pytest.approx(27.51)
    assert value("node_cpu_limit_cores") == 0.5
    assert value("node_memory_working_set_bytes") == 1_007_681_536
    assert value("node_memory_peak_bytes") == 1_879_048_192
    assert value("node_oom_kills_total") == 2
    assert value("node_processes") == 3
    assert value("node_open_files") == 9
    assert value("node_network_receive_bytes_total", interface="eth0") == 160_985_621
    assert value("node_network_transmit_drops_total", interface="eth0") == 5
    assert value("training_step", rank="3") == 17
    assert value("training_loss", rank="3") == 2.25
    assert value("training_samples_total", rank="3") == 1088
    assert value("training_phase_seconds_sum", rank="3", phase="sync") == 8.5
    assert value("training_phase_seconds_count", rank="3", phase="sync") == 17
    assert value("training_bytes_total", rank="3", collective="all_reduce", direction="sent") == 17 * 4096
    assert value("training_run_info", run="20261128-080000-ddp-vgg11-4n-abcdef", **RUN) == 1


def test_the_id_of_a_run_is_on_one_series_alone(folder):
    with rank(folder), serving(TREES[0], folder) as port:
        assert [name for name, pairs in samples(get(port)[2]) if "run" in dict(pairs)] == ["syncbed_training_run_info"]


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed here")
def test_promtool_finds_no_fault(folder):
    with rank(folder), serving(TREES[0], folder) as port:
        text = get(port)[2]
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_the_kernel_does_not_say_is_absent(folder):
    with serving("cgroup-v2/no-controllers", folder) as port:
        names = {name for name, _ in samples(get(port)[2])}
    assert names == {"syncbed_node_info", "syncbed_node_cpu_seconds_total", "syncbed_node_processes"}


def test_targets_are_all_nodes(folder):
    with serving(TREES[0], folder, world_size=3) as port:
        status, content, text = get(port, "/targets")
    assert (status, content) == (200, "application/json")
    names = [f"trainer-{i}:{port}" for i in range(3)]
    assert json.loads(text) == [{"targets": names, "labels": {"job": "node"}}]


def test_other_pages_are_not_found(folder):
    with serving(TREES[0], folder) as port:
        assert [get(port, path)[0] for path in ("/", "/targets", "/metrics/../etc/passwd")] == [404, 404, 404]
        assert get(port, "/metrics?name[]=x")[0] == 200


def test_garbage_does_not_end_it(folder):
    with serving(TREES[0], folder) as port:
        for garbage in (
            b"\x00\xff\xfe\r\n\r\n",
            b"GET\r\n\r\n",
            b"GET /metrics HTTP/9.9\r\n\r\n",
            b"A" * 70_000 + b"\n",
            b"",
        ):
            with socket.create_connection(("127.0.0.1", port), timeout=60) as client, suppress(ConnectionError):
                client.sendall(garbage)  # it may have had enough before all is sent
        for method in (b"POST", b"DELETE", b"TRACE"):
            with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
                client.sendall(method + b" /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
                assert client.recv(100).startswith(b"HTTP/1.1 501")
        assert get(port)[0] == 200


def test_several_scrapes_use_one_connection(folder):
    import http.client

    with serving(TREES[0], folder) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        sockets = set()
        for _ in range(3):
            connection.request("GET", "/metrics")
            assert connection.getresponse().read().startswith(b"# HELP")
            sockets.add(connection.sock.getsockname())
        connection.close()
    assert len(sockets) == 1


# Training figures


def values(collector):
    return {name: value for (name, _), value in samples(page(collector.samples()).decode()).items()}


def test_figures_of_an_ended_rank_stay_for_a_last_scrape_then_go(folder):
    now = 100.0
    collector = TrainingCollector(folder, clock=lambda: now)
    with rank(folder):
        assert values(collector)["syncbed_training_step"] == 17
    for now in (101.0, 101.0 + KEEP_SECONDS - 0.1):  # noqa: B007  the clock reads it
        assert values(collector)["syncbed_training_step"] == 17
    now = 101.0 + KEEP_SECONDS
    assert values(collector) == {}
    assert list(folder.iterdir()) == []


def test_an_ended_ranks_id_is_given_again_and_its_figures_stay_as_long(folder):
    """Each run empties the folder; the agent lives for many runs, and remembers none of those that are gone."""
    now = 100.0
    collector = TrainingCollector(folder, clock=lambda: now)
    folder.mkdir(exist_ok=True)
    file = folder / "counter_4194304.db"  # no process has an id that high
    for now in (100.0, 100.0 + 2 * KEEP_SECONDS):  # noqa: B007  the clock reads it
        file.write_bytes(b"")
        collector.samples()
        assert file.exists()
        file.unlink()
        collector.samples()
    assert collector._dead_since == {}


def test_the_next_run_starts_clean(folder):
    collector = TrainingCollector(folder)
    with rank(folder):
        assert values(collector)["syncbed_training_samples_total"] == 1088
    shutil.rmtree(folder)  # the launcher empties the folder when a run starts
    with rank(folder):
        assert values(collector)["syncbed_training_samples_total"] == 1088


def test_no_folder_is_no_figures(folder):
    assert values(TrainingCollector(folder)) == {}


@pytest.mark.parametrize("name", ["counter_1.db", "gauge_mostrecent_1.db", "nonsense.db", "gauge.db"])
@pytest.mark.parametrize("content", [b"", b"\x10", b"\xff" * 200])
def test_half_made_files_are_passed_over(folder, name, content):
    folder.mkdir()
    (folder / name).write_bytes(content)
    assert values(TrainingCollector(folder)) == {}


def test_a_file_that_vanishes_while_it_is_read(folder, monkeypatch):
    collector = TrainingCollector(folder)
    with rank(folder) as process:
        listed, found = [], collector._files

        def list_one_that_is_gone():
            listed.append(1)
            return [*found(), *([folder / f"counter_{process.pid}0.db"] if len(listed) <= 2 else [])]

        monkeypatch.setattr(collector, "_files", list_one_that_is_gone)
        assert values(collector)["syncbed_training_step"] == 17


# The process


@contextmanager
def agent(*arguments, env=None, **options):
    process = subprocess.Popen(
        [sys.executable, "-m", "node.agent", *arguments],
        cwd=ROOT,
        env={k: v for k, v in os.environ.items() if k not in ("WORLD_SIZE", "NODE_NAME")} | (env or {}),
        stdin=options.get("stdin", subprocess.DEVNULL),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def port_of(process) -> int:
    return json.loads(process.stdout.readline())["port"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_code_0_also_with_a_client_connected(number):
    with agent("--port", "0") as process, socket.create_connection(("127.0.0.1", port_of(process))):
        process.send_signal(number)
        assert process.wait(60) == 0


def test_it_imports_neither_torch_nor_docker_and_stays_small(tmp_path):
    with rank(tmp_path), agent("--port", "0", env={"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}) as process:
        port = port_of(process)
        for _ in range(20):
            assert get(port)[0] == 200
        assert psutil.Process(process.pid).memory_info().rss < 64 * 2**20
    modules = "import sys, node.agent; print([m for m in ('torch', 'docker', 'numpy', 'psutil') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", modules], cwd=ROOT) == b"[]\n"


def test_every_metric_of_a_real_agent_is_documented(tmp_path):
    with rank(tmp_path), agent("--port", "0", env={"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}) as process:
        text = get(port_of(process))[2]
    docs = documented()
    assert {name: kind for name, kind in kinds(text).items() if docs.get(name) != kind} == {}
    assert 'interface="lo"' not in text
    assert ("syncbed_training_step", (("rank", "3"),)) in samples(text)


def test_end_of_stdin_ends_it():
    with agent("--port", "0", "--watch-stdin", stdin=subprocess.PIPE) as process:
        port_of(process)
        process.stdin.close()
        process.stdin = None
        assert process.wait(60) == 0


def test_bad_input_is_one_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for arguments, env, code, word in (
            (["--port", port, "--process", "1"], {}, 1, f"port {port} cannot be had"),
            (["--port", "70000"], {}, 1, "port 70000 cannot be had"),
            (["--port", "0"], {"WORLD_SIZE": "four"}, 2, "WORLD_SIZE=four: a whole number from 1"),
            (["--process", "x"], {}, 2, "invalid int value: 'x'"),
        ):
            with agent(*arguments, env=env) as process:
                error = process.communicate(timeout=60)[1].decode()
                assert process.returncode == code
                assert word in error.splitlines()[-1]
                assert "Traceback" not in error


# A process tree in place of a container


BUSY_CHILD = (
    "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]]); print('done', flush=True); input()"
)
BURN = "import time\nwhile time.process_time() < 0.5: pass"


def test_process_tree_counts_children_that_have_ended():
    command = [sys.executable, "-c", BUSY_CHILD, BURN]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"done\n"
        tree = ProcessTree([process.pid])
        usage = tree.read()
        assert 0.5 <= usage.cpu_seconds < 5
        assert usage.cpu_seconds == usage.cpu_user_seconds + usage.cpu_system_seconds
        assert (usage.processes, usage.open_files) == (1, psutil.Process(process.pid).num_fds())
        resident = psutil.Process(process.pid).memory_info().rss
        assert usage.memory_working_set_bytes == usage.memory_peak_bytes == pytest.approx(resident, rel=0.05)
        assert usage.cpu_limit_cores is usage.cpu_throttled_seconds is usage.memory_limit_bytes is None
        process.communicate(b"\n")
    assert tree.read().cpu_seconds is None


def test_process_tree_counts_descendants_that_live():
    grandchild = [sys.executable, "-c", BUSY_CHILD, "x = bytearray(64 * 2**20); print('up', flush=True); input()"]
    with subprocess.Popen(grandchild, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"up\n"
        usage = ProcessTree([process.pid]).read()
        assert usage.processes == 2
        assert usage.memory_working_set_bytes > 64 * 2**20
        process.communicate(b"\n\n")


def test_agent_of_a_process_exports_its_tree_and_the_loopback():
    with agent("--port", "0", "--node", "local-2", "--process", str(os.getpid())) as process:
        got = samples(get(port_of(process))[2])
    assert got["syncbed_node_info", (("name", "local-2"), ("source", "process"))] == 1
    assert {pairs for name, pairs in got if "network" in name} == {(("interface", "lo"),)}
    own = psutil.Process().memory_info().rss
    assert got["syncbed_node_memory_working_set_bytes", ()] >= 0.9 * own
    assert got["syncbed_node_processes", ()] >= 2  # this one and the agent itself
