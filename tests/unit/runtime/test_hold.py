"""Who may change nodes: the run that has them, or whoever holds their first one. Not a run that came second."""

import socket
import struct
from contextlib import nullcontext
from pathlib import Path
from socket import SocketIO
from types import SimpleNamespace

import docker
import pytest
from test_conditions import OWN, Container

from monitor.engine import container_limits, inspection
from monitor.errors import UserError
from monitor.machine import leftovers
from monitor.runtime import wires
from monitor.runtime.base import Job
from monitor.runtime.docker import DockerRuntime
from monitor.runtime.hold import hold
from node.disk import removal
from trainer.spec import RunSpec

HELD_TO = OWN | {"cpus": 0.2}


class Node(Container):
    """A node that a run has given another CPU limit. One can be told from another."""

    __hash__, __eq__ = object.__hash__, object.__eq__

    def __init__(self, name="trainer-0"):
        super().__init__(quota=20_000, **{"syncbed.role": "node"})
        self.name, self.status, self.commands = name, "running", []

    def exec_run(self, command):
        self.commands.append(command)
        return 0, b""


@pytest.fixture
def ours(monkeypatch):
    """Whether node 0 can be held, as who asks for it finds it; and who asked."""
    found = SimpleNamespace(ours=True, asked=[])

    def hold(node, who):
        found.asked.append((node.name, who))
        return nullcontext(found.ours)

    monkeypatch.setattr(wires, "hold", hold, raising=False)
    return found


def runtime(*nodes) -> DockerRuntime:
    made = DockerRuntime(SimpleNamespace(api=None), "p", {node.name: node for node in nodes})
    made.limits, made._links, made._shaped = [HELD_TO] * len(nodes), (), set()
    return made


JOB = Job("run-1", RunSpec(nodes=1, batch=4), "key", Path())


def test_a_run_that_came_second_takes_nothing_back(ours):
    """The limits that it sees are those of the run that has the nodes."""
    node = Node()
    runtime(node).release(JOB)
    assert container_limits.now(node) == HELD_TO
    assert node.commands == [removal("/runs/run-1")]


def test_the_run_that_had_them_takes_back_what_it_set(ours):
    node = Node()
    place = runtime(node)
    place.apply_conditions(JOB, print)
    place.release(JOB)
    assert container_limits.now(node) == OWN
    assert ours.asked == [("trainer-0", "run-1")]


def test_not_when_the_next_run_has_them_already(ours):
    ours.ours = False
    node = Node()
    place = runtime(node)
    place.apply_conditions(JOB, print)
    place.release(JOB)
    assert container_limits.now(node) == HELD_TO


def test_nodes_that_nothing_was_changed_of_are_not_held(ours):
    node = Node()
    container_limits.put(node, OWN)
    assert wires.take_back(None, {node: False}, "p", node, "clean") == []
    assert ours.asked == []


@pytest.mark.parametrize(("says", "ours"), [(b"held\n", True), (b"busy\n", False), (b"", True)])
def test_the_node_says_whether_it_is_held_and_is_let_go_of(says, ours):
    near, far = socket.socketpair()
    api = SimpleNamespace(exec_create=lambda *_, **__: {"Id": "x"}, exec_start=lambda *_, **__: SocketIO(near, "r"))
    far.sendall(struct.pack(">BxxxL", 1, len(says)) + says)
    if not says:
        far.shutdown(socket.SHUT_WR)
    with hold(SimpleNamespace(id="n", client=SimpleNamespace(api=api)), "clean") as found:
        assert found is ours
    assert far.recv(1) == b""


def test_a_node_that_cannot_be_asked_is_nobodys():
    def gone(*_, **__):
        raise docker.errors.NotFound("no such container")

    api = SimpleNamespace(exec_create=gone, exec_start=gone)
    with hold(SimpleNamespace(id="n", client=SimpleNamespace(api=api)), "x") as found:
        assert found


@pytest.mark.parametrize("run", [None, "run-2"])
def test_clean_leaves_all_nodes_alone_while_a_run_has_one(ours, monkeypatch, run):
    """Its other nodes may be prepared for it, and the volume that its ranks write to is in all of them."""
    nodes = [Node("trainer-0"), Node("trainer-1")]
    facts = {"shaped": False, "leftovers": []}
    monkeypatch.setattr(leftovers, "containers", lambda client, project: nodes, raising=False)
    monkeypatch.setattr(inspection, "node_facts", lambda node: facts | {"run": run if node is nodes[0] else None})
    removed = leftovers._tidy(None, "p")
    assert [container_limits.now(node) for node in nodes] == [HELD_TO if run else OWN] * 2
    assert sum(len(node.commands) for node in nodes) == (0 if run else 1)
    assert len(removed) == (0 if run else 2)


def test_a_node_that_has_stopped_gets_its_limits_back_and_its_link_is_left(ours):
    """Its interface went with it; no helper can be put beside it."""
    node = Node()
    node.status = "exited"
    assert wires.take_back(None, {node: True}, "p", node, "run-1") == ["a run's limits of trainer-0"]
    assert container_limits.now(node) == OWN


def test_a_helper_that_cannot_be_started_is_removed():
    calls = []

    def start():
        raise docker.errors.APIError("its node is not running")

    helper = SimpleNamespace(start=start, remove=lambda **how: calls.append(how))
    containers = SimpleNamespace(create=lambda *_, **__: helper)
    with pytest.raises(UserError):
        wires.kinds(SimpleNamespace(containers=containers), "image", "p")
    assert calls == [{"force": True}]
