"""Ranks and launchers that nobody holds any more, found by the marks in their environment, and ended."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

from node import lock

LAUNCHER = "SYNCBED_LAUNCHER"  # in the environment of a launcher, and so of all it starts: its run's id


def end_leftovers() -> list[int]:
    """Kill ranks of this node that nobody holds (their launcher died while they were frozen). Returns their ids.

    A rank carries its node's STATE in its environment: where one kernel shows the processes of several nodes, those of
    the others are left alone.
    """
    mark = f"SYNCBED_STATE={lock.STATE}".encode()
    return kill_marked(lambda variables: mark in variables and any(v.startswith(b"SYNCBED_RUN_ID=") for v in variables))


def kill_marked(theirs: Callable[[list[bytes]], bool]) -> list[int]:
    """Kill the processes with such an environment ("NAME=value" each), but for this one, and wait until they have
    ended: what they hold is free then. Returns their ids.
    """
    killed = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        pid = int(environ.parent.name)
        try:
            if theirs(environ.read_bytes().split(b"\0")) and pid != os.getpid():
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
        except OSError:
            continue  # gone already, or not ours to see
    if killed:
        from node import ending

        ending.kill(ending.processes(killed))
    return killed
