"""Processes of a container that nobody started who may: a rank's children that left it, whatever their environment.

The kernel's parents cannot be feigned. What Docker started in the container (launchers, health checks) has parent 0;
the agent is the first child of init. All else that init has is an orphan: it outlived its run.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

AGENT = b"node.agent"  # in init's command line in a node's container, and in that of no other machine's
ROUNDS = 20  # a process that forks all the time is there again under another id


class Process(NamedTuple):
    pid: int
    parent: int
    started: int  # in clock ticks since the boot
    is_stopped: bool = False  # by a signal or a debugger


def end_strays(proc: Path = Path("/proc")) -> list[int]:
    """Kill what outlived its run in this container. Returns their ids; outside a node's container, does nothing."""
    killed: dict[int, None] = {}
    for _ in range(ROUNDS):
        pids = strays(proc)
        if not pids:
            break
        for pid in pids:
            with suppress(OSError):  # gone already
                os.kill(pid, signal.SIGKILL)
        killed.update(dict.fromkeys(pids))
        _await_end(pids, proc)
    return list(killed)


def is_node(proc: Path) -> bool:
    """Whether these are the processes of a node's container."""
    with suppress(OSError):
        return AGENT in (proc / "1" / "cmdline").read_bytes()
    return False


def started_by_docker(module: str, proc: Path = Path("/proc")) -> Iterator[tuple[int, bool]]:
    """Processes that Docker started in this container to run a module of Python: (id, whether it is stopped).

    A rank can start none such.
    """
    for stat in proc.glob("[0-9]*/stat") if is_node(proc) else ():
        process = _read(stat)
        with suppress(OSError):
            if process and process.parent == 0 and module.encode() in stat.with_name("cmdline").read_bytes():
                yield process.pid, process.is_stopped


def strays(proc: Path) -> list[int]:
    """The ids of init's descendants but the agent and its own."""
    if not is_node(proc):
        return []
    processes = [process for path in proc.glob("[0-9]*/stat") if (process := _read(path))]
    children = [process for process in processes if process.parent == 1]
    if not children:
        return []
    agent = min(children, key=lambda child: (child.started, child.pid))
    orphans = [child.pid for child in children if child is not agent]
    for pid in orphans:  # grows while it is read
        orphans += [process.pid for process in processes if process.parent == pid]
    return orphans


def _read(stat: Path) -> Process | None:
    """proc(5): the name, in brackets, may hold anything. None: it has ended, or is a zombie."""
    with suppress(OSError, ValueError, IndexError):
        before, _, rest = stat.read_bytes().rpartition(b")")
        state, parent, *more = rest.split()
        if state not in (b"Z", b"X"):
            return Process(int(before.split()[0]), int(parent), int(more[17]), state in (b"T", b"t"))
    return None


def _await_end(pids: list[int], proc: Path) -> None:
    from node import ending

    if proc == Path("/proc"):
        ending.kill(ending.processes(pids))
