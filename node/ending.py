"""Ending processes. A signal is sent in no time; until they have ended the kernel takes some, and they go on."""

import time
from collections.abc import Iterable
from contextlib import suppress

import psutil

SECONDS = 5.0  # a process that was killed takes longer only where it hangs, as in a file system


def ended(process: psutil.Process) -> bool:
    """Whether it runs no more: it is gone, or a zombie, as whoever started it has not asked yet how it ended."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def kill(processes: Iterable[psutil.Process], seconds: float | None = None) -> list[psutil.Process]:
    """Kill them, and wait until they have ended, at most `seconds` (default SECONDS). Returns those that have not."""
    alive = list(processes)
    for process in alive:
        with suppress(psutil.Error):
            process.kill()
    until = time.monotonic() + (SECONDS if seconds is None else seconds)
    while (alive := [process for process in alive if not ended(process)]) and time.monotonic() < until:
        time.sleep(0.01)
    return alive


def processes(pids: Iterable[int]) -> list[psutil.Process]:
    """Those of these ids that there are."""
    alive = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            alive.append(psutil.Process(pid))
    return alive


def all_processes() -> list[psutil.Process]:
    """All there are. psutil.process_iter() keeps processes by id, and signals none under an id that was used before."""
    return processes(psutil.pids())


def tree(pid: int) -> list[psutil.Process]:
    """The process of this id and all that descend from it; empty where there is none."""
    with suppress(psutil.NoSuchProcess):
        top = psutil.Process(pid)
        return [top, *top.children(recursive=True)]
    return []
