"""What a run leaves, whatever befalls it: scripted ranks, a real run folder. No process is started."""

import errno
import json
import os
import shutil
import signal
import subprocess
from types import SimpleNamespace

import pytest
from rich.console import Console
from scripted import ScriptedRuntime, finished, proxies, ready, step

from monitor.errors import Busy, RunFailed
from monitor.interrupt import SIGNALS, Stop
from monitor.run import recorder as recorder_module
from monitor.run.folder import make_folder
from monitor.run.plan import Plan
from monitor.run.recorder import Recorder
from trainer import events
from trainer.spec import RunSpec

SPEC = RunSpec(nodes=1, batch=4)
STARTED = events.Started(rank=0, world_size=1, host="here", pid=1, threads=1, interface="lo")
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def recorder(runs, script, spec=SPEC, **more):
    prepared = SimpleNamespace(key="key", label="a test's", manifest={"classes": ["a", "b"]})
    if isinstance(script[0], events.Ready):
        script = [STARTED, *script]
    runtime = ScriptedRuntime([script], **more)
    return Recorder(runtime, Plan(spec, prepared, runs), Console(quiet=True), 0.0, Stop())


def result_of(folder):
    return json.loads((folder / "result.json").read_text())


def checkpoint(number):
    return events.Checkpoint(rank=0, step=number, path=f"checkpoints/step-{number:06}", bytes=1, seconds=0.1)


def with_checkpoint():
    *before, last, exited = finished(0)
    return [*before, checkpoint(3), last, exited]


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 1 MB. `fill` leaves no room on it."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")

    def fill():
        with pytest.raises(OSError, match="No space"), (folder / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    yield SimpleNamespace(folder=folder, fill=fill)
    subprocess.run(["umount", "-l", folder], check=True)


def test_ids_are_unique_whatever_the_folder_and_sort_by_time(tmp_path, monkeypatch):
    """Nodes know a run by its id, and orchestrators with different RUNS_DIR may share them."""
    names = [make_folder(tmp_path / str(i), SPEC).name for i in range(50)]
    assert len(set(names)) == 50
    assert all(name.startswith("20") and name[8] == "-" for name in names)
    assert [name[:15] for name in names] == sorted(name[:15] for name in names)


def test_a_run_that_went_well(tmp_path):
    run = recorder(tmp_path, with_checkpoint())
    result = run.follow().document()
    assert result_of(run.folder) == result
    assert (result["status"], [c["step"] for c in result["checkpoints"]]) == ("finished", [3])
    assert {path.name for path in run.folder.iterdir()} == {"events.jsonl", "metrics.csv", "result.json", "spec.json"}
    assert (tmp_path / "latest").readlink().name == run.folder.name
    assert run.runtime.released


def test_a_refused_run_leaves_nothing_and_is_not_the_latest(tmp_path):
    first = recorder(tmp_path, finished(0))
    first.follow()
    second = recorder(tmp_path, [events.Busy(rank=0, run="2026-x")])
    with pytest.raises(Busy):
        second.follow()
    assert (tmp_path / "latest").readlink().name == first.folder.name
    assert {path.name for path in tmp_path.iterdir()} == {"latest", first.folder.name}
    assert second.runtime.released


def test_a_run_is_the_latest_once_it_holds_its_nodes(tmp_path):
    seen = []
    run = recorder(tmp_path, finished(0))
    take = run._take

    def look(event):
        take(event)
        seen.append((type(event).__name__, (tmp_path / "latest").is_symlink()))

    run.recovery.supervisor.on_event = look
    assert not (tmp_path / "latest").is_symlink()
    run.follow()
    assert seen[0] == ("Held", True)


def test_a_run_that_failed_before_it_held_its_nodes_is_the_latest_in_the_end(tmp_path):
    run = recorder(tmp_path, [proxies(1)], RunSpec(sync="psgd", transport="mpi", nodes=1, batch=4))
    assert run.follow().error.kind == "lost"
    assert (tmp_path / "latest").readlink().name == run.folder.name


@pytest.fixture
def handlers():
    """What is done on signals is put back."""
    before = [signal.getsignal(number) for number in SIGNALS]
    yield
    for number, handler in zip(SIGNALS, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_after_the_end_does_not_stop_the_result(tmp_path, monkeypatch, capfd, handlers, number):
    run = recorder(tmp_path, finished(0))
    run.recovery.supervisor.stop.listen()
    run.recovery.supervisor.stop.running()
    monkeypatch.setattr(run.runtime, "release", lambda job: os.kill(os.getpid(), number))
    monkeypatch.setattr(recorder_module, "write_csv", lambda path, rows: os.kill(os.getpid(), number))
    result = run.follow().document()
    assert result["status"] == "finished"
    assert result_of(run.folder) == result
    assert capfd.readouterr().err == "the run has ended: writing the result\n"


def test_a_signal_before_the_run_interrupts_and_a_second_one_does_not(handlers):
    stop = Stop().listen()
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
    assert stop.is_requested


def test_once_the_result_is_shown_signals_are_ignored(handlers):
    Stop().listen().done()
    assert {signal.getsignal(number) for number in SIGNALS} == {signal.SIG_IGN}


def test_what_is_ignored_when_it_starts_stays_ignored(handlers):
    """nohup syncbed run: it goes on when the terminal closes."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    Stop().listen()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert callable(signal.getsignal(signal.SIGTERM))


def test_a_checkpoint_that_finds_no_room_ends_the_run(tmp_path):
    def full(path):
        raise FULL

    run = recorder(tmp_path, with_checkpoint(), fetched=full)
    result = run.follow().document()
    assert (result["status"], result["error"]["kind"]) == ("failed", "disk")
    why = "checkpoint of step 3, cannot be written: No space left on device"
    assert result["error"]["message"] == f"{run.folder}, {why}"
    assert result["ranks"][0]["peak_memory_bytes"] == 1  # what came after it is known as well
    assert result["checkpoints"] == []
    assert result_of(run.folder) == result


def test_a_checkpoint_that_finds_no_room_ends_the_run_at_the_next_step(tmp_path):
    def full(path):
        raise FULL

    run = recorder(tmp_path, [ready(0), step(0), checkpoint(3)], holding=(0,), fetched=full)
    take = run._take

    def next_step(event):
        take(event)
        if isinstance(event, events.Checkpoint):
            run.checkpoints._courier.submit(run.runtime.handles[0].say, step(0, 4))  # in order: after the checkpoint

    run.recovery.supervisor.on_event = next_step
    error = run.follow().document()["error"]
    assert error["kind"] == "disk"
    assert error["message"].endswith("cannot be written: checkpoint of step 3: No space left on device")
    assert "KILL" in run.runtime.handles[0].signals


def test_figures_that_find_no_room_do_not_cost_the_result(tmp_path, monkeypatch):
    def full(path, rows):
        raise FULL

    monkeypatch.setattr(recorder_module, "write_csv", full)
    run = recorder(tmp_path, with_checkpoint())
    result = run.follow().document()
    assert (result["status"], result["error"]["kind"]) == ("failed", "disk")
    assert "metrics.csv cannot be written: No space left on device" in result["error"]["message"]
    assert (result_of(run.folder), len(result["checkpoints"])) == (result, 1)
    assert list(run.folder.glob("*.part")) == []


def test_a_disk_that_fills_up_during_the_run_has_room_for_the_result(small_disk):
    run = recorder(small_disk.folder, with_checkpoint(), fetched=lambda path: small_disk.fill())
    result = run.follow().document()
    assert (result["status"], result["error"]["kind"]) == ("failed", "disk")
    assert result_of(run.folder) == result
    assert list(run.folder.glob("*.part")) == []


def test_a_disk_that_is_full_already_starts_nothing_and_says_so_in_one_line(small_disk):
    small_disk.fill()
    with pytest.raises(RunFailed, match=r"No space left on device") as error:
        recorder(small_disk.folder, finished(0))
    assert "\n" not in str(error.value)
    assert [path.name for path in small_disk.folder.iterdir()] == ["filler"]


@pytest.mark.parametrize("again", [False, True])
def test_a_run_folder_that_is_removed_is_a_failure_in_one_line(tmp_path, again):
    """Also when a rank makes it again, for its checkpoint."""
    run = recorder(tmp_path, with_checkpoint())
    take = run._take

    def remove(event):
        take(event)
        if isinstance(event, events.Step):
            shutil.rmtree(run.folder)
            if again:
                (run.folder / "checkpoints").mkdir(parents=True)

    run.recovery.supervisor.on_event = remove
    with pytest.raises(RunFailed, match="was removed while the run went on: there is no result"):
        run.follow()
    assert not run.folder.exists()
