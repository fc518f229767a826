"""Folders that a user names with DATA_DIR: looked through and read with errors that name the file."""

import hashlib
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TypeVar

from monitor.data.store import sha256
from monitor.errors import UserError
from trainer.received import ReceivedError

T = TypeVar("T")
MOST_BYTES = 1 << 30  # of a file; a sparse one of any size costs nothing to send


def listing(data_dir: Path, below: Iterable[str], looked_for: str) -> dict[Path, list[str]]:
    """The names in `data_dir`, and in those of its folders `below` that exist, sorted. Raises UserError."""
    try:
        if not data_dir.is_dir():
            problem = "not a folder" if data_dir.exists() else "no such folder"
            raise UserError(f"DATA_DIR={data_dir}: {problem}; give one with {looked_for}")
        folders = (data_dir, *(data_dir / name for name in below))
        return {folder: sorted(p.name for p in folder.iterdir()) for folder in folders if folder.is_dir()}
    except OSError as error:
        raise UserError(f"DATA_DIR={data_dir}: cannot be listed ({error.strerror}); make it readable") from error


def not_here(data_dir: Path, what: str, looked_for: str, names: list[str]) -> UserError:
    """The error for a folder in which nothing of the data set `what` is."""
    content = ", ".join(names[:5]) or "an empty folder"
    if len(names) > 5:
        content += ", ..."
    return UserError(f"DATA_DIR={data_dir}: not {what}: looked for {looked_for}, found {content}")


def readable(path: Path, read: Callable[[Path], T]) -> T:
    """read(path). Raises UserError that names the file when the system does not let it be read."""
    try:
        return read(path)
    except ReceivedError as error:
        raise UserError(f"{path}: not read: {error}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); make it a readable file") from error


def digest(folder: Path, names: Iterable[str]) -> str:
    """SHA-256 over the names and contents of these files: a changed folder has another. Raises UserError."""
    whole = hashlib.sha256()
    for name in names:
        if (size := readable(folder / name, lambda path: path.stat().st_size)) > MOST_BYTES:
            raise UserError(f"{folder / name}: has {size} bytes; no file of a data set has more than {MOST_BYTES}")
        file = readable(folder / name, partial(sha256, may_be_link=True))
        whole.update(f"{name} {file}\n".encode())
    return whole.hexdigest()
