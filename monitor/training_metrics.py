"""The live training figures of a node's ranks, merged from the files of prometheus-client's multiprocess mode."""

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from prometheus_client.core import Metric
from prometheus_client.multiprocess import MultiProcessCollector

# Figures of a rank that ended stay this long: a scrape each second sees the last of them, and so do Prometheus' rules,
# which are worked out each 5 s, and those over all ranks of a run, which do not end at one time.
KEEP_SECONDS = 8.0


class TrainingCollector:
    """Merges the files of all ranks of this node; files of ranks that ended are removed after KEEP_SECONDS."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic):
        self._folder, self._clock = folder, clock
        self._dead_since: dict[int, float] = {}

    def collect(self) -> Iterable[Metric]:
        """The ranks' metrics; none in the rare scrape that meets a file in the making."""
        self._remove_dead()
        for _ in range(3):
            try:
                return list(MultiProcessCollector.merge([str(f) for f in self._files()]))
            except Exception:  # a file vanished or is half made, and what is raised then is not of one type
                continue
        return ()

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("*.db"))

    def _remove_dead(self):
        now, dead = self._clock(), {}
        for file in self._files():
            pid = file.stem.rpartition("_")[2]
            if not pid.isdigit() or _alive(int(pid)):
                continue
            dead[int(pid)] = self._dead_since.get(int(pid), now)
            if now - dead[int(pid)] >= KEEP_SECONDS:
                with contextlib.suppress(OSError):
                    file.unlink()
        self._dead_since = dead  # a process id is given again


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True
