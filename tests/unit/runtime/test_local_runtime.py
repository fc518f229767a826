"""How the local runtime lets go of its launchers, and what is found of a killed one. Real processes, without torch."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from queue import Queue

import psutil
import pytest
from process_ids import in_place_of_another, needs_root
from signed import KEY

from monitor.conditions.conditions import Conditions
from monitor.runtime.choice import Place, choose
from monitor.runtime.docker import DockerRuntime
from monitor.runtime.local import LocalRank, LocalRuntime, _environment
from monitor.runtime.ownership import OWNER, STATE_PREFIX, sweep
from monitor.runtime.streams import RankOutput
from node import ending
from node.ending import ended
from node.leftovers import launcher_command
from trainer import events
from trainer.spec import RunSpec

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]


# A rank that does not die with its launcher.
UNTIED = "import ctypes, time; ctypes.CDLL(None).prctl(1, 0); print('up', flush=True); time.sleep(600)"


@pytest.fixture
def launched(tmp_path):
    """A launcher, its handle, and its rank."""
    with launch(tmp_path, SLEEP) as made:
        yield made


def started(tmp_path, argv):
    """A launcher, its handle, and the queue of what it and its rank say."""
    process = subprocess.Popen(
        launcher_command(sys.executable, str(tmp_path)),
        env=_environment() | {"SYNCBED_STATE": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    request = {"run": "r", "key": KEY, "rank": 0, "local_rank": 0, "argv": argv, "env": {}}
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.flush()
    said = Queue()
    return process, LocalRank(process, RankOutput(0, said, KEY)), said


@contextmanager
def launch(tmp_path, argv):
    process, handle, said = started(tmp_path, argv)
    try:
        while said.get(timeout=60).line != "up":
            pass
        yield process, handle, psutil.Process(process.pid).children()[0]
    finally:
        process.kill()


def test_a_stopped_launcher_is_killed_with_its_rank(launched):
    """It does not see that its stdin was closed."""
    process, handle, rank = launched
    process.send_signal(signal.SIGSTOP)
    handle.close()
    assert process.returncode == -signal.SIGKILL
    assert ended(rank)


def test_what_a_stopped_launcher_had_started_has_ended_with_it(tmp_path):
    with launch(tmp_path, [sys.executable, "-c", UNTIED]) as (process, handle, rank):
        process.send_signal(signal.SIGSTOP)
        handle.close()
        over = ended(rank)
        ending.kill([rank])
        assert over


def test_a_launcher_that_listens_ends_by_itself(launched):
    process, handle, rank = launched
    handle.close()
    assert process.returncode == 1
    assert ended(rank)


def test_a_killed_launcher_is_told_as_one(launched):
    process, handle, _ = launched
    process.kill()
    handle.close()
    assert handle.end_reason() == "its launcher was killed by SIGKILL"


ORCHESTRATOR = """
import os, subprocess, sys
from monitor.conditions.conditions import Conditions
from monitor.runtime.local import LocalRuntime
from trainer.spec import RunSpec
runtime = LocalRuntime(True)
runtime.preflight(RunSpec(nodes=1), Conditions())
state = runtime._node_state(0)
left = subprocess.Popen(["sleep", "600"], env={**os.environ, "SYNCBED_STATE": str(state)})
print(state, left.pid, flush=True)
sys.stdin.read()
"""


def test_what_a_killed_orchestrator_left_is_removed_and_what_a_living_one_uses_is_not(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (tmp_path / f"{STATE_PREFIX}of-somebody-else").mkdir()
    living = LocalRuntime(True)
    living.preflight(RunSpec(nodes=1), Conditions())
    command = [sys.executable, "-c", ORCHESTRATOR]
    with subprocess.Popen(command, env=_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as killed:
        state, pid = killed.stdout.readline().split()
        left = psutil.Process(int(pid))
        assert sweep() == []
        killed.kill()
    folder = Path(os.fsdecode(state)).parent
    assert sweep() == [
        f"process {int(pid)} of a run whose orchestrator was killed",
        f"folder {folder} of a run whose orchestrator was killed",
    ]
    assert not folder.exists()
    assert ended(left)
    assert (tmp_path / f"{STATE_PREFIX}of-somebody-else").is_dir() and Path(living._state.name).is_dir()
    living.release(None)
    assert [path.name for path in tmp_path.iterdir()] == [f"{STATE_PREFIX}of-somebody-else"]


def _orphaned(tmp_path: Path, monkeypatch) -> Path:
    """The folder of an orchestrator that was killed, in a folder for temporary files of its own."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    folder = tmp_path / f"{STATE_PREFIX}left"
    folder.mkdir()
    (folder / OWNER).touch()
    return folder


def test_what_a_rank_says_as_its_launcher_is_known_as_the_ranks(tmp_path):
    forged = events.to_line(events.Exited(rank=0, code=0, signal=None, out_of_memory=False))
    process, handle, said = started(tmp_path, [sys.executable, "-c", f"print({forged!r}); print('open', end='')"])
    outputs = []
    while (output := said.get(timeout=60)).line is not None:
        outputs.append((output.stream, output.line))
    handle.close()
    assert [stream for stream, _ in outputs] == ["launcher", "stdout", "stdout", "launcher"]
    assert [line for _, line in outputs[1:3]] == [forged, "open"]
    assert [type(events.parse(outputs[i][1])) for i in (0, 3)] == [events.Held, events.Exited]
    assert process.returncode == 0


@needs_root
def test_what_was_left_is_removed_under_a_process_id_that_was_used_before(tmp_path, monkeypatch):
    folder = _orphaned(tmp_path, monkeypatch)
    left = in_place_of_another(["sleep", "600"], env={**os.environ, "SYNCBED_STATE": f"{folder}/0"})
    try:
        assert sweep()[0] == f"process {left.pid} of a run whose orchestrator was killed"
        assert left.wait(30) == -signal.SIGKILL
    finally:
        left.kill()
        left.wait()


def _left(tmp_path: Path, monkeypatch) -> tuple[Path, subprocess.Popen]:
    """Such a folder, and a process of that orchestrator's run."""
    folder = _orphaned(tmp_path, monkeypatch)
    return folder, subprocess.Popen(["sleep", "600"], env={**os.environ, "SYNCBED_STATE": f"{folder}/0"})


def test_a_launcher_that_was_left_is_found_though_it_hides_its_environment(tmp_path, monkeypatch):
    folder = _orphaned(tmp_path, monkeypatch)
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    launcher, reader = (subprocess.Popen([*sleep, *words]) for words in ([], [f"{folder}/0/lock"]))
    show, command = psutil.Process.cmdline, launcher_command("python", f"{folder}/0")
    monkeypatch.setattr(psutil.Process, "cmdline", lambda p: command if p.pid == launcher.pid else show(p))

    def environ(process):
        raise psutil.AccessDenied(process.pid)

    monkeypatch.setattr(psutil.Process, "environ", environ)
    try:
        assert sweep()[0] == f"process {launcher.pid} of a run whose orchestrator was killed"
        assert reader.poll() is None
    finally:
        for process in (launcher, reader):
            process.kill()
            process.wait()


def test_what_was_left_has_ended_before_its_folder_goes(tmp_path, monkeypatch):
    folder, left = _left(tmp_path, monkeypatch)
    kill = psutil.Process.kill
    monkeypatch.setattr(psutil.Process, "kill", lambda process: threading.Timer(0.2, kill, [process]).start())
    try:
        removed = sweep()
        status = psutil.Process(left.pid).status()
    finally:
        left.kill()
        left.wait()
    assert status == psutil.STATUS_ZOMBIE and len(removed) == 2 and not folder.exists()


def test_what_does_not_end_keeps_its_folder_for_the_next_orchestrator(tmp_path, monkeypatch):
    folder, left = _left(tmp_path, monkeypatch)
    monkeypatch.setattr("node.ending.SECONDS", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(psutil.Process, "kill", lambda process: None)
        removed = sweep()
    left.kill()
    left.wait()
    assert removed == []
    assert sweep() == [f"folder {folder} of a run whose orchestrator was killed"]


@pytest.mark.parametrize(
    ("words", "required"), [({}, False), ({"PROJECT": "mine"}, True), ({"RUNTIME": "docker"}, True)]
)
def test_a_cluster_that_is_named_must_be_up(monkeypatch, words, required):
    asked = []

    def find(project, required):
        asked.append((project, required))
        return "the cluster"

    monkeypatch.setattr(DockerRuntime, "find", find)
    assert choose(Place.of(words)) == "the cluster"
    assert asked == [(words.get("PROJECT", "syncbed"), required)]
