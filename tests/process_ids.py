"""A process under an id that was used before, which psutil has seen: its process_iter() keeps processes by their id."""

import os
import subprocess
from pathlib import Path

import psutil
import pytest

_LAST = Path("/proc/sys/kernel/ns_last_pid")
needs_root = pytest.mark.skipif(not os.access(_LAST, os.W_OK), reason="choosing a process id needs root")


def in_place_of_another(command: list[str], **options) -> subprocess.Popen:
    """Start this command under the id of a process that was seen, has ended, and was another (a tick of 10 ms ago)."""
    with subprocess.Popen(["sleep", "600"]) as earlier:
        ended = next(process for process in psutil.process_iter() if process.pid == earlier.pid)
        earlier.kill()
    for _ in range(1000):
        _LAST.write_text(str(ended.pid - 1))
        process = subprocess.Popen(command, **options)
        if process.pid == ended.pid and psutil.Process(process.pid) != ended:
            return process
        process.kill()
        with process:
            pass
    raise AssertionError(f"process id {ended.pid} is always taken")
