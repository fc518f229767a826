"""What a node's user leaves in the lock's place: the next run finds a lock, and nobody waits for a pipe."""

import os

import pytest

from node import lock


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "STATE", tmp_path)
    return tmp_path / "lock"


def no_mode(path):
    path.write_text("an-earlier-run")
    path.chmod(0)


def folder(path):
    (path / "within").mkdir(parents=True)
    (path / "within").chmod(0)


@pytest.mark.parametrize(
    "leave",
    [
        os.mkfifo,
        folder,
        no_mode,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.symlink_to(path),
        lambda path: path.write_bytes(b"\xff\n" * 1000),
    ],
)
def test_whatever_is_in_its_place_the_node_is_free_and_the_next_run_has_it(path, leave):
    leave(path)
    assert lock.lock_holder() is None
    with lock.take_lock("the-next-run"):
        assert lock.lock_holder() == "the-next-run"
    assert lock.lock_holder() is None


def test_who_holds_it_is_told_in_so_many_letters_whatever_is_written_there(path):
    with lock.take_lock("a-run"):
        path.write_bytes(b"\xff" * 10_000)
        assert lock.lock_holder() == "\ufffd" * lock.ID_BYTES


def test_the_node_is_cleared_once_it_is_held_and_before_its_holder_is_known(path):
    seen = []
    with lock.take_lock("a-run", clear=lambda: seen.append(lock.lock_holder())):
        pass
    assert seen == [lock.STARTING]
