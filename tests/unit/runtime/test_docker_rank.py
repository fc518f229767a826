"""How the Docker runtime lets go of a rank, with a socket in the place of the engine's."""

import socket
import struct
from queue import Queue
from types import SimpleNamespace

import docker
import pytest
from signed import KEY

from monitor.errors import UserError
from monitor.runtime import docker_rank
from monitor.runtime.docker import DockerRuntime
from monitor.runtime.docker_rank import DockerRank, Execution
from monitor.runtime.streams import RankOutput


class Calls(list):
    def end(self):
        self.append("end")


@pytest.fixture
def attached():
    """A handle, what it says, the engine's side of its stream, and the calls to its execution."""
    ours, engines = socket.socketpair()
    said, calls = Queue(), Calls()
    yield DockerRank(ours, b"{}\n", RankOutput(0, said, KEY), calls), said, engines, calls
    engines.close()


def test_a_launcher_whose_stream_is_open_is_ended_from_outside(attached):
    """It is stopped, perhaps: it was told KILL long before, and would hold the node."""
    handle, _, engines, calls = attached
    handle.signal("KILL")
    assert engines.recv(100) == b"{}\nKILL\n"
    handle.close()
    assert calls == ["end"]


def test_a_launcher_that_has_ended_is_left_alone(attached):
    handle, said, engines, calls = attached
    engines.sendall(struct.pack(">BxxxL", 1, 5) + b"line\n")
    engines.shutdown(socket.SHUT_WR)
    assert [said.get(timeout=30).line for _ in range(2)] == ["line", None]
    handle.close()
    assert calls == []


def test_what_a_launcher_that_was_killed_may_have_left_is_ended(attached):
    handle, said, engines, calls = attached
    engines.shutdown(socket.SHUT_WR)
    assert said.get(timeout=30).line is None
    handle.close(vanished=True)
    assert calls == ["end"]


@pytest.fixture
def node(monkeypatch):
    """A running node; `looks` are what comes of it each time it is looked at: another status, or an error."""
    monkeypatch.setattr(docker_rank, "SETTLE_SECONDS", 0.0)
    made = SimpleNamespace(status="running", attrs={"State": {"StartedAt": "2026-01-31T23:59:59.1Z"}}, looks=[])
    made.said = {"Running": False, "ExitCode": 137}
    made.client = SimpleNamespace(api=SimpleNamespace(exec_inspect=lambda number: made.said))

    def reload():
        look = made.looks.pop(0) if made.looks else made.status
        if isinstance(look, Exception):
            raise look
        made.status = look

    made.reload = reload
    return made


@pytest.mark.parametrize(
    "looks", [["removing"], [docker.errors.NotFound("")], ["running", "running", "removing"], ["running", "gone"]]
)
def test_a_node_that_was_taken_away_is_told_though_the_engine_knows_it_a_moment_later(node, monkeypatch, looks):
    """`cluster-down` kills all nodes at once: each launcher is killed first, as far as the engine can say."""
    monkeypatch.setattr(docker_rank, "SETTLE_SECONDS", 30.0)
    node.looks = [docker.errors.NotFound("") if look == "gone" else look for look in looks]
    assert Execution(node, "x", "run").end_reason() == "its node was taken away, as cluster-down does"


@pytest.mark.parametrize(
    ("status", "running", "why"),
    [
        ("running", False, "its launcher was killed"),
        ("exited", False, "its node stopped or the engine went away"),
        ("running", True, "its node stopped or the engine went away"),
    ],
)
def test_why_a_launcher_is_gone(node, status, running, why):
    node.looks, node.said = [status], {"Running": running, "ExitCode": 137}
    assert Execution(node, "x", "run").end_reason() == why


def test_a_launcher_whose_node_was_started_anew_was_not_killed_by_itself(node):
    """Docker restarts a node that died, or a fault did: the launcher's exit code alone would blame the launcher."""
    node.reload = lambda: setattr(node, "attrs", {"State": {"StartedAt": "2026-02-01T00:00:07.1Z"}})
    assert Execution(node, "x", "run").end_reason() == "its node was restarted"


def test_an_engine_that_went_away_is_no_further_error():
    def gone(*_):
        raise docker.errors.DockerException("Connection refused")

    state = {"State": {"StartedAt": ""}}
    api = SimpleNamespace(exec_inspect=gone)
    container = SimpleNamespace(client=SimpleNamespace(api=api), exec_run=gone, attrs=state, reload=gone)
    execution = Execution(container, "x", "run")
    assert execution.end_reason() == "its node stopped or the engine went away"
    execution.end()


def test_a_run_can_be_watched_on_its_dashboard_or_at_prometheus(monkeypatch):
    urls = {"grafana": "http://127.0.0.1:3000", "prometheus": "http://127.0.0.1:9090"}
    monkeypatch.setattr("monitor.engine.containers.urls", lambda client, project: urls)
    monkeypatch.setattr("monitor.runtime.docker.time", SimpleNamespace(time=lambda: 1234.5678))
    runtime = DockerRuntime(SimpleNamespace(api=None), "syncbed", {})
    run = "20260101-000000-ddp-vgg11-4n-abcdef"
    assert runtime.watch(run) == f"http://127.0.0.1:3000/d/syncbed-training?var-run={run}&from=1234568&to=now"
    del urls["grafana"]
    assert runtime.watch(run) == "http://127.0.0.1:9090"
    del urls["prometheus"]
    assert runtime.watch(run) is None

    def gone(*_):
        raise UserError("no Docker engine answers")

    monkeypatch.setattr("monitor.engine.containers.urls", gone)
    assert runtime.watch(run) is None
