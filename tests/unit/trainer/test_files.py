"""Files that are written whole or not at all, and locks between processes."""

import errno
import hashlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from trainer import files
from trainer.files import HashingFile, is_locked, lock, replace_link, reserve, whole_file, write_whole

OLD, NEW = "old\n" * 9, "new\n"
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "file"
    file.write_text(OLD)
    return file


def names(folder: Path) -> list[str]:
    return sorted(item.name for item in folder.iterdir())


def test_a_file_is_replaced_by_text_bytes_and_what_a_block_writes(path):
    write_whole(path, "ü\n")
    assert path.read_bytes() == "ü\n".encode()
    write_whole(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff"
    with whole_file(path) as file:
        file.write(b"one ")
        assert path.read_bytes() == b"\x00\xff", "until the end the old file is there"
        file.write(b"two")
    assert path.read_bytes() == b"one two"
    assert names(path.parent) == ["file"]


def test_a_new_file_has_the_mode_that_the_umask_leaves(tmp_path):
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "file", NEW)
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("reserved", [False, True])
@pytest.mark.parametrize("error", [FULL, ValueError("no"), KeyboardInterrupt()])
def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(path, error, reserved):
    if reserved:
        reserve(path, 1000)
    with pytest.raises(type(error)), whole_file(path, reserved=reserved) as file:
        file.write(b"half")
        raise error
    assert path.read_text() == OLD
    assert names(path.parent) == ["file"]


def test_a_disk_that_is_full_when_bytes_reach_it_leaves_nothing(path, monkeypatch):
    def full(_descriptor):
        raise FULL

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, NEW)
    assert path.read_text() == OLD
    assert names(path.parent) == ["file"]


def test_a_killed_writer_leaves_the_old_file(path):
    code = f"import os; from pathlib import Path; from trainer.files import whole_file\n\
with whole_file(Path({str(path)!r})) as file:\n    file.write(b'half'); file.flush(); os.kill(os.getpid(), 9)"
    assert run(code).returncode == -9
    assert path.read_text() == OLD
    write_whole(path, NEW)  # what the killed one left is in nobody's way
    assert path.read_text() == NEW


def test_a_link_at_the_target_is_replaced_not_followed(path, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(path)
    write_whole(link, NEW)
    assert (link.is_symlink(), link.read_text(), path.read_text()) == (False, NEW, OLD)


def test_a_link_in_the_place_of_the_part_is_not_followed(path, tmp_path, monkeypatch):
    target = tmp_path / "target"
    monkeypatch.setattr(files.secrets, "token_hex", lambda _: "known")
    (tmp_path / ".target.known.part").symlink_to(path)
    with pytest.raises(FileExistsError):
        write_whole(target, NEW)
    assert path.read_text() == OLD and not target.exists()


def test_a_link_in_the_place_of_reserved_room_is_not_followed(path, tmp_path):
    target = tmp_path / "target"
    (tmp_path / ".target.part").symlink_to(path)
    write_whole(target, NEW, reserved=True)
    assert (path.read_text(), target.read_text(), target.is_symlink()) == (OLD, NEW, False)
    reserve(target, 1000)
    assert path.read_text() == OLD


def test_writers_at_once_leave_one_whole_file(path):
    contents = [bytes([65 + i]) * 100_000 for i in range(8)]

    def write(content):
        for _ in range(5):
            write_whole(path, content)

    writers = [threading.Thread(target=write, args=(content,)) for content in contents]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert path.read_bytes() in [OLD.encode(), *contents]
    assert path.read_bytes() in contents
    assert names(path.parent) == ["file"]


def test_reserved_room_becomes_the_file_and_what_is_left_of_it_is_given_back(path):
    reserve(path, 100_000)
    assert path.read_text() == OLD
    (part,) = path.parent.glob(".*")
    assert part.stat().st_size == 100_000
    inode = part.stat().st_ino
    write_whole(path, NEW, reserved=True)
    assert (path.read_text(), path.stat().st_ino) == (NEW, inode)
    assert names(path.parent) == ["file"]


def test_reserved_room_may_be_too_small_or_none(path):
    reserve(path, 2)
    write_whole(path, NEW * 99, reserved=True)
    assert path.read_text() == NEW * 99
    write_whole(path, NEW, reserved=True)
    assert path.read_text() == NEW


@pytest.mark.parametrize(("number", "raises"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EOPNOTSUPP, False)])
def test_room_that_cannot_be_had_is_an_error_but_where_none_can_be_reserved(path, monkeypatch, number, raises):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    if raises:
        with pytest.raises(OSError, match=os.strerror(number)):
            reserve(path, 1000)
        assert names(path.parent) == ["file"]
    else:
        reserve(path, 1000)
        write_whole(path, NEW, reserved=True)
        assert path.read_text() == NEW


def test_a_link_points_elsewhere_in_one_step(tmp_path):
    link = tmp_path / "latest"
    for target in ("one", "two"):
        replace_link(link, target)
        assert link.readlink() == Path(target)
    assert names(tmp_path) == ["latest"]
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        replace_link(tmp_path / "folder", "one")
    assert names(tmp_path) == ["folder", "latest"]


def test_what_goes_through_is_counted_and_hashed_and_a_failure_is_kept(tmp_path):
    with (tmp_path / "file").open("wb") as file:
        sink = HashingFile(file)
        sink.write(b"ab")
        sink.write(b"c")
        sink.flush()
        assert (tmp_path / "file").read_bytes() == b"abc"
    assert (sink.bytes, sink.sha256, sink.error) == (3, hashlib.sha256(b"abc").hexdigest(), None)
    with Path("/dev/full").open("wb", buffering=0) as file:
        sink = HashingFile(file)
        with pytest.raises(OSError):
            sink.write(b"abc")
    assert sink.error is not None and sink.error.errno == errno.ENOSPC
    assert sink.bytes == 0


def run(code: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, **options)


def tries(path: Path, **options) -> str:
    """What a process of its own meets that wants the lock: held, or the error's name."""
    code = f"from pathlib import Path; from trainer import files\n\
try:\n    files.lock(Path({str(path)!r})); print('held')\nexcept OSError as error:\n    print(type(error).__name__)"
    return run(code, **options).stdout.strip()


def test_a_lock_is_one_process_s_until_it_is_closed_and_keeps_what_is_in_the_file(path):
    with lock(path) as file:
        assert is_locked(path)
        assert tries(path) == "BlockingIOError"
        assert file.read() == OLD
    assert not is_locked(path)
    assert tries(path) == "held"
    assert path.read_text() == OLD


def test_a_lock_ends_with_its_holder_however_that_ends(path):
    code = f"import os; from pathlib import Path; from trainer.files import lock\n\
held = lock(Path({str(path)!r})); os.kill(os.getpid(), 9)"
    assert run(code).returncode == -9
    assert not is_locked(path)


def test_who_waits_for_a_lock_is_called_once_and_gets_it_then(path):
    held, called = lock(path), []

    def release():
        called.append(True)
        threading.Timer(0.1, held.close).start()

    with lock(path, on_busy=release):
        assert called == [True] and held.closed and is_locked(path)


def test_a_child_that_inherits_the_lock_keeps_it(path):
    with lock(path) as held:
        child = subprocess.Popen(["sleep", "60"], pass_fds=[held.fileno()])
    try:
        assert is_locked(path)
    finally:
        child.kill()
        child.wait()
    assert not is_locked(path)


def test_a_lock_follows_no_link_and_needs_its_folder(path, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(path)
    for place in (link, tmp_path / "none" / "lock"):
        with pytest.raises(OSError):
            lock(place)
    with pytest.raises(FileNotFoundError):
        is_locked(tmp_path / "none")


@pytest.mark.parametrize("kind", ["link", "dangling", "folder", "pipe"])
def test_only_a_plain_file_is_looked_at_for_a_lock(path, tmp_path, kind):
    """A link may point to a file that somebody holds for good. A pipe would keep whoever looks waiting."""
    place = tmp_path / "lock"
    match kind:
        case "link":
            place.symlink_to(path)
        case "dangling":
            place.symlink_to(tmp_path / "none")
        case "folder":
            place.mkdir()
        case "pipe":
            os.mkfifo(place)
    with lock(path), pytest.raises(OSError, match=r"lock|directory"):
        is_locked(place)
    assert not (tmp_path / "none").exists()


def test_an_error_while_waiting_leaves_nothing_open(path):
    def refuse():
        raise KeyboardInterrupt

    with lock(path), pytest.raises(KeyboardInterrupt):
        lock(path, on_busy=refuse)
    assert not is_locked(path)
