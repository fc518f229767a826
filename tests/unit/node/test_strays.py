"""Which processes of a container outlived their run, over trees like those of /proc. No process is signalled."""

import os

import pytest

from node import strays


@pytest.fixture
def proc(tmp_path, monkeypatch):
    """A container: init, the agent, a launcher that Docker started, its rank, and the rank's helper."""
    monkeypatch.setattr(os, "kill", lambda pid, number: (tmp_path / str(pid) / "stat").unlink())
    add(tmp_path, 1, 0, 1, cmdline=b"/sbin/docker-init\0--\0python\0-m\0node.agent\0")
    add(tmp_path, 7, 1, 2)
    add(tmp_path, 40, 0, 50)
    add(tmp_path, 41, 40, 51)
    add(tmp_path, 42, 41, 52)
    return tmp_path


def add(proc, pid, parent, started, name="python", state="S", cmdline=b"python\0-m\0node.agent\0"):
    folder = proc / str(pid)
    folder.mkdir()
    (folder / "cmdline").write_bytes(cmdline)  # of any process: it is not believed
    (folder / "stat").write_text(f"{pid} ({name}) {state} {parent} " + "0 " * 17 + f"{started} 0 0")


def test_what_belongs_to_a_node_stays(proc):
    assert strays.end_strays(proc) == []
    assert all((proc / str(pid) / "stat").exists() for pid in (1, 7, 40, 41, 42))


@pytest.mark.parametrize("name", ["sleep", "a) S 0 (b", "node.agent", ""])
def test_an_orphan_is_ended_whatever_it_calls_itself(proc, name):
    add(proc, 60, 1, 55, name)
    assert strays.end_strays(proc) == [60]


def test_with_all_that_it_started_and_not_with_what_is_older(proc):
    for pid, parent in ((60, 1), (61, 60), (62, 61), (3, 1)):  # ids are used again: 3 is no older than 60
        add(proc, pid, parent, 55)
    assert sorted(strays.end_strays(proc)) == [3, 60, 61, 62]
    assert (proc / "7" / "stat").exists()


def test_a_zombie_is_left_to_init(proc):
    add(proc, 60, 1, 55, state="Z")
    assert strays.end_strays(proc) == []


@pytest.mark.parametrize("init", [b"/sbin/init\0", b"/usr/lib/systemd/systemd\0", b"bash\0", b""])
def test_outside_a_nodes_container_nothing_is_touched(proc, init):
    add(proc, 60, 1, 55)
    (proc / "1" / "cmdline").write_bytes(init)
    assert strays.end_strays(proc) == []


def test_here_nothing_is_touched(monkeypatch):
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("a process of this machine"))
    assert strays.end_strays() == []
