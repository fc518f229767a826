"""What `syncbed up` takes and refuses, and what the engine's errors become. No engine is needed."""

import re
import socket
from types import SimpleNamespace

import pytest
import requests
from docker.errors import APIError, DockerException
from hypothesis import given
from hypothesis import strategies as some
from ports import free_port

from monitor import checkout
from monitor.cluster import command
from monitor.cluster.settings import SHM_BYTES, ClusterSettings
from monitor.engine import compose, images, sdk
from monitor.engine.naming import project
from monitor.errors import BAD_INPUT, FAILED, RunFailed, UserError
from monitor.machine import leftovers
from monitor.ports import check_port
from trainer.spec import MAX_NODES

MIB, GIB = 2**20, 2**30


def said_by_engine(text):
    return APIError("409 Client Error", explanation=text)


def settings(cores=8, memory=16 * GIB, **words):
    return ClusterSettings.from_settings(words, cores, memory)


def test_defaults_are_an_equal_share_of_the_host():
    made = settings(cores=2, memory=20 * GIB)
    assert (made.nodes, made.cpus, made.memory_bytes) == (4, 0.5, 4 * GIB)
    assert (made.project, made.prometheus_port, made.grafana_port) == ("syncbed", 9090, 3000)
    assert made.node_names() == ["trainer-0", "trainer-1", "trainer-2", "trainer-3"]
    assert made.stated() == "4 nodes, 0.5 cores and 4.00 GiB each (CPUS= and MEMORY= change it)"


@given(some.integers(1, MAX_NODES), some.integers(1, 128), some.integers(11 * GIB, 2048 * GIB))
def test_default_shares_never_exceed_the_host(nodes, cores, memory):
    made = settings(cores, memory, NODES=str(nodes))
    assert cores - 0.02 <= made.cpus * nodes <= cores or nodes * 0.001 > cores - made.cpus * nodes
    assert made.memory_bytes * nodes <= 0.8 * memory and made.memory_bytes % 4096 == 0


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512m", 512 * MIB),
        ("2g", 2 * GIB),
        ("1.5G", 3 * GIB // 2),
        ("2GiB", 2 * GIB),
        ("1073741824", GIB),
        ("600MB", 600 << 20),
    ],
)
def test_memory_is_read(text, size):
    assert settings(MEMORY=text).memory_bytes == size


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"NODES": "0"}, "NODES=0: a whole number from 1 to 16"),
        ({"NODES": "17"}, "NODES=17: a whole number from 1 to 16"),
        ({"NODES": "four"}, "NODES=four: a whole number"),
        ({"NODES": "-1"}, "NODES=-1: a whole number"),
        ({"NODES": "²"}, "NODES=²: a whole number"),
        ({"CPUS": "abc"}, "CPUS=abc: cores per node, a number from 0.05 to the host's 8"),
        ({"CPUS": "9"}, "CPUS=9: cores per node"),
        ({"CPUS": "0"}, "CPUS=0: cores per node"),
        ({"CPUS": "nan"}, "CPUS=nan: cores per node"),
        ({"CPUS": "1e400"}, "CPUS=1e400: cores per node"),
        ({"MEMORY": "100m"}, "MEMORY=100m: memory per node from 512m to the host's 16384m"),
        ({"MEMORY": "17g"}, "MEMORY=17g: memory per node"),
        ({"MEMORY": "lots"}, "MEMORY=lots: memory per node"),
        ({"PROJECT": "Mine"}, "PROJECT=Mine: lower-case letters"),
        ({"PROJECT": "../x"}, "PROJECT=../x: lower-case letters"),
        ({"PROMETHEUS_PORT": "0"}, "PROMETHEUS_PORT=0: a whole number from 1 to 65535"),
        ({"GRAFANA_PORT": "9090"}, "GRAFANA_PORT=9090: Prometheus has it"),
        ({"NDOES": "3"}, "NDOES=3: no such setting; did you mean NODES?"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(words, said):
    with pytest.raises(UserError, match=re.escape(said)) as refused:
        settings(**words)
    assert refused.value.exit_code == BAD_INPUT and "\n" not in str(refused.value)


def test_too_many_nodes_for_the_memory_says_how_many_fit():
    with pytest.raises(UserError, match="NODES=16: 204 MiB of memory a node, 512 are needed; NODES=6 would fit"):
        settings(memory=4 * GIB, NODES="16")
    assert settings(memory=4 * GIB, NODES="6").memory_bytes >= 512 * MIB


def test_compose_gets_every_limit():
    made = settings(NODES="3", CPUS="0.25", MEMORY="1g", PROMETHEUS_PORT="1234", GRAFANA_PORT="1235")
    assert made.variables(images.Images("t:1", "p:1", None)) == {
        "NODES": "3",
        "CPU_QUOTA": "25000",
        "MEMORY": str(GIB),
        "SHM_SIZE": str(SHM_BYTES),
        "PROMETHEUS_PORT": "1234",
        "GRAFANA_PORT": "1235",
        "TRAINER_IMAGE": "t:1",
        "PROMETHEUS_IMAGE": "p:1",
    }
    assert made.variables(images.Images("t:1", "p:1", "g:1"))["GRAFANA_IMAGE"] == "g:1"


def test_a_taken_port_is_named_with_one_that_is_free():
    with socket.socket() as held:
        held.bind(("127.0.0.1", free_port()))
        held.listen()
        port = held.getsockname()[1]
        with pytest.raises(UserError, match=f"GRAFANA_PORT={port}: taken by another program; GRAFANA_PORT=") as refused:
            check_port("GRAFANA_PORT", port)
    near = int(str(refused.value).split("GRAFANA_PORT=")[2].split()[0])
    check_port("GRAFANA_PORT", near)
    check_port("GRAFANA_PORT", port)  # free again


def test_project_has_a_default():
    assert project({}) == "syncbed" and project({"PROJECT": "mine-2"}) == "mine-2"


@pytest.mark.parametrize("handler", [command.up, command.down, command.status, command.logs, leftovers.clean])
def test_without_an_engine_every_command_says_so(handler, monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing.sock")
    with pytest.raises(UserError, match=r"no Docker engine answers at unix://.*: start it") as refused:
        handler({"PROJECT": "p"}, SimpleNamespace(json=False))
    assert refused.value.exit_code == BAD_INPUT


def test_without_an_engine_what_is_left_on_this_machine_is_still_removed(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing.sock")
    monkeypatch.setattr(leftovers.ownership, "sweep", lambda: ["folder x"])
    assert leftovers.clean({}, SimpleNamespace(json=False)) == 0
    said = capsys.readouterr()
    assert said.out == "removed folder x\n"
    assert "clusters were not looked for: no Docker engine answers" in said.err


@pytest.mark.parametrize("handler", [command.down, command.status, command.logs, leftovers.clean])
def test_unknown_settings_are_refused_before_the_engine_is_asked(handler, monkeypatch):
    monkeypatch.setattr(sdk, "connect", lambda: pytest.fail("asked the engine"))
    with pytest.raises(UserError, match="PROJCT=x: no such setting; did you mean PROJECT"):
        handler({"PROJCT": "x"}, SimpleNamespace(json=False))


@pytest.mark.parametrize("goals", ["", "cluster-down", "cluster-down run"])
def test_down_takes_no_part_of_a_cluster(goals, monkeypatch):
    monkeypatch.setattr(sdk, "connect", lambda: pytest.fail("asked the engine"))
    monkeypatch.setenv("SYNCBED_GOALS", goals)
    with pytest.raises(UserError, match=r"^NODES=2: a cluster goes down whole; PROJECT= says which one$"):
        command.down({"NODES": "2", "PROJECT": "mine"}, SimpleNamespace(json=False))


def test_down_leaves_the_words_of_an_up_that_follows_to_that(monkeypatch):
    def reached():
        raise UserError("asked the engine")

    monkeypatch.setattr(sdk, "connect", reached)
    monkeypatch.setenv("SYNCBED_GOALS", "cluster-down cluster-up")
    with pytest.raises(UserError, match="asked the engine"):
        command.down({"NODES": "2"}, SimpleNamespace(json=False))


@pytest.mark.parametrize(
    ("error", "said", "code"),
    [
        (
            DockerException("('Connection aborted.', PermissionError(13, 'Permission denied'))"),
            "usermod -aG docker",
            BAD_INPUT,
        ),
        (DockerException("('Connection aborted.', FileNotFoundError(2, 'No such file'))"), "start it", BAD_INPUT),
        (requests.exceptions.ConnectionError("[Errno 111] Connection refused"), "start it", BAD_INPUT),
        (requests.exceptions.ReadTimeout("Read timed out."), "does not answer in time", BAD_INPUT),
        (said_by_engine("write /var/lib: no space left on device"), "disk full", FAILED),
        (
            APIError("x", explanation="127.0.0.1:9090: port is already allocated"),
            "PROMETHEUS_PORT=",
            BAD_INPUT,
        ),
        (
            APIError("x", explanation="could not find an available, non-overlapping pool"),
            "network prune",
            BAD_INPUT,
        ),
        (said_by_engine("first line\nlast   line"), "Docker: last line", FAILED),
    ],
)
def test_errors_of_the_engine_become_one_line_that_helps(error, said, code):
    with pytest.raises(UserError, match=said) as raised, sdk.guard():
        raise error
    assert raised.value.exit_code == code and "\n" not in str(raised.value)


def test_compose_version_1_is_not_taken(monkeypatch, tmp_path):
    for name, answer in (("docker", "exit 1"), ("docker-compose", 'echo \'{"version":"1.29.2"}\'')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{answer}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(UserError, match="Compose v2 is missing: install"):
        compose.compose_command()
    (tmp_path / "docker-compose").write_text('#!/bin/sh\necho \'{"version":"v2.24.6"}\'\n')
    assert compose.compose_command() == (["docker-compose"], "2.24.6")


def test_a_command_that_is_missing_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="docker command is missing: install Docker"):
        compose.docker_cli()


class Scripted:
    """A container as the SDK shows it, that keeps what is done to it."""

    def __init__(self, service, status, health):
        self.labels, self.status, self.done = {"com.docker.compose.service": service}, status, []
        self.name = service
        network = {"NetworkSettings": {"Networks": {}}, "HostConfig": {"CpuQuota": 0, "CpuPeriod": 0, "Memory": 0}}
        self.attrs = {"State": {"Status": status, "Health": {"Status": health}}, **network}

    def unpause(self):
        self.done.append("unpause")

    def reload(self):
        self.status = "running"

    def restart(self, timeout):
        self.done.append("restart")


def test_up_starts_afresh_what_is_paused_or_unhealthy_before_compose_looks(monkeypatch, tmp_path):
    """And not before it is known that no run is on: paused nodes go on first, so that the first one can be asked."""
    nodes = [
        Scripted("trainer-0", "paused", "healthy"),
        Scripted("trainer-1", "running", "unhealthy"),
        Scripted("trainer-2", "running", "healthy"),
        Scripted("trainer-3", "exited", "unhealthy"),
    ]
    seen = {}

    def composed(*_):
        seen["compose"] = [list(node.done) for node in nodes]
        raise RunFailed("enough")

    def held(wanted, present):
        seen["held"] = [node.status for node in present]

    host = {"NCPU": 8, "MemTotal": 16 * GIB, "ServerVersion": "1"}
    monkeypatch.setattr(sdk, "connect", lambda: SimpleNamespace(info=lambda: host))
    monkeypatch.setattr(compose, "compose_command", lambda: (["compose"], "2"))
    monkeypatch.setattr(compose, "compose", composed)
    monkeypatch.setattr(checkout, "BUILD", tmp_path / ".build")
    monkeypatch.setattr(command, "containers", lambda *_: nodes)
    monkeypatch.setattr(command, "check_host_port", lambda *_: None)
    monkeypatch.setattr(command, "_refuse_while_training", held)
    monkeypatch.setattr(command, "_show_sick", lambda *_: None)
    monkeypatch.setattr(images, "ensure", lambda *_: images.Images("t", "p", None))
    with pytest.raises(RunFailed, match="enough"):
        command.up({"PROJECT": "unit-test"}, SimpleNamespace(json=True))
    assert seen["held"] == ["running", "running", "running", "exited"]
    assert seen["compose"] == [["unpause", "restart"], ["restart"], [], []]


def test_down_works_where_build_cannot_be_written_and_up_says_so(monkeypatch, tmp_path, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setattr(checkout, "BUILD", tmp_path / "file" / ".build")
    monkeypatch.setattr(sdk, "connect", lambda: None)
    monkeypatch.setattr(compose, "compose_command", lambda: (["compose"], "2"))
    monkeypatch.setattr(command, "remove_project", lambda client, name: ["container x"])
    assert command.down({}, SimpleNamespace(json=False)) == 0
    told = capsys.readouterr()
    assert told.out == "removed container x\n"
    assert "cannot be written (Not a directory)" in told.err
    with pytest.raises(UserError, match=r"\.build cannot be written \(Not a directory\): make it writable"):
        command.up({}, SimpleNamespace(json=False))
