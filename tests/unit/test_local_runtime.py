"""How the local runtime lets go of its launchers, with real processes and without torch."""

import json
import signal
import subprocess
import sys
from queue import Queue

import psutil
import pytest

from monitor.runtime.local import LocalRank, _environment

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]


@pytest.fixture
def launched(tmp_path):
    """A launcher, its handle, and its rank."""
    process = subprocess.Popen(
        [sys.executable, "-m", "monitor.node", "run"],
        env=_environment() | {"SYNCBED_STATE": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    request = {"run": "r", "rank": 0, "local_rank": 0, "argv": SLEEP, "env": {}}
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.flush()
    said = Queue()
    handle = LocalRank(process, 0, said)
    while said.get(timeout=30).line != "up":
        pass
    yield process, handle, psutil.Process(process.pid).children()[0]
    process.kill()


def test_a_stopped_launcher_is_killed_with_its_rank(launched):
    """It does not see that its stdin was closed."""
    process, handle, rank = launched
    process.send_signal(signal.SIGSTOP)
    handle.close()
    assert process.returncode == -signal.SIGKILL
    assert psutil.wait_procs([rank], timeout=30)[1] == [] or rank.status() == psutil.STATUS_ZOMBIE


def test_a_launcher_that_listens_ends_by_itself(launched):
    process, handle, rank = launched
    handle.close()
    assert process.returncode == 1
    assert not rank.is_running() or rank.status() == psutil.STATUS_ZOMBIE


def test_a_killed_launcher_is_told_as_one(launched):
    process, handle, _ = launched
    process.kill()
    handle.close()
    assert handle.gone() == "its launcher was killed by SIGKILL"
