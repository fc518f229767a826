"""`syncbed run` on real containers: the figures, and that whatever dies, the run ends, names it and leaves nothing."""

import csv
import json
import re
import signal

import pytest
from orchestrator import Orchestrator, wait_until, write_cifar
from testbed import said, syncbed

from monitor.conditions.conditions import Conditions
from monitor.errors import UserError
from monitor.metrics import prometheus
from monitor.runtime import docker as docker_runtime
from monitor.runtime import preflight
from trainer.spec import RunSpec

LONG = {"STEPS": 2000}  # ended by the test, long before its last step
RANKS = """
import pathlib
for process in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        words = (process / "cmdline").read_bytes().split(b"\\0")[1:3]
        if words == [b"-m", b"trainer"] or b"SYNCBED_RUN_ID=" in (process / "environ").read_bytes():
            print(process.name)
    except OSError:
        pass
"""


def start(cluster, folder, **settings):
    return Orchestrator(folder, RUNTIME="docker", PROJECT=cluster.project, **{"BATCH": 16} | settings)


def ranks_in(container) -> list[str]:
    """Process ids of ranks inside a node."""
    code, out = container.exec_run(["python", "-c", RANKS])
    return out.decode().split() if code == 0 else ["unknown"]


def nothing_left(cluster):
    wait_until(lambda: all(ranks_in(node) == [] for node in cluster.nodes))


def throttled(container) -> float:
    """Seconds that the node has waited for its CPU quota, as the engine counts."""
    stats = container.client.api.stats(container.id, stream=False, one_shot=True)
    return stats["cpu_stats"]["throttling_data"]["throttled_time"] / 1e9


@pytest.fixture(scope="module")
def finished(cluster, tmp_path_factory):
    """One run that went well, for all tests that only read it."""
    before = [throttled(node) for node in cluster.nodes]
    run = start(cluster, tmp_path_factory.mktemp("finished"), STEPS=4)
    run.code, run.out = run.finish()
    assert run.code == 0, run.out
    run.throttled = [throttled(node) - then for node, then in zip(cluster.nodes, before, strict=True)]
    return run


def test_a_run_on_four_nodes_leaves_its_whole_result(finished, cluster):
    result = finished.result()
    assert (result["status"], result["runtime"], finished.warnings()) == ("finished", "docker", [])
    assert [(rank["rank"], rank["node"]) for rank in result["ranks"]] == [(i, f"trainer-{i}") for i in range(4)]
    assert (result["samples_seen"], result["distinct_samples"], result["test_samples_counted"]) == (64, 64, 13)
    whole = result["warnings"] == []  # else scrapes came late, which it says
    for rank, counted in zip(result["ranks"], finished.throttled, strict=True):
        assert rank["sent_bytes"] == 4 * 9_231_114 * 4 * 2 * 3 // 4
        assert rank["network_sent_bytes"] > rank["sent_bytes"] or not whole
        # Half a core each; on a busy machine nobody may get more than that.
        assert counted / 4 - 1 <= rank["throttled_seconds"] <= counted + 1 or not whole
        assert rank["node_peak_memory_bytes"] > 150e6
    checkpoint = finished.run / result["checkpoints"][0]["path"]
    assert sum(path.stat().st_size for path in checkpoint.iterdir()) == result["checkpoints"][0]["bytes"]
    nothing_left(cluster)
    assert cluster.node(0).exec_run(["ls", "/runs"]).output == b""  # fetched, and removed there


def test_every_scrape_of_every_node_is_in_metrics_csv(finished, cluster):
    with (finished.run / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["node"] for row in rows} == {f"trainer-{i}" for i in range(4)}
    for node in {row["node"] for row in rows}:
        own = [row for row in rows if row["node"] == node]
        first, last = (float(own[i]["time"]) for i in (0, -1))
        seconds = [int(float(row["time"])) for row in own]
        # As many as Prometheus has: on a starved machine some fail, and are lost.
        (up,) = prometheus.query(cluster.prometheus_url, f'up{{node="{node}"}}[{round(last - first) + 1}s]', last)
        good = {int(when) for when, value in up["values"] if value == "1" and when >= first}
        assert seconds == sorted(good)
        assert len(up["values"]) >= 0.5 * (last - first)
        assert max(float(row["training_step"] or 0) for row in own) == 4


@pytest.mark.parametrize(("sign", "kind"), [("KILL", "killed"), ("STOP", "frozen")])
def test_a_lost_rank_ends_the_run_and_is_named(cluster, tmp_path, sign, kind):
    run = start(cluster, tmp_path, **LONG, DEADLINE=12)
    run.wait_for("step", rank=2)
    (pid,) = wait_until(lambda: ranks_in(cluster.node(2)))
    code, out = cluster.node(2).exec_run(["sh", "-c", f"kill -{sign} {pid}"])
    assert code == 0, out
    code, out = run.finish()
    error = run.result()["error"]
    assert (code, error["kind"], error["rank"]) == (1, kind, 2), out
    assert "rank 2 (trainer-2)" in out
    nothing_left(cluster)


def test_a_node_that_is_stopped_ends_the_run_and_is_named(cluster, tmp_path):
    run = start(cluster, tmp_path, **LONG, DEADLINE=12)
    run.wait_for("step", rank=3)
    cluster.node(3).kill()
    code, out = run.finish()
    error = run.result()["error"]
    cluster.node(3).start()
    wait_until(lambda: cluster.node(3).attrs["State"]["Health"]["Status"] == "healthy")
    assert (code, error["rank"]) == (1, 3), out
    assert error["kind"] in ("killed", "lost")
    nothing_left(cluster)


def test_a_node_out_of_memory_is_told_from_a_kill(cluster, tmp_path):
    large = write_cifar(tmp_path / "large", train=1024)
    run = start(cluster, tmp_path, BATCH=1024, STEPS=4, DATA_DIR=large, MEMORY="4g,512m,4g,4g")
    code, out = run.finish()
    error = run.result()["error"]
    assert (code, error["kind"], error["rank"]) == (1, "out_of_memory", 1), out
    told = re.fullmatch(
        r"rank 1 \(trainer-1\) ran out of memory .*: the node's limit of 512 MiB killed it; peak (\d+) MiB",
        error["message"],
    )
    assert 480 <= int(told[1]) <= 512


def test_a_run_begins_with_empty_folders_and_is_ended_when_a_node_fills_the_volume(cluster, tmp_path):
    node = cluster.node(1)
    leave = "mkdir -m 0 /runs/earlier /tmp/closed; rm -f /run/syncbed/lock; mkfifo /run/syncbed/lock"
    assert node.exec_run(["sh", "-c", f"{leave}; head -c 80000000 /dev/zero >/dev/shm/full"]).exit_code == 0
    run = start(cluster, tmp_path, NODES=2, MODEL="cnn3", DISK="64m", **LONG)
    run.wait_for("step", rank=1)
    assert not {"earlier", "closed", "full"} & set(said(node, "ls", "-A", "/runs", "/tmp", "/dev/shm").split())
    fill = "mkdir /runs/elsewhere && head -c 80000000 /dev/zero >/runs/elsewhere/zeros"
    assert node.exec_run(["sh", "-c", fill]).exit_code == 0
    code, out = run.finish()
    assert node.exec_run(["rm", "-r", "/runs/elsewhere"]).exit_code == 0
    error = run.result()["error"]
    assert (code, error["kind"], error["rank"]) == (1, "disk", 1), out
    assert re.search(r": its node holds [67]\d MiB in /runs, DISK=64m is the most$", error["message"])
    nothing_left(cluster)


def test_a_second_run_is_refused_with_the_first_ones_id(cluster, tmp_path):
    run = start(cluster, tmp_path, **LONG)
    run.wait_for("step")
    first = run.run.name
    (tmp_path / "second").mkdir()
    code, out = start(cluster, tmp_path / "second").finish()
    assert code == 2
    assert f"run {first} is on the cluster now" in out
    assert not list((tmp_path / "second").glob("runs/*"))
    held = json.loads(syncbed("status", f"PROJECT={cluster.project}", "--json").stdout)
    assert {node["run"] for node in held["nodes"]} == {first}
    run.process.send_signal(signal.SIGINT)
    code, _ = run.finish()
    assert (code, run.result()["error"]["kind"]) == (1, "interrupted")
    nothing_left(cluster)


@pytest.mark.parametrize("moment", ["started", "step"])
def test_a_killed_orchestrator_leaves_no_rank_and_the_next_run_works_at_once(cluster, tmp_path, moment):
    run = start(cluster, tmp_path, **LONG)
    run.wait_for(moment)
    run.process.kill()
    run.process.communicate()
    code, out = start(cluster, tmp_path, STEPS=1).finish()
    assert code == 0, out
    nothing_left(cluster)


def test_more_nodes_than_the_cluster_has_are_refused(cluster, tmp_path):
    code, out = start(cluster, tmp_path, NODES=8).finish()
    assert code == 2
    hint = f"make cluster-up NODES=8 PROJECT={cluster.project}"
    assert f"NODES=8: the cluster has 4; `{hint}` makes it larger" in out


def test_a_part_of_the_cluster_will_do(cluster, tmp_path):
    run = start(cluster, tmp_path, SYNC="single", STEPS=1)
    code, out = run.finish()
    assert code == 0, out
    assert [rank["node"] for rank in run.result()["ranks"]] == ["trainer-0"]
    assert run.result()["ranks"][0]["sent_bytes"] == 0


def test_a_cluster_of_an_older_image_is_refused(cluster, monkeypatch):
    monkeypatch.setattr(preflight, "code_hash", lambda: "0" * 64)
    runtime = docker_runtime.DockerRuntime.find(cluster.project, required=True)
    with pytest.raises(UserError, match=rf"older image .* `make cluster-up PROJECT={cluster.project}` rebuilds it"):
        runtime.preflight(RunSpec(), Conditions())


def test_limits_that_are_not_in_force_are_found(cluster):
    runtime = docker_runtime.DockerRuntime.find(cluster.project, required=True)
    runtime._containers["trainer-1"].attrs["HostConfig"]["CpuQuota"] = 170_000
    with pytest.raises(UserError, match=r"node trainer-1: CPUS=1.7 was asked for, 0.5 is in force"):
        runtime.preflight(RunSpec(), Conditions())


def test_without_prometheus_the_run_still_succeeds_with_a_warning(cluster, tmp_path):
    prometheus = cluster.service("prometheus")
    prometheus.stop()
    try:
        run = start(cluster, tmp_path, SYNC="single", STEPS=1)
        code, out = run.finish()
    finally:
        prometheus.start()
        wait_until(lambda: cluster.service("prometheus").attrs["State"]["Health"]["Status"] == "healthy")
    assert code == 0, out
    assert "Prometheus" in run.result()["warnings"][0]
    assert (run.run / "metrics.csv").read_text().startswith("time,node,")


def test_the_engine_is_named_when_it_does_not_answer(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
    done = syncbed("run", "RUNTIME=docker")
    assert done.returncode == 2
    assert "no Docker engine answers" in done.stderr
    assert done.stderr.count("\n") == 1
