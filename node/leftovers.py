"""Launchers and ranks that nobody holds any more, found and ended.

A rank, and all that is started with it, is known by its environment: SYNCBED_RUN_ID and its node's SYNCBED_STATE. A
launcher is hidden (node/launcher.py), its environment too, so it is known by its command line.
"""

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from node import lock

LAUNCHER = ("-m", "node.launcher", "run")


def launcher_command(python: str, mark: str) -> list[str]:
    """The command line of a launcher. `mark`: what `mark_of` gives back."""
    return [python, *LAUNCHER, mark]


def mark_of(command: Sequence[str]) -> str | None:
    """The mark in the command line of a launcher; None for that of any other program."""
    return command[4] if tuple(command[1:4]) == LAUNCHER and len(command) == 5 else None


def end_leftovers() -> list[int]:
    """Kill ranks of this node that nobody holds (their launcher died while they were frozen). Returns their ids.

    Where one kernel shows the processes of several nodes, those of the others are left alone.
    """
    state = f"SYNCBED_STATE={lock.STATE}"
    return _end("environ", lambda variables: state in variables and any(_names_a_run(v) for v in variables))


def end_run(run_id: str) -> None:
    """Kill the launchers that carry this mark, and what has this run's id in its environment."""
    _end("cmdline", lambda command: mark_of(command) == run_id)
    _end("environ", lambda variables: f"SYNCBED_RUN_ID={run_id}" in variables)


def _names_a_run(variable: str) -> bool:
    return variable.startswith("SYNCBED_RUN_ID=")


def _end(file: str, theirs: Callable[[list[str]], bool]) -> list[int]:
    """Kill the processes with such words in their /proc/<pid>/`file`, but for this one, and wait until they have ended:
    what they hold is free then. Returns their ids.
    """
    killed = []
    for path in Path("/proc").glob(f"[0-9]*/{file}"):
        pid = int(path.parent.name)
        try:
            if theirs(os.fsdecode(path.read_bytes()).split("\0")[:-1]) and pid != os.getpid():
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
        except OSError:
            continue  # gone already, or not ours to see
    if killed:
        from node import ending

        ending.kill(ending.processes(killed))
    return killed
