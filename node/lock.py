"""The node's lock: two runs never share a node. The kernel lets go of it whatever happens to its holder."""

import os
import shutil
import stat
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from node.disk import removal
from trainer import files
from trainer.received import open_received

STATE = Path(os.environ.get("SYNCBED_STATE", "/run/syncbed"))  # the node's own tmpfs: lock and live metrics
LOCK_SECONDS = 30.0  # how long a node's other ranks wait for its first
LOOK_SECONDS = 0.5  # longer than anyone takes to look who holds the lock, for which it is held for a moment
STARTING, ID_BYTES = "starting", 200


def take_lock(run_id: str, metrics: Path | None = None, clear: Callable[[], None] = lambda: None) -> TextIO | None:
    """The node's lock, held until this process ends; None when another run holds it. Empties the folder of metrics.

    `clear` is called once the lock is held, before anybody can know by whom.
    """
    STATE.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + LOOK_SECONDS
    while True:
        try:
            file = files.lock(_lock_file())
            break
        except BlockingIOError:
            if time.monotonic() > until:
                return None
            time.sleep(0.02)
    clear()
    file.truncate(0)
    if metrics:
        shutil.rmtree(metrics, ignore_errors=True)  # the figures of an earlier run are not this one's
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
        path = _lock_file()
        if not files.is_locked(path):
            return None
        with open_received(path) as file:
            return file.read(ID_BYTES).decode(errors="replace") or STARTING
    except FileNotFoundError:
        return None


def _lock_file() -> Path:
    """Its path. A node's user may have left there what nobody can lock: a pipe, a folder, a file of no mode."""
    path = STATE / "lock"
    with suppress(FileNotFoundError):
        mode = os.lstat(path).st_mode
        if not stat.S_ISREG(mode):
            subprocess.run(removal(str(path)))
        elif mode & 0o600 != 0o600:
            path.chmod(0o600)
    return path
