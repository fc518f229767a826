"""The node's lock: two runs never share a node. The kernel lets go of it whatever happens to its holder."""

import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from trainer import files
from trainer.received import open_received

STATE = Path(os.environ.get("SYNCBED_STATE", "/run/syncbed"))  # the node's own tmpfs: lock and live metrics
LOCK_SECONDS = 30.0  # how long a node's other ranks wait for its first
LOOK_SECONDS = 0.5  # longer than anyone takes to look who holds the lock, for which it is held for a moment
STARTING = "starting"
MOST = 200  # bytes of the id of a run


def take_lock(run_id: str, metrics: Path | None = None, clear: Callable[[], None] = lambda: None) -> TextIO | None:
    """The node's lock, held until this process ends; None when another run holds it. Empties the folder of metrics.

    `clear` is called once the lock is held, before anybody can know by whom. Raises OSError where there can be no lock.
    """
    STATE.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + LOOK_SECONDS
    while True:
        try:
            file = files.lock(STATE / "lock")
            break
        except BlockingIOError:
            if time.monotonic() > until:
                return None
        except OSError:  # a rank may have left a link or a folder in its place
            if time.monotonic() > until:
                raise
            _remove(STATE / "lock")
        time.sleep(0.02)
    clear()
    file.truncate(0)
    if metrics:
        _remove(metrics)  # the figures of an earlier run are not this one's
        metrics.mkdir(parents=True)
    file.write(run_id)  # from here on the node's other ranks may start
    file.flush()
    return file


def await_holder(run_id: str) -> str | None:
    """Who holds the node, once that is `run_id`, another run, or still nobody after a while."""
    until = time.monotonic() + LOCK_SECONDS
    while (holder := lock_holder()) in (None, STARTING) and time.monotonic() < until:
        time.sleep(0.02)
    return holder


def lock_holder() -> str | None:
    """The id of the run that holds this node; None when it is free."""
    try:
        if not files.is_locked(STATE / "lock"):
            return None
        with open_received(STATE / "lock") as file:
            return file.read(MOST).decode(errors="replace") or STARTING
    except OSError:  # there is none, or a rank has put something else in its place
        return None


def _remove(path: Path) -> None:
    """Remove what is there, whatever a rank has made of it. What cannot be removed gets another name."""
    with suppress(FileNotFoundError):
        path = path.rename(path.with_name(f"{path.name}.{secrets.token_hex(6)}"))
        if stat.S_ISDIR(path.lstat().st_mode):
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
