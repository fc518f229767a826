"""MPI's process manager under our launchers, with real processes and without Docker or torch."""

import json
import os
import subprocess
import sys

import psutil
import pytest
from orchestrator import processes_of, wait_until
from signed import KEY, next_event

from monitor.runtime.local import _environment
from node import ending, mpi
from node.ending import ended
from node.leftovers import launcher_command
from trainer import events
from trainer.environment import EnvironmentFault
from trainer.wire.mpi import Mpi

pytest.importorskip("mpi4py", reason="mpich and mpi4py are not installed here; `make torch` installs them")

# A rank without torch: `Array` is as much of a tensor as trainer/wire/mpi.py needs.
RANK = """
import os, sys, time
import numpy as np
from trainer.wire.mpi import Mpi

class Array(np.ndarray):
    def numpy(self):
        return self

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
world = Mpi(rank, size)
array = np.full(100_001, rank + 1, dtype=np.float32).view(Array)
print("up", flush=True)
"""
SUM = "world.all_reduce(array, 30)\nprint(array.min(), array.max(), flush=True)\nworld.close()"
SLEEP = "time.sleep(600)"
LATE = "\nif rank == 1:\n    time.sleep(600)\n"


# A launcher to which Python is MPICH's proxy.
PYTHON_AS_PROXY = """
import pathlib, sys
from node import launcher, mpi
mpi.proxy_program = lambda: pathlib.Path(sys.executable)
sys.argv[1:] = ["run", "of a test"]
sys.exit(launcher.main())
"""


class World:
    """A launcher per rank, each with a node of its own."""

    def __init__(self, folder, size, then, run="mpi-test"):
        self.folder, self.size, self.then, self.id = folder, size, then, f"{run}-{os.getpid()}-{folder.name}"
        self.launchers = [self.launch(0, {"world_size": size, "host": "127.0.0.1"})]
        told = next_event(self.launchers[0].stdout)
        assert isinstance(told, events.Proxies)
        self.launchers += [self.launch(rank, {"proxy": told.commands[rank]}) for rank in range(1, size)]

    def launch(self, rank, mpi, argv=None, program=None):
        own = {"RANK": str(rank), "WORLD_SIZE": str(self.size), "GLOO_SOCKET_IFNAME": "lo"}
        who = {"run": self.id, "key": KEY, "rank": rank, "local_rank": 0, "env": own, "mpi": mpi}
        process = subprocess.Popen(
            [sys.executable, "-c", program] if program else launcher_command(sys.executable, self.id),
            env=_environment() | {"SYNCBED_STATE": str(self.folder / str(rank))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        who["argv"] = argv or [sys.executable, "-c", RANK + self.then]
        process.stdin.write(json.dumps(who) + "\n")
        process.stdin.flush()
        assert isinstance(next_event(process.stdout), events.Held)
        return process

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for launcher in self.launchers:
            launcher.kill()
            launcher.wait()
        self.nothing_left()

    def line(self, rank):
        return self.launchers[rank].stdout.readline().strip()

    def event(self, rank):
        return next_event(self.launchers[rank].stdout)

    def named(self, name):
        return processes_of(self.id, name)

    def nothing_left(self):
        wait_until(lambda: processes_of(self.id) == [])


@pytest.mark.parametrize("size", [1, 3])
def test_ranks_sum_over_mpi_and_hydra_ends_by_itself(tmp_path, size):
    with World(tmp_path, size, SUM) as world:
        total = float(sum(range(1, size + 1)))
        for rank in range(size):
            assert (world.line(rank), world.line(rank)) == ("up", f"{total} {total}")
            assert world.event(rank).code == 0
        assert [launcher.wait(30) for launcher in world.launchers] == [0] * size
        world.nothing_left()


def test_each_rank_has_a_proxy_and_one_has_mpiexec(tmp_path):
    with World(tmp_path, 2, SLEEP) as world:
        assert [world.line(rank) for rank in range(2)] == ["up", "up"]
        children = [[p.name() for p in psutil.Process(launcher.pid).children()] for launcher in world.launchers]
        python = psutil.Process().name()
        assert [sorted(names) for names in children] == [
            sorted(["mpiexec", "hydra_pmi_proxy", python]),
            sorted(["hydra_pmi_proxy", python]),
        ]


@pytest.mark.parametrize(("name", "rank"), [("mpiexec", 0), ("hydra_pmi_proxy", 1)])
def test_a_killed_process_manager_is_told(tmp_path, name, rank):
    with World(tmp_path, 2, SLEEP) as world:
        assert [world.line(r) for r in range(2)] == ["up", "up"]
        children = psutil.Process(world.launchers[rank].pid).children()
        next(p for p in children if p.name() == name).kill()
        told = world.event(rank)
        assert (told.rank, told.kind, told.message) == (
            rank,
            "own",
            f"MPI's process manager ({name}) was killed by SIGKILL",
        )


def test_a_killed_launcher_takes_its_rank_and_its_part_of_the_manager_along(tmp_path):
    with World(tmp_path, 2, SLEEP) as world:
        assert [world.line(r) for r in range(2)] == ["up", "up"]
        tree = psutil.Process(world.launchers[0].pid).children(recursive=True)
        world.launchers[0].kill()
        wait_until(lambda: all(map(ended, tree)))


def test_an_orchestrator_that_dies_while_ranks_wait_for_each_other_leaves_nothing(tmp_path):
    with World(tmp_path, 2, SLEEP) as world:
        world.launchers[1].kill()  # rank 0 waits for it in MPI_Init
        wait_until(lambda: world.named("hydra_pmi_proxy"))
        world.launchers[0].stdin.close()
        world.launchers[0].wait(30)
        world.nothing_left()


def test_the_word_kill_ends_a_launcher_that_has_no_rank_yet(tmp_path):
    with World(tmp_path, 1, SLEEP) as world:
        assert world.line(0) == "up"
        proxy = [sys.executable, "-c", "import time; time.sleep(600)"]
        world.launchers.append(world.launch(1, {"proxy": proxy}, program=PYTHON_AS_PROXY))
        wait_until(lambda: psutil.Process(world.launchers[1].pid).children())
        world.launchers[1].stdin.write("KILL\n")
        world.launchers[1].stdin.flush()
        assert world.launchers[1].wait(30) == 1


def test_a_proxy_that_ends_at_once_is_told(tmp_path):
    with World(tmp_path, 1, SLEEP) as world:
        world.launchers.append(world.launch(1, {"proxy": [str(mpi.proxy_program()), "--no-such-flag"]}))
        told = world.event(1)
        assert (told.kind, told.message) == ("own", "MPI's process manager ended before the rank was started")
        assert world.event(1).code == 1


@pytest.mark.parametrize("place", ["other/bin/hydra_pmi_proxy", "link/hydra_pmi_proxy", "hydra_pmi_proxy"])
def test_only_the_proxy_of_this_nodes_mpich_is_run(tmp_path, place):
    """The command line comes from rank 0's node."""
    (tmp_path / "other/bin").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "other/bin")
    program = tmp_path / "other/bin/hydra_pmi_proxy"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    with World(tmp_path, 1, SLEEP) as world:
        assert world.line(0) == "up"
        word = str(tmp_path / place) if "/" in place else place
        world.launchers.append(world.launch(1, {"proxy": [word]}))
        told = world.event(1)
        ours = f"{mpi.proxy_program()}, the one proxy of MPI that is run here"
        assert (told.kind, told.message) == ("own", f"{word!r} is not {ours}")
        assert world.event(1).code == 1
        assert not (tmp_path / "ran").exists()


PROXY = """
import os, socket, subprocess, time
subprocess.Popen(["sleep", "600"])
with socket.socket(fileno=int(os.environ["SYNCBED_MPI_HAND"])) as launcher:
    socket.send_fds(launcher, [b"{}"], [0])
time.sleep(600)
"""


def test_when_the_launcher_of_a_failed_rank_ends_all_of_the_manager_has_ended(tmp_path):
    with World(tmp_path, 1, SLEEP) as world:
        assert world.line(0) == "up"
        proxy = [sys.executable, "-c", PROXY]
        world.launchers.append(world.launch(1, {"proxy": proxy}, ["false"], PYTHON_AS_PROXY))
        assert world.launchers[1].wait(30) == 1
        left = world.named("sleep")
        ending.kill(left)
        assert left == []


def test_a_sum_that_a_rank_does_not_join_ends_at_the_deadline(tmp_path):
    late = LATE + "try:\n    world.all_reduce(array, 0.5)\nexcept RuntimeError as error:\n    print(error, flush=True)"
    with World(tmp_path, 2, late) as world:
        assert [world.line(0), world.line(0)] == ["up", "MPI_Iallreduce timed out"]


def test_a_rank_killed_during_the_sum_ends_the_other(tmp_path):
    """By MPICH, which ends a process whose peer's connection breaks, or else by the deadline."""
    mortal = """
array = np.ones(20_000_000, dtype=np.float32).view(Array)
if rank == 1:
    import signal, threading
    threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGKILL)).start()
while True:
    world.all_reduce(array, 5)
"""
    with World(tmp_path, 2, mortal) as world:
        assert [world.line(r) for r in range(2)] == ["up", "up"]
        assert world.event(1).signal == "SIGKILL"
        assert world.event(0).code > 0


def test_a_rank_that_was_not_started_for_mpi_is_refused(monkeypatch):
    monkeypatch.delenv("PMI_FD", raising=False)
    with pytest.raises(EnvironmentFault, match="start ranks with `syncbed run`"):
        Mpi(0, 1)


def test_mpiexec_is_that_of_this_environment():
    version = subprocess.run([mpi.mpiexec(), "--version"], capture_output=True, text=True).stdout
    assert "HYDRA" in version
    assert "manual" in version
