"""The folders of local nodes, each owned by an orchestrator; what a killed one leaves is found and removed."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import psutil

from node import ending, leftovers
from trainer.files import is_locked, lock, remove_folder
from trainer.names import in_folder

STATE_PREFIX = "syncbed-"  # of the folder in the machine's folder for temporary files that holds the nodes' state
OWNER = "owner"  # a file in it, locked by the orchestrator for as long as that lives


def sweep() -> list[str]:
    """Remove what orchestrators that were killed left on this machine, and say what it was, a line each."""
    removed = []
    for folder in sorted(Path(tempfile.gettempdir()).glob(f"{STATE_PREFIX}*")):
        with suppress(OSError):  # another user's, or gone already
            if folder.is_symlink() or folder.stat().st_uid != os.getuid() or not ownerless(folder):
                continue
            for process in ending.all_processes():
                with suppress(psutil.Error):
                    if _is_of(process, f"{folder}/"):
                        if ending.kill([process]):  # one that still runs may write into the folder
                            raise TimeoutError(f"process {process.pid} does not end")
                        removed.append(f"process {process.pid} of a run whose orchestrator was killed")
            remove_folder(folder)
            removed.append(f"folder {folder} of a run whose orchestrator was killed")
    return removed


def _is_of(process: psutil.Process, start: str) -> bool:
    """Whether the process is a launcher, or has an environment, that names something in this folder."""
    if (leftovers.mark_of(process.cmdline()) or "").startswith(start):
        return True
    return any(value.startswith(start) for value in process.environ().values())


def own(folder: Path) -> TextIO:
    """Mark the folder as this process's, until the file that is returned is closed or the process ends."""
    part = in_folder(folder, f"{OWNER}.part")
    file = lock(part)
    part.rename(folder / OWNER)  # under its name it is locked from the first moment
    return file


def ownerless(folder: Path) -> bool:
    """Whether the process that owned this folder has ended. Raises OSError for a folder that nobody ever owned."""
    return not is_locked(folder / OWNER)
