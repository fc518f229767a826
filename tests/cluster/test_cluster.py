"""The cluster itself: hardening and limits as the engine and the kernel have them, up, scaling, down."""

import json
import os
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from orchestrator import wait_until
from ports import free_port
from testbed import PROJECT, command, said, syncbed

from monitor.conditions.conditions import Conditions
from monitor.engine import inspection, naming
from monitor.engine.containers import containers, remove_project
from monitor.engine.images import code_hash
from monitor.errors import UserError
from monitor.runtime.docker import DockerRuntime
from trainer.spec import RunSpec

OTHER = f"{PROJECT}-2"  # a second cluster, for what would disturb the first


@pytest.fixture
def other(client):
    """Words for a second, small cluster, which is removed afterwards whatever happened."""
    remove_project(client, OTHER)
    yield [f"PROJECT={OTHER}", "MEMORY=512m", f"PROMETHEUS_PORT={free_port()}", f"GRAFANA_PORT={free_port()}"]
    remove_project(client, OTHER)


def belongings(client, project):
    """Names of everything that carries the project's label, or Compose's, or the name."""
    found = set()
    for label in (naming.PROJECT_LABEL, "com.docker.compose.project"):
        mine = {"label": f"{label}={project}"}
        found |= {c.name for c in client.containers.list(all=True, filters=mine)}
        found |= {n.name for n in client.networks.list(filters=mine)}
        found |= {v.name for v in client.volumes.list(filters=mine)}
    found |= {n.name for n in client.networks.list() if n.name.startswith(f"{project}_")}
    return found | {v.name for v in client.volumes.list() if v.name.startswith(f"{project}_")}


def inside(container, script):
    code, out = container.exec_run(["sh", "-c", script])
    return code, out.decode()


def service(container):
    return container.labels["com.docker.compose.service"]


def starts(client, project):
    return {c.name: (c.id, c.attrs["State"]["StartedAt"]) for c in containers(client, project)}


def test_every_container_is_hardened(cluster):
    services = containers(cluster.client, cluster.project)
    assert {c.labels["com.docker.compose.service"] for c in services} >= {
        *(f"trainer-{i}" for i in range(4)),
        "prometheus",
    }
    for container in services:
        config, host = container.attrs["Config"], container.attrs["HostConfig"]
        assert config["User"].split(":")[0] not in ("", "0", "root"), container.name
        assert host["ReadonlyRootfs"] is True
        assert host["CapDrop"] == ["ALL"] and not host["CapAdd"]
        assert "no-new-privileges:true" in host["SecurityOpt"]
        assert host["Privileged"] is False and not host["Devices"]
        assert 0 < host["PidsLimit"] <= 512
        assert host["Memory"] > 0 and host["MemorySwap"] == host["Memory"]
        assert host["CpuQuota"] > 0 or host["NanoCpus"] > 0
        assert host["Init"] is True
        assert host["RestartPolicy"]["Name"] == "unless-stopped"
        assert host["LogConfig"]["Type"] == "json-file" and {"max-size", "max-file"} <= set(host["LogConfig"]["Config"])
        assert not host["Binds"] or not any(bind.startswith("/") for bind in host["Binds"]), "no folder of the host"
        assert all(mount["Type"] != "bind" for mount in container.attrs["Mounts"])
        published = [b for bindings in (host["PortBindings"] or {}).values() for b in bindings or ()]
        assert all(b["HostIp"] == "127.0.0.1" for b in published)
        assert container.attrs["State"]["Health"]["Status"] == "healthy"


def test_no_process_is_root_and_none_has_a_capability(cluster):
    for container in containers(cluster.client, cluster.project):
        out = said(container, "sh", "-c", "cat /proc/[0-9]*/status; true")  # some end meanwhile
        # The engine's own, which is about to become a health check, still is root for a moment.
        lines = [line for own in out.split("Name:\t") if not own.startswith("runc:") for line in own.splitlines()]
        users = {line.split()[2] for line in lines if line.startswith("Uid:")}
        assert users and "0" not in users, container.name
        assert {line.split()[1] for line in lines if line.startswith(("CapEff:", "CapPrm:"))} == {"0" * 16}
        assert {line.split()[1] for line in lines if line.startswith("NoNewPrivs:")} == {"1"}


def test_file_systems(cluster):
    node = cluster.node(0)
    for place in ("/x", "/opt/syncbed/x", "/data/x", "/etc/x"):
        assert inside(node, f"touch {place}")[0] != 0, place
    for place in ("/tmp/x", "/run/syncbed/x", "/runs/x"):
        assert inside(node, f"touch {place} && rm {place}")[0] == 0, place


def test_the_runs_volume_is_shared_by_the_nodes(cluster):
    inside(cluster.node(0), "echo from-0 >/runs/shared")
    assert said(cluster.node(3), "cat", "/runs/shared") == "from-0\n"
    assert inside(cluster.node(3), "rm /runs/shared")[0] == 0


def test_limits_are_what_was_asked_for_and_what_the_engine_says(cluster):
    for rank, container in enumerate(cluster.nodes):
        fact, host = inspection.node_facts(container), container.attrs["HostConfig"]
        assert fact["rank"] == rank and fact["world_size"] == 4
        assert fact["hostname"] == f"trainer-{rank}"
        assert not any(address.startswith("127.") for address in fact["addresses"])
        assert all(fact["peers"][f"trainer-{peer}"] for peer in range(4))
        assert fact["cpu_limit_cores"] == pytest.approx(host["CpuQuota"] / host["CpuPeriod"], abs=0.002)
        assert fact["memory_limit_bytes"] == host["Memory"]
        assert fact["shm_bytes"] == host["ShmSize"] == 256 * 2**20
        assert fact["code"] == code_hash() == container.labels[naming.CODE_LABEL]
        assert fact["run"] is None and fact["leftovers"] == []


def test_a_fork_bomb_stops_at_the_pids_limit(cluster):
    node = cluster.node(3)
    limit = node.attrs["HostConfig"]["PidsLimit"]
    script = (
        "import os, time\nkids = []\ntry:\n  while len(kids) < 2000:\n    pid = os.fork()\n"
        "    if pid == 0: time.sleep(60); os._exit(0)\n    kids.append(pid)\n"
        "except OSError: pass\nprint(len(kids))\nfor pid in kids: os.kill(pid, 9); os.waitpid(pid, 0)\n"
    )
    assert 0 < int(said(node, "python", "-c", script)) < limit


def test_up_again_changes_nothing(cluster):
    before = starts(cluster.client, cluster.project)
    again = syncbed("up", *cluster.settings)
    assert again.returncode == 0, again.stderr
    assert "building" not in again.stderr
    assert {
        c.name: (c.id, c.attrs["State"]["StartedAt"]) for c in containers(cluster.client, cluster.project)
    } == before


def test_status_tells_every_node(cluster):
    told = json.loads(syncbed("status", f"PROJECT={PROJECT}", "--json").stdout)
    assert [row["name"] for row in told["nodes"]] == [f"trainer-{rank}" for rank in range(4)]
    assert all(row["state"] == "running" and row["health"] == "healthy" and row["run"] is None for row in told["nodes"])
    addresses = [inspection.node_facts(node)["addresses"] for node in cluster.nodes]
    assert [[row["address"]] for row in told["nodes"]] == addresses
    assert told["urls"]["prometheus"] == cluster.prometheus_url
    assert "trainer-3" in syncbed("status", f"PROJECT={PROJECT}").stdout


def test_logs(cluster):
    assert "prometheus" in syncbed("logs", f"PROJECT={PROJECT}", "NODE=prometheus").stdout
    refused = syncbed("logs", f"PROJECT={PROJECT}", "NODE=trainer-9")
    assert refused.returncode == 2 and "trainer-3" in refused.stderr


def test_a_port_that_is_taken_is_refused_before_anything_starts(client, other):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        refused = syncbed("up", *other, "NODES=1", f"PROMETHEUS_PORT={port}")
    assert refused.returncode == 2
    assert f"PROMETHEUS_PORT={port}: taken by" in refused.stderr and "is free" in refused.stderr
    assert not belongings(client, OTHER)


def test_another_clusters_port_is_refused_by_its_name(cluster, other):
    port = cluster.prometheus_url.rsplit(":", 1)[1]
    refused = syncbed("up", *other, "NODES=1", f"PROMETHEUS_PORT={port}")
    assert refused.returncode == 2 and f"container {cluster.service('prometheus').name}" in refused.stderr


def test_scaling_keeps_exactly_the_nodes_asked_for_and_down_leaves_nothing(client, other):
    for count, cpus in ((1, 0.3), (3, 0.2), (2, 0.2)):
        done = syncbed("up", *other, f"NODES={count}", f"CPUS={cpus}", "--json")
        assert done.returncode == 0, done.stderr
        present = containers(client, OTHER)
        names = [service(c) for c in present if c.labels[naming.ROLE_LABEL] == "node"]
        assert names == [f"trainer-{rank}" for rank in range(count)]
        told = json.loads(done.stdout)["nodes"]
        assert [node["cpu_limit_cores"] for node in told] == pytest.approx([cpus] * count, abs=0.002)
        assert {node["world_size"] for node in told} == {count}
        assert {node["memory_limit_bytes"] for node in told} == {512 * 2**20}
    there = belongings(client, OTHER)
    removed = syncbed("down", f"PROJECT={OTHER}")
    assert removed.returncode == 0
    assert all(name in removed.stdout for name in there)
    assert not belongings(client, OTHER)
    again = syncbed("down", f"PROJECT={OTHER}")
    assert again.returncode == 0 and "nothing to remove" in again.stdout


def test_up_mends_a_node_that_was_removed_stopped_or_paused(client, other):
    assert syncbed("up", *other, "NODES=3", "CPUS=0.2").returncode == 0
    first, second, third = (c for c in containers(client, OTHER) if c.labels[naming.ROLE_LABEL] == "node")
    first.stop(timeout=0)
    second.remove(force=True)
    third.pause()
    mended = syncbed("up", *other, "NODES=3", "CPUS=0.2", "--json")
    assert mended.returncode == 0, mended.stderr
    assert [node["name"] for node in json.loads(mended.stdout)["nodes"]] == ["trainer-0", "trainer-1", "trainer-2"]


def test_a_killed_agent_comes_back_by_itself(cluster):
    node = cluster.node(2)
    started = node.attrs["State"]["StartedAt"]
    inside(node, "kill -9 $(grep -al '[n]ode.agent' /proc/[0-9]*/cmdline | cut -d/ -f3)")
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        node.reload()
        state = node.attrs["State"]
        if state["StartedAt"] != started and state["Health"]["Status"] == "healthy":
            break
        time.sleep(0.2)
    assert state["StartedAt"] != started and state["Health"]["Status"] == "healthy"


def test_up_is_refused_while_a_run_holds_the_nodes(cluster):
    hold = (
        "import fcntl, os, time; lock = open('/run/syncbed/lock', 'a+'); fcntl.flock(lock, fcntl.LOCK_EX);"
        "lock.truncate(0); lock.write('the-run'); lock.flush(); print(os.getpid(), flush=True); time.sleep(60)"
    )
    node = cluster.node(0)
    started = cluster.client.api.exec_create(node.id, ["python", "-c", hold])["Id"]
    pid = int(next(cluster.client.api.exec_start(started, stream=True)))
    try:
        refused = syncbed("up", *cluster.settings, "CPUS=0.1")
        assert refused.returncode == 2 and "run the-run is going on" in refused.stderr
        told = json.loads(syncbed("status", f"PROJECT={PROJECT}", "--json").stdout)
        assert [row["run"] for row in told["nodes"]] == ["the-run", None, None, None]
    finally:
        inside(node, f"kill -9 {pid}")
        wait_until(lambda: inspection.node_facts(node)["run"] is None)


def test_a_cluster_of_an_older_image_is_told_from_a_current_one(cluster, monkeypatch):
    spec = RunSpec(nodes=4)
    DockerRuntime.find(PROJECT, required=True).preflight(spec, Conditions())
    monkeypatch.setattr("monitor.runtime.preflight.code_hash", lambda: "0123456789ab")
    with pytest.raises(UserError, match="older image"):
        DockerRuntime.find(PROJECT, required=True).preflight(spec, Conditions())


def test_clean_removes_a_dead_cluster_and_spares_the_living(cluster, client):
    dead = f"{PROJECT}-dead"
    try:
        client.networks.create(f"{dead}_nodes", labels={naming.PROJECT_LABEL: dead})
        client.volumes.create(f"{dead}_runs", labels={naming.PROJECT_LABEL: dead})
        young = syncbed("clean", f"PROJECT={dead}")
        assert young.returncode == 0 and "nothing was left" in young.stdout, "it might be starting"
        before = belongings(client, PROJECT)
        assert syncbed("clean", f"PROJECT={PROJECT}").returncode == 0
        assert belongings(client, PROJECT) == before
    finally:
        remove_project(client, dead)
    assert not belongings(client, dead)


def test_two_ups_at_once_end_in_one_good_cluster(client, other):
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: syncbed("up", *other, "NODES=2", "CPUS=0.3"), range(2)))
    assert [done.returncode for done in both] == [0, 0], [done.stderr for done in both]
    assert sum("waiting for another command" in done.stderr for done in both) == 1
    assert len(client.networks.list(f"{OTHER}_nodes")) == 1
    assert len([c for c in containers(client, OTHER) if c.labels[naming.ROLE_LABEL] == "node"]) == 2


def test_an_interrupted_up_leaves_what_down_can_clean(client, other):
    words = command("up", *other, "NODES=3", "CPUS=0.1")
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    started = subprocess.Popen(words, **both, text=True, start_new_session=True)
    for line in started.stdout:
        if line.startswith("starting"):
            break
    deadline = time.monotonic() + 100
    while not belongings(client, OTHER) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(started.pid, signal.SIGINT)
    rest, _ = started.communicate(timeout=120)
    assert started.returncode in (1, 130) and "Traceback" not in rest
    assert syncbed("down", f"PROJECT={OTHER}").returncode == 0
    assert not belongings(client, OTHER)
