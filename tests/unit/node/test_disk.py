"""What a node may hold in the volume of runs: counted, and a rank that holds more is ended with its reason."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from signed import KEY, event_of

from node import disk, lock
from node.leftovers import launcher_command
from trainer import events

ROOT = os.geteuid() == 0  # may enter every folder, and give files away
MINE, OTHERS, MIB = os.getgid(), os.getgid() + 1, 1 << 20


@pytest.fixture
def volume(tmp_path):
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder


def write(path, size: int = 0):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    return path


def bound(volume, most: int, **scratch: list[str]) -> disk.Bound:
    return {"folder": str(volume), "most_bytes": most, "scratch": scratch}


def problem(volume, most: int, group: int = MINE) -> str | None:
    return disk.problem(bound(volume, most), group)


def free(monkeypatch, mib: int) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=mib, f_frsize=MIB))


def test_all_that_a_node_holds_counts_wherever_it_is(volume):
    for name in ("run/checkpoints/step-000001/rank-1.pt", "run/tensorboard/x", "elsewhere", ".hidden"):
        write(volume / name, MIB)
    assert problem(volume, 5 * MIB) is None
    assert problem(volume, 3 * MIB) == f"its node holds 4 MiB in {volume}, DISK=3m is the most"
    assert problem(volume, 3 * MIB, OTHERS) is None, "it is not the others' fault"


def test_a_sparse_file_counts_with_its_length_and_a_link_does_not_lead_away(volume, tmp_path):
    write(tmp_path / "outside", 4 * MIB)
    (volume / "link").symlink_to(tmp_path)
    (volume / "loop").symlink_to(volume)
    assert problem(volume, MIB) is None
    with (volume / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    assert problem(volume, MIB) == f"its node holds {1 << 20} MiB in {volume}, DISK=1m is the most"


def test_files_without_content_have_a_bound_too(volume, monkeypatch):
    monkeypatch.setattr(disk, "MOST_FILES", 20)
    for number in range(30):
        write(volume / f"{number % 3}/{number}")
    assert problem(volume, MIB) == f"its node holds most of the more than 20 files in {volume}"
    assert problem(volume, MIB, OTHERS) is None


@pytest.mark.skipif(ROOT, reason="root may enter every folder")
def test_a_folder_that_hides_what_is_in_it_is_a_fault(volume):
    write(volume / "closed/file", 4 * MIB)
    (volume / "closed").chmod(0)
    assert problem(volume, MIB) == f"its node has a folder in {volume} that cannot be looked into"
    (volume / "closed").chmod(0o700)


def test_a_folder_that_is_too_deep_to_be_looked_into_is_a_fault(volume, monkeypatch):
    monkeypatch.chdir(volume)
    for _ in range(20):  # each a step away: the whole path is longer than the kernel takes
        Path("d" * 250).mkdir()
        os.chdir("d" * 250)
    monkeypatch.chdir(volume)
    assert problem(volume, MIB) == f"its node has a folder in {volume} that cannot be looked into"
    subprocess.run(disk.removal(str(volume)), check=True)
    assert not volume.exists()


def test_what_vanishes_while_it_is_looked_at_is_no_fault(volume, monkeypatch):
    write(volume / "run/step/rank-0.pt", MIB)
    scandir = os.scandir

    def gone(path):
        if path.endswith("step"):
            raise FileNotFoundError(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", gone)
    assert problem(volume, 0) is None


def test_too_little_room_on_the_disk_is_told_by_the_node_that_holds_most(volume, monkeypatch):
    write(volume / "mine", 2 * MIB)
    free(monkeypatch, 512)
    assert problem(volume, 8 * MIB) is None
    free(monkeypatch, 511)
    told = f"the engine's disk has 511 MiB left, 512 are the least; its node holds 2 MiB in {volume}"
    assert problem(volume, 8 * MIB) == told
    assert problem(volume, 8 * MIB, OTHERS) is None


def test_without_files_any_node_tells_it(volume, monkeypatch):
    free(monkeypatch, 0)
    assert problem(volume, MIB).endswith(f"512 are the least; its node holds 0 MiB in {volume}")


@pytest.mark.skipif(not ROOT, reason="only root gives files to another user")
def test_what_the_orchestrator_has_put_there_is_nobodys(volume, monkeypatch):
    os.chown(volume, 10001, MINE)
    write(volume / "run/resume/rank-0.pt", 4 * MIB)  # root's, as Docker unpacks it
    free(monkeypatch, 0)
    assert "its node holds 0 MiB" in problem(volume, MIB)


def launch(state, volume, most: int, program: str) -> list[events.Event]:
    """What a launcher says whose rank runs this program."""
    request = {"run": "run-1", "key": KEY, "rank": 2, "local_rank": 0, "env": {}}
    request |= {"argv": [sys.executable, "-c", program], "disk": bound(volume, most)}
    process = subprocess.Popen(
        launcher_command(sys.executable, "of a test"),
        env=os.environ | {"SYNCBED_STATE": str(state), "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    process.stdin.write(json.dumps(request) + "\n")
    process.stdin.flush()
    said = [event for line in process.stdout if (event := event_of(line))]
    process.stdin.close()
    process.wait(30)
    return said


def test_a_rank_whose_node_holds_too_much_is_ended_and_says_why(volume, tmp_path):
    write(volume / "x", 2 * MIB)
    held, failed, exited = launch(tmp_path, volume, MIB, "import time; time.sleep(60)")
    assert isinstance(held, events.Held)
    assert (failed.kind, failed.rank) == ("disk", 2) and "DISK=1m is the most" in failed.message
    assert (exited.code, exited.signal) == (1, None), "ended by its launcher: nobody is looked for who killed it"


def test_a_rank_within_its_bound_is_left_alone(volume, tmp_path):
    write(volume / "x", 2 * MIB)
    _, exited = launch(tmp_path, volume, 3 * MIB, "pass")
    assert (exited.code, exited.signal) == (0, None)


def test_it_looks_again_and_again(volume, monkeypatch):
    """Until there is a problem; then once, and no more."""
    monkeypatch.setattr(disk, "LOOK_SECONDS", 0.001)
    answers = iter([None, None, "too much"])
    monkeypatch.setattr(disk, "problem", lambda bound, group: next(answers))
    over = disk.threading.Event()
    with disk.Watch(bound(volume, 1), over.set) as watch:
        assert over.wait(30)
    assert watch.problem == "too much" and list(answers) == []


def test_without_a_volume_nothing_is_looked_at(monkeypatch):
    monkeypatch.setattr(disk, "problem", lambda bound, group: "never")
    with disk.Watch(None, lambda: None) as watch:
        pass
    assert watch.problem is None


@pytest.mark.skipif(not ROOT, reason="only root gives files to another group")
def test_what_earlier_runs_left_is_swept_and_what_is_put_there_for_the_next_stays(volume):
    for name in ("old/file", "stray", "run-1/checkpoint", "run-2/resume/file"):
        write(volume / name)
    for name in ("old", "stray", "run-1"):
        os.chown(volume / name, -1, 10103)
    (volume / "link").symlink_to(volume / "run-1")
    os.chown(volume / "link", -1, 10101, follow_symlinks=False)
    disk.clear(bound(volume, 1), "run-1", is_first=False)
    assert len(list(volume.iterdir())) == 5, "another node may have begun"
    disk.clear(bound(volume, 1), "run-1", is_first=True)
    assert sorted(path.name for path in volume.iterdir()) == ["run-1", "run-2"]
    assert (volume / "run-1/checkpoint").exists()


def test_a_nodes_own_folders_are_emptied_but_for_what_is_the_nodes(volume, tmp_path):
    scratch = tmp_path / "tmp"
    for name in ("lock", "filled", "metrics/x.db", "closed/x"):
        write(scratch / name)
    os.mkfifo(scratch / "pipe")
    (scratch / "link").symlink_to(volume)
    (scratch / "closed").chmod(0)
    write(volume / "x")
    disk.clear(bound(volume, 1, **{str(scratch): ["lock"]}), "run-1", is_first=False)
    assert [path.name for path in scratch.iterdir()] == ["lock"]
    assert (volume / "x").exists()


def test_a_node_is_cleared_once_it_is_held_and_before_its_holder_is_known(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "STATE", tmp_path)
    seen = []
    with lock.take_lock("a-run", clear=lambda: seen.append(lock.lock_holder())):
        assert seen == [lock.STARTING]
        assert lock.lock_holder() == "a-run"


def test_removal_is_stopped_by_no_mode_and_follows_no_link(volume, tmp_path):
    write(tmp_path / "outside/file")
    write(volume / "a/b/file")
    (volume / "a/b/link").symlink_to(tmp_path / "outside")
    (volume / "a/b").chmod(0)
    (volume / "a").chmod(0)
    done = subprocess.run(disk.removal(str(volume / "a")), capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert not (volume / "a").exists() and (tmp_path / "outside/file").exists()
