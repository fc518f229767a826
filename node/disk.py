"""What a node holds in the volume of runs, looked at each second while a rank is there: a volume has no quota.

What else it can write to has a size; the next run clears it.

A node's files carry its group, which compose.yaml gives to no other node, and its user cannot give them another. A rank
can write into another node's files, which then count as that one's. A file that is removed while it is held open is
seen by the room that is left alone.
"""

import os
import subprocess
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypedDict

LOOK_SECONDS = 1.0
LEAST_FREE_BYTES = 512 << 20  # of the engine's disk: below that nothing on it can be relied on, results neither
MOST_FILES = 20_000  # of all nodes together: to look at them must stay cheap
MIB = 1 << 20
# A folder that its owner may not enter is in rm's way.
_REMOVE = 'rm -rf -- "$0" || { chmod -R u+rwX -- "$0"; rm -rf -- "$0"; } 2>/dev/null'


class Bound(TypedDict):
    """What the launcher is told of where its node can write."""

    folder: str  # the volume
    most_bytes: int  # that this node may hold there at once
    scratch: dict[str, str]  # folders of its own, and the name that stays in each when a run begins


class Usage:
    """What nodes have in a folder, by group. A sparse file counts with its length: fetching it would cost as much."""

    def __init__(self, folder: Path):
        self.sizes: Counter[int] = Counter()
        self.files: Counter[int] = Counter()
        self.closed: set[int] = set()  # groups with folders that cannot be looked into
        owner = os.lstat(folder)
        self._user = owner.st_uid  # what the orchestrator has put there is another's
        folders = [(str(folder), owner.st_gid)]
        while folders and self.files.total() <= MOST_FILES:
            folders += self._add(*folders.pop())

    def _add(self, folder: str, group: int) -> list[tuple[str, int]]:
        """Count the entries of one folder, which has this group. Returns the folders among them."""
        within = []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    self.files[status.st_gid] += 1
                    if entry.is_dir(follow_symlinks=False):
                        within.append((entry.path, status.st_gid))
                    elif status.st_uid == self._user:
                        self.sizes[status.st_gid] += max(status.st_size, 512 * status.st_blocks)
                    if self.files.total() > MOST_FILES:
                        break
        except (FileNotFoundError, NotADirectoryError):
            pass  # it is gone: fetched, or removed by its rank
        except OSError:  # its mode, or its path is too long
            self.closed.add(group)
        return within


def free_bytes(folder: Path) -> int:
    """What is left on the disk of a folder."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def problem(bound: Bound, group: int) -> str | None:
    """Why the ranks of a node with this group must end, in one line; None when they need not."""
    folder = Path(bound["folder"])
    usage, free = Usage(folder), free_bytes(folder)
    mine, most = usage.sizes[group], max(usage.sizes.values(), default=0)
    if mine > bound["most_bytes"]:
        return f"its node holds {mine // MIB} MiB in {folder}, DISK={bound['most_bytes'] // MIB}m is the most"
    if usage.files.total() > MOST_FILES and usage.files[group] == max(usage.files.values()):
        return f"its node holds most of the more than {MOST_FILES} files in {folder}"
    if group in usage.closed:
        return f"its node has a folder in {folder} that cannot be looked into"
    if free < LEAST_FREE_BYTES and mine == most:
        left = f"the engine's disk has {free // MIB} MiB left, {LEAST_FREE_BYTES // MIB} are the least"
        return f"{left}; its node holds {mine // MIB} MiB in {folder}"
    return None


class Watch:
    """Looks while it is entered. When there is a `problem`, `end` is called once, which ends the rank."""

    def __init__(self, bound: Bound | None, end: Callable[[], None]):
        self.problem: str | None = None
        self._bound, self._end, self._over = bound, end, threading.Event()

    def __enter__(self) -> "Watch":
        if self._bound:
            threading.Thread(target=self._look, args=(self._bound,), daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        self._over.set()

    def _look(self, bound: Bound) -> None:
        while not self._over.is_set():
            self.problem = problem(bound, os.getgid())
            if self.problem:
                self._end()
                return
            self._over.wait(LOOK_SECONDS)


def clear(bound: Bound, run_id: str, is_first: bool) -> None:
    """Remove what earlier runs left where this node can write; its caller holds the node.

    `is_first`: whether each run has this node. Then in the volume too, but for the run's own folder, and for what the
    orchestrator puts there for a run that is about to begin, which has the volume's own group.
    """
    for folder, kept in bound["scratch"].items():
        _sweep(folder, lambda entry, kept=kept: entry.name == kept)
    if is_first:
        own = os.lstat(bound["folder"]).st_gid
        _sweep(bound["folder"], lambda entry: entry.name == run_id or entry.stat(follow_symlinks=False).st_gid == own)


def _sweep(folder: str, stays: Callable[["os.DirEntry[str]"], bool]) -> None:
    with os.scandir(folder) as entries:
        listed = list(entries)
    for entry in listed:
        with suppress(FileNotFoundError):  # a process that is about to end removes its own
            if stays(entry):
                continue
            if entry.is_dir(follow_symlinks=False):
                subprocess.run(removal(entry.path))
            else:
                Path(entry.path).unlink()


def removal(path: str) -> list[str]:
    """A command that removes it, whatever its folders' modes are. It follows no links."""
    return ["sh", "-c", _REMOVE, path]
