"""The cache of prepared data: every folder in it is whole, whatever happened to the process that made it.

A folder is made under a lock, in a temporary place beside its own, with manifest.json written last, and is then renamed
into place. A process killed at any moment leaves at most a temporary folder, which the next one under the same lock
removes. The kernel releases the lock when its holder dies.
"""

import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from monitor.errors import RunFailed, UserError
from trainer import files
from trainer.checkpoint_folder import sha256
from trainer.files import HashingFile, new_file, remove_folder, write_whole
from trainer.names import in_folder, is_sha256
from trainer.received import load_json
from trainer.registry import MOST_CLASSES, DataSet, Shape

SCHEMA = 1
MOST_LETTERS = 300  # of a name or a label
ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
BLOCK = 1000  # images at a time where a computation needs more memory than the images themselves
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Unavailable(UserError):
    """The source of a data set cannot be fetched now. str() is why, one clause."""


@dataclass(frozen=True)
class Content:
    """A data set in memory. Images are uint8 (N, channels, height, width), labels int64 (N,) from 0."""

    name: str
    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    classes: list[str]
    source: str  # where it came from
    label: str  # how results name it
    augment: bool  # whether crop and flip leave an image in its class


@dataclass(frozen=True)
class Prepared:
    """A complete folder of the cache: manifest.json and one .npy file per array."""

    path: Path
    key: str  # the folder's name; the same key means the same bytes
    manifest: dict
    label: str


def prepare_once(cache: Path, key: str, make: Callable[[], Content], say, verify: bool = False) -> Prepared:
    """The folder `key` of the cache, made by `make` when it is not there whole; `verify` compares checksums too.

    Raises RunFailed (disk full) and UserError (cache not writable), besides what `make` raises; then no folder is left.
    """
    prepared = complete(cache / key, verify)
    if prepared:
        return prepared
    try:
        with _lock(cache, key, say):
            prepared = complete(cache / key, verify)  # another process may have made it while this one waited
            if prepared:
                return prepared
            return _make(cache, key, make, say, verify)
    except OSError as error:
        if error.errno in FULL:
            raise RunFailed(f"{cache}: no space left while preparing {key}; free some space there") from error
        reason = error.strerror or error
        raise UserError(
            f"{cache}: cannot keep prepared data there ({reason}); make it writable, or DATA_CACHE=folder"
        ) from error


def _make(cache: Path, key: str, make: Callable[[], Content], say, verify: bool) -> Prepared:
    """Make the folder, in the place of a damaged one, under the lock of its key."""
    damaged = _damaged(cache / key, verify) if (cache / key).exists() else None
    if damaged:
        say(f"{damaged} is damaged; {key} is prepared anew")
    unfinished = in_folder(cache, f".{key}.tmp")  # only the holder of the lock uses this name
    remove_folder(unfinished, may_stay=True)
    try:
        unfinished.mkdir()
        try:
            _write(unfinished, make())
        except Unavailable as error:
            raise Unavailable(f"{damaged} is damaged, and {error}" if damaged else str(error)) from error
        remove_folder(cache / key, may_stay=True)
        unfinished.rename(cache / key)
    finally:
        remove_folder(unfinished, may_stay=True)
    prepared = complete(cache / key)
    if prepared is None:
        raise OSError(f"{key} was changed while it was prepared")
    return prepared


def image_shape(dataset: DataSet) -> Shape:
    """The shape (channels, height, width) of its images. catalogue.prepare sets it for data made in any shape."""
    assert dataset.shape is not None
    return dataset.shape


def complete(path: Path, verify: bool = False) -> Prepared | None:
    """The folder, if its manifest is as it was written and every file has the size in it (with `verify`, the checksum
    too); else None.
    """
    manifest = _manifest(path)
    if manifest is None or _damaged(path, verify):
        return None
    return Prepared(path, path.name, manifest, manifest["label"])


def files_of(folder: Path) -> list[Path]:
    """The files of a prepared folder, and nothing else that lies there. Without the last one it does not count."""
    return [*(in_folder(folder, f"{name}.npy") for name in ARRAYS), folder / "manifest.json"]


def _damaged(path: Path, verify: bool) -> Path | None:
    """The first file of a prepared folder that is not as it was written."""
    manifest = _manifest(path)
    if manifest is None:
        return path / "manifest.json"
    for name, file in manifest["files"].items():
        try:
            same = os.lstat(path / name).st_size == file["bytes"]
            if not same or (verify and sha256(path / name) != file["sha256"]):
                return path / name
        except OSError:
            return path / name
    return None


def _manifest(path: Path) -> dict | None:
    """What manifest.json says; None when it is of another schema, or not as it was written."""
    try:
        manifest = load_json(path / "manifest.json")
        digest = manifest.pop("sha256")
        is_ours = digest == _digest(manifest) and manifest["schema"] == SCHEMA and _is_whole(manifest)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return manifest if is_ours else None


def _is_whole(manifest: dict) -> bool:
    """Whether what it says is of the types and within the bounds of what we write; a folder may be received.

    Raises KeyError and TypeError for what is not there or cannot be looked at.
    """
    texts, classes, files = (manifest["name"], manifest["label"]), manifest["classes"], manifest["files"]
    counts = [manifest["train_samples"], manifest["test_samples"], *manifest["shape"]]
    return (
        all(isinstance(text, str) and len(text) <= MOST_LETTERS for text in (*texts, *classes))
        and isinstance(classes, list)
        and 1 <= len(classes) <= MOST_CLASSES
        and len(manifest["shape"]) == 3
        and all(type(count) is int and count >= 1 for count in counts)
        and all(isinstance(number, int | float) for number in (*manifest["mean"], *manifest["std"]))
        and files.keys() == {f"{name}.npy" for name in ARRAYS}
        and all(type(file["bytes"]) is int and is_sha256(file["sha256"]) for file in files.values())
    )


def _digest(manifest: dict) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def mean_and_std(images: np.ndarray) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel, of pixels scaled to 0..1, from exact integer sums.

    A channel that is the same everywhere gets 1 for its deviation, so that dividing by it does no harm.
    """
    channels = images.shape[1]
    total, squares = np.zeros(channels, np.uint64), np.zeros(channels, np.uint64)
    for start in range(0, len(images), BLOCK):
        block = images[start : start + BLOCK].astype(np.uint32)
        total += block.sum(axis=(0, 2, 3), dtype=np.uint64)
        squares += (block * block).sum(axis=(0, 2, 3), dtype=np.uint64)
    n = images.size // channels
    sums = [(int(s), int(q)) for s, q in zip(total, squares, strict=True)]
    mean = [s / n / 255 for s, _ in sums]
    std = [((n * q - s * s) ** 0.5 / n / 255) or 1.0 for s, q in sums]
    return mean, std


def _write(folder: Path, content: Content) -> None:
    digests = {}
    for name in ARRAYS:
        with new_file(in_folder(folder, f"{name}.npy")) as file:
            # Into a real file numpy writes by C's fwrite, whose failure arrives as an OSError without errno.
            sink = HashingFile(file)
            np.save(sink, getattr(content, name), allow_pickle=False)
        digests[f"{name}.npy"] = {"bytes": sink.bytes, "sha256": sink.sha256}
    mean, std = mean_and_std(content.train_images)
    manifest = {
        "schema": SCHEMA,
        "name": content.name,
        "shape": list(content.train_images.shape[1:]),
        "classes": content.classes,
        "mean": mean,
        "std": std,
        "augment": content.augment,
        "train_samples": len(content.train_images),
        "test_samples": len(content.test_images),
        "source": content.source,
        "label": content.label,
        "files": digests,
    }
    whole = manifest | {"sha256": _digest(manifest)}  # of all the rest: what is read back is what was written
    write_whole(folder / "manifest.json", json.dumps(whole, indent=1) + "\n")


@contextmanager
def _lock(cache: Path, key: str, say) -> Iterator[None]:
    """Hold the cache's lock of this key; waits for another process that holds it."""
    if not files.has_locks():
        raise UserError("preparing data needs file locks of Linux or macOS; on Windows run syncbed inside WSL 2")
    cache.mkdir(parents=True, exist_ok=True)
    with files.lock(
        in_folder(cache, f".{key}.lock"), on_busy=lambda: say(f"waiting for another process that is preparing {key}")
    ):
        yield
