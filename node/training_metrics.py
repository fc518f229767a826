"""The live training figures of a node's ranks, merged from the files of prometheus-client's multiprocess mode.

As prometheus-client's MultiProcessCollector does it, which makes every series anew at each scrape; the tests hold the
one against the other.
"""

import contextlib
import json
import os
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from prometheus_client.mmap_dict import MmapedDict

from node.exposition import Series, series

# Figures of a rank that ended stay this long: a scrape each second sees the last of them, and so do Prometheus' rules,
# which are worked out each 5 s, and those over all ranks of a run, which do not end at one time.
KEEP_SECONDS = 8.0
# What reading a file raises that vanished, has no length yet, or has a length that its content has not reached.
_HALF_MADE = (OSError, struct.error, RuntimeError, ValueError)


class TrainingCollector:
    """Merges the files of all ranks of this node; files of ranks that ended are removed after KEEP_SECONDS."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic):
        self._folder, self._clock = folder, clock
        self._dead_since: dict[int, float] = {}

    def samples(self) -> Iterable[tuple[Series, float]]:
        """The ranks' figures; none in the rare scrape that meets a file in the making."""
        for _ in range(3):
            try:
                return list(_accumulated(_merged(self._remove_dead(self._files()))))
            except _HALF_MADE:
                continue
        return ()

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("*.db"))

    def _remove_dead(self, files: list[Path]) -> list[Path]:
        """The files that stay."""
        now, dead_since, live_files = self._clock(), {}, []
        for file in files:
            pid = file.stem.rpartition("_")[2]
            if pid.isdigit() and not _alive(int(pid)):
                dead_since[int(pid)] = self._dead_since.get(int(pid), now)
                if now - dead_since[int(pid)] >= KEEP_SECONDS:
                    with contextlib.suppress(OSError):
                        file.unlink()
                    continue
            live_files.append(file)
        self._dead_since = dead_since  # without those that are gone: their process ids are given again
        return live_files


def _merged(files: list[Path]) -> dict[tuple[str, str], float]:
    """Value by (type, key): the sum of what processes of one rank have counted, and the last that they have set."""
    values: dict[tuple[str, str], float] = {}
    set_at: dict[str, float] = {}
    for file in files:
        kind = file.name.partition("_")[0]
        for key, value, moment, _ in MmapedDict.read_all_values_from_file(file):
            if kind != "gauge":
                values[kind, key] = values.get((kind, key), 0.0) + value
            elif moment > set_at.get(key, 0):  # 0: made, but not set yet
                values[kind, key], set_at[key] = value, moment
    return values


def _accumulated(values: dict[tuple[str, str], float]) -> Iterator[tuple[Series, float]]:
    """A histogram's files have what is new in each bucket, in their order; all that is below goes with it."""
    below = 0.0
    for (kind, key), value in values.items():
        line, is_bucket, count = _series(kind, key)
        below = below + value if is_bucket else 0.0
        yield line, below if is_bucket else value
        if count:
            yield count, below


@lru_cache(maxsize=8192)
def _series(kind: str, key: str) -> tuple[Series, bool, Series | None]:
    """(series, whether it is a bucket, the histogram's count where it is the last one) of a key in a file."""
    metric, name, labels, text = json.loads(key)
    bound = labels.get("le")
    count = None
    if bound == "+Inf":
        others = tuple((label, of) for label, of in labels.items() if label != "le")
        count = series(kind, metric, text, f"{metric}_count", others)
    return series(kind, metric, text, name, tuple(labels.items())), bound is not None, count


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True
