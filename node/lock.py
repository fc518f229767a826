"""The node's lock: two runs never share a node. The kernel lets go of it whatever happens to its holder."""

import os
import shutil
import time
from pathlib import Path
from typing import TextIO

from trainer import files

STATE = Path(os.environ.get("SYNCBED_STATE", "/run/syncbed"))  # the node's own tmpfs: lock and live metrics
LOCK_SECONDS = 30.0  # how long a node's other ranks wait for its first
LOOK_SECONDS = 0.5  # longer than anyone takes to look who holds the lock, for which it is held for a moment
STARTING = "starting"


def take_lock(run_id: str, metrics: Path | None = None) -> TextIO | None:
    """The node's lock, held until this process ends; None when another run holds it. Empties the folder of metrics."""
    STATE.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + LOOK_SECONDS
    while True:
        try:
            file = files.lock(STATE / "lock")
            break
        except BlockingIOError:
            if time.monotonic() > until:
                return None
            time.sleep(0.02)
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
        return (STATE / "lock").read_text() or STARTING if files.is_locked(STATE / "lock") else None
    except FileNotFoundError:
        return None
