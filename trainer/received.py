"""One reader for what may have been received: plain files alone, of bounded size, and never through a link.

    read_received(path, 1 << 20)        # bytes
    load_json(path, 1 << 20)            # the value, of bounded depth and numbers
    for line in received_lines(path):   # text; a line that is too long is passed over
        ...

Standard library only: every package may import it. A file of this machine that nobody else writes needs none of it.
"""

import errno
import json
import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

MOST_JSON = 8 << 20  # bytes of a document
MOST_LINE, MOST_LINES = 1 << 20, 1 << 30  # bytes of a line, and of all lines of a file
MOST_DEPTH = 64
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
NO_LINK = getattr(os, "O_NOFOLLOW", 0)  # Windows has none
_NINES = bytes.maketrans(b"012345678", b"9" * 9)
_LARGE = (b"9" * 19, b"e999", b"E999", b"e+999", b"E+999")  # in nines: numbers that have to be looked at one by one
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class ReceivedError(OSError):
    """A file that is not read. str() is one line that begins with the file's name."""


def open_received(path: Path, *, may_be_link: bool = False) -> BinaryIO:
    """The plain file `path`, open for reading. Nothing blocks. Raises ReceivedError for anything else, and OSError.

    `may_be_link`: the user's own data, which caches keep as links to plain files, may be one.
    """
    try:
        descriptor = os.open(path, _FLAGS if may_be_link else _FLAGS | NO_LINK)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO):  # a link; a socket
            refuse_special(path)
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise _special(path, mode)
    return os.fdopen(descriptor, "rb")


def read_received(path: Path, most_bytes: int, *, may_be_link: bool = False) -> bytes:
    """The file's content. Raises ReceivedError for what is no plain file or larger than `most_bytes`, and OSError."""
    with open_received(path, may_be_link=may_be_link) as file:
        if os.fstat(file.fileno()).st_size <= most_bytes:
            content = file.read(most_bytes + 1)  # it may grow meanwhile
            if len(content) <= most_bytes:
                return content
    raise ReceivedError(f"{path.name} is larger than {most_bytes} bytes")


def load_json(path: Path, most_bytes: int = MOST_JSON, *, has_types: bool = False) -> Any:
    """The JSON value in the file. Raises ValueError for content that is none of ours, ReceivedError and OSError.

    `has_types`: a type checks the value next, which names the field that is NaN.
    """
    content = read_received(path, most_bytes)
    nines = content.translate(_NINES)
    is_large = any(number in nines for number in _LARGE)
    hooks: dict[str, Any] = {"parse_int": _whole, "parse_float": _finite} if is_large else {}
    if not has_types:
        hooks["parse_constant"] = _finite
    try:
        value = json.loads(content, **hooks)
    except (RecursionError, MemoryError):
        raise ValueError("nested too deeply") from None
    if content.count(b"[") + content.count(b"{") > MOST_DEPTH and _is_deeper(value, MOST_DEPTH):
        raise ValueError("nested too deeply")
    return value


def received_lines(path: Path, most_line: int = MOST_LINE, most_bytes: int = MOST_LINES) -> Iterator[str]:
    """The lines of a UTF-8 file without their ends; those longer than `most_line` bytes are passed over.

    Raises ReceivedError for what is no plain file or larger than `most_bytes`, UnicodeDecodeError, and OSError.
    """
    with open_received(path) as file:
        if os.fstat(file.fileno()).st_size > most_bytes:
            raise ReceivedError(f"{path.name} is larger than {most_bytes} bytes")
        passing_over, bytes_left = False, most_bytes
        while bytes_left > 0 and (line := file.readline(most_line)):
            bytes_left -= len(line)
            is_whole = line.endswith(b"\n") or len(line) < most_line
            if is_whole and not passing_over:
                yield line.decode().rstrip("\r\n")
            passing_over = not is_whole


def refuse_special(path: Path) -> None:
    """Raise ReceivedError when `path` is a link, a pipe, a socket or a device; OSError where there is nothing."""
    mode = os.lstat(path).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise _special(path, mode)


def refuse_special_parts(folder: Path) -> None:
    """Raise ReceivedError when the folder, or anything directly in it, is no plain file and no folder; OSError."""
    refuse_special(folder)
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.is_file(follow_symlinks=False) and not entry.is_dir(follow_symlinks=False):
                refuse_special(Path(entry.path))


def special_files(folder: Path) -> Iterator[str]:
    """A line for each thing below the folder, at any depth, that is no plain file and no folder. Follows no link."""
    folders = [folder]
    while folders:
        home = folders.pop()
        try:
            with os.scandir(home) as scan:
                entries = sorted(scan, key=lambda entry: entry.name)
        except OSError:  # gone meanwhile, or not ours to read
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.append(home / entry.name)
            elif not entry.is_file(follow_symlinks=False):
                place = (home / entry.name).relative_to(folder)
                yield str(_special(place, entry.stat(follow_symlinks=False).st_mode, str(place)))


def _special(path: Path, mode: int, name: str = "") -> ReceivedError:
    kind = _KINDS.get(stat.S_IFMT(mode), "no file")
    return ReceivedError(f"{name or path.name} is {kind}; only a plain file is read")


def _is_deeper(value: Any, most: int) -> bool:
    """Whether lists and objects are nested deeper than this. Goes level by level: nothing recurses."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(most):
        parts = (part for outer in level for part in (outer.values() if isinstance(outer, dict) else outer))
        level = [part for part in parts if isinstance(part, (dict, list))]
        if not level:
            return False
    return True


def _whole(text: str) -> int:
    if len(text) > 19:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is not a finite number")
    return value
