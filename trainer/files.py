"""Files that are written whole or not at all, and file locks. Of the standard library: every package may import it.

    with whole_file(path) as file:      # a new binary file beside `path`, moved into its place at the end
        file.write(b"...")
    write_whole(path, "text")           # the same for what is in memory
    new_file(path)                      # a new binary file in a folder that nobody reads yet
    remove_folder(path)                 # with all that is in it; follows no link
    added_to(path)                      # a new file for lines that come one by one, each written at once
    with lock(path):                    # raises BlockingIOError while another process holds the lock
        ...

A process that is killed leaves at most a file `.<name>.<random>.part`; the kernel releases its locks.
"""

import errno
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO, RawIOBase
from pathlib import Path
from typing import IO, BinaryIO, TextIO

from trainer.received import NO_LINK, open_received

try:
    import fcntl
except ImportError:  # Windows has no flock
    fcntl = None

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINK
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def whole_file(path: Path, *, reserved: bool = False) -> Iterator[BinaryIO]:
    """A binary file to fill, which takes the place of `path` when the block ends, with its bytes on the disk.

    When the block raises, `path` stays as it was and nothing else is left. Of several writers at once the last one
    wins. A symbolic link at `path` is replaced, not followed. `reserved`: write into the room that `reserve` took.
    Raises OSError.
    """
    part = _reserved_part(path)
    file = _open_reserved(part) if reserved else None
    if file is None:
        part = _new_part(path)
        file = new_file(part)
    try:
        with file:
            yield file
            file.flush()
            if reserved:
                file.truncate()  # what is left of the room
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:  # Ctrl-C, too
        with suppress(OSError):
            part.unlink()
        raise
    _sync_folder(path.parent)


def write_whole(path: Path, content: str | bytes, *, reserved: bool = False) -> None:
    """Write text (as UTF-8) or bytes to `path`, as whole_file does. Raises OSError."""
    with whole_file(path, reserved=reserved) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def new_file(path: Path) -> BinaryIO:
    """A new binary file to fill, for a folder that this process has just made and that nobody reads yet.

    Raises OSError: nothing that is there already is written to, through a link neither.
    """
    return os.fdopen(os.open(path, _NEW, 0o666), "wb")


def remove_folder(folder: Path, *, may_stay: bool = False) -> None:
    """Remove a folder and all that is in it. Links in it are removed, not followed; one in its own place is an error.

    `may_stay`: what cannot be removed, or is not there, is no error. Raises OSError.
    """
    shutil.rmtree(folder, ignore_errors=may_stay)


def added_to(path: Path) -> RawIOBase:
    """A new file, whose every `write` is at its end and at once, whoever else writes to it. Raises OSError."""
    return FileIO(os.open(path, _NEW | os.O_APPEND, 0o666), "w")


def reserve(path: Path, size: int) -> None:
    """Take `size` bytes of the disk for the next `whole_file(path, reserved=True)`: it finds room on a full disk.

    Where the file system cannot reserve, nothing is taken. Raises OSError when there is too little room.
    """
    part = _reserved_part(path)
    part.unlink(missing_ok=True)
    with new_file(part) as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            if error.errno in _NO_ROOM:
                part.unlink()
                raise


def replace_link(link: Path, target: str) -> None:
    """Make `link` a symbolic link to `target`, in place of what was there, in one step. Raises OSError."""
    part = _new_part(link)
    try:
        part.symlink_to(target)
        part.replace(link)
    finally:
        part.unlink(missing_ok=True)


class HashingFile:
    """Passes writes on to a binary file, and counts and hashes what goes through.

    For writers such as torch.save and numpy.save. `error` is the last failure of a write: some writers hide it.
    """

    def __init__(self, file: IO[bytes]):
        self.error: OSError | None = None
        self.bytes = 0
        self._file, self._digest = file, hashlib.sha256()

    @property
    def sha256(self) -> str:
        """64 hexadecimal digits."""
        return self._digest.hexdigest()

    def write(self, data: bytes) -> int:
        try:
            count = self._file.write(data)
        except OSError as error:
            self.error = error
            raise
        self.bytes += count
        self._digest.update(data)
        return count

    def flush(self) -> None:
        self._file.flush()


def lock(path: Path, on_busy: Callable[[], object] | None = None) -> TextIO:
    """Lock a file, made where there is none, for this process alone. Returns it open; closing it releases the lock.

    A process that inherits the descriptor shares the lock, which lasts until both have closed it. While another holds
    the lock, `on_busy` is called once and this waits; without it BlockingIOError is raised. What is in the file stays.
    The file must not be removed: whoever waits for it would then hold the lock beside a holder of its successor.
    Raises OSError.
    """
    if fcntl is None:
        raise _no_locks()
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | NO_LINK, 0o666), "r+", encoding="utf-8")
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if on_busy is None:
                raise
            on_busy()
            fcntl.flock(file, fcntl.LOCK_EX)
    except BaseException:
        file.close()
        raise
    return file


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of this plain file. Raises OSError, for a file that is not there too."""
    if fcntl is None:
        raise _no_locks()
    with open_received(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def has_locks() -> bool:
    """Whether this operating system has the locks."""
    return fcntl is not None


def _no_locks() -> OSError:
    return OSError(errno.ENOTSUP, "file locks need Linux or macOS")


def _new_part(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")


def _reserved_part(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")


def _open_reserved(part: Path) -> BinaryIO | None:
    """The room that was reserved; None where there is none, or something else has its name."""
    try:
        return os.fdopen(os.open(part, os.O_WRONLY | NO_LINK), "wb")
    except OSError:
        return None


def _sync_folder(folder: Path) -> None:
    """Have the new name on the disk too, where the file system can do that."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
