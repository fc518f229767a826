"""The live training figures of a node's ranks, merged from the files of prometheus-client's multiprocess mode.

As prometheus-client's MultiProcessCollector does it, which makes every series anew at each scrape; the tests hold the
one against the other. Whoever has the node can write these files, so that the agent neither waits for one nor is ended
by it: then there are no figures of ranks.
"""

import contextlib
import json
import os
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from node.exposition import Series, series
from trainer.received import open_received

# Figures of a rank that ended stay this long: a scrape each second sees the last of them, and so do Prometheus' rules,
# which are worked out each 5 s, and those over all ranks of a run, which do not end at one time.
KEEP_SECONDS = 8.0
# What reading a file raises that vanished, has no length yet, has a length that its content has not reached, or is none
# of ours.
_UNREADABLE = (OSError, struct.error, RuntimeError, ValueError, TypeError, AttributeError)
_MOST_BYTES = 4 << 20  # of a file; a rank's are 64 KiB
_FIRST_BYTES = 4096  # that are read at once; most files have no more
_LENGTH, _VALUE = struct.Struct("i"), struct.Struct("dd")


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
            except _UNREADABLE:
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
        for key, value, moment in _entries(_content(file)):
            if kind != "gauge":
                values[kind, key] = values.get((kind, key), 0.0) + value
            elif moment > set_at.get(key, 0):  # 0: made, but not set yet
                values[kind, key], set_at[key] = value, moment
    return values


def _content(file: Path) -> bytes:
    """What a file has that is in use, which its first number says. Raises OSError, struct.error, ValueError."""
    with open_received(file) as opened:
        data = opened.read(_FIRST_BYTES)
        (used,) = _LENGTH.unpack_from(data)
        if not 0 <= used <= _MOST_BYTES:
            raise ValueError(f"{file.name} has {used} bytes")
        return (data + opened.read(max(0, used - len(data))))[:used]


def _entries(data: bytes) -> Iterator[tuple[str, float, float]]:
    """(key, value, Unix seconds at which it was set) of each series in a file of prometheus-client.

    After 8 bytes come the entries: the length of a key, the key, blanks up to the next multiple of 8 bytes (at least
    one), value and time. Raises struct.error and ValueError.
    """
    at = 2 * _LENGTH.size
    while at < len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        end = at + _LENGTH.size + length
        if length < 0 or end > len(data):
            raise ValueError(f"a key of {length} bytes")
        key = data[at + _LENGTH.size : end].decode()
        at = (end // 8 + 1) * 8
        yield key, *_VALUE.unpack_from(data, at)
        at += _VALUE.size


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
