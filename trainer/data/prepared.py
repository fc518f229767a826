"""A prepared data set: a folder of plain arrays with a manifest, made once by the monitor, only read here.

manifest.json                       names, shape, classes, mean and std; written last
train_images.npy  uint8 (N,C,H,W)   train_labels.npy  int64 (N,)    and the same for test
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainer.names import in_folder
from trainer.received import load_json, refuse_special
from trainer.registry import MOST_CLASSES

SCHEMA = 1


class InputError(ValueError):
    """Data that cannot be trained on. str() is one line: what is wrong, and what would do."""


@dataclass(frozen=True)
class Split:
    images: np.ndarray  # uint8 (N, C, H, W), mapped from the file: ranks of one machine share the page cache
    labels: np.ndarray  # int64 (N,)

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Prepared:
    name: str
    shape: tuple[int, int, int]  # channels, height, width
    classes: tuple[str, ...]
    mean: tuple[float, ...]  # of each channel of the training images, scaled to 0..1
    std: tuple[float, ...]
    augment: bool  # photographs: crop and flip; made-up images have no such symmetry
    train: Split
    test: Split

    @property
    def inputs(self) -> dict:
        """What a model that was trained on this takes and tells: enough to serve it without the data."""
        return {
            "data": self.name,
            "shape": list(self.shape),
            "classes": list(self.classes),
            "mean": list(self.mean),
            "std": list(self.std),
        }


def load(folder: Path) -> Prepared:
    """Open the prepared data set in `folder` and check all that can be checked cheaply.

    Raises InputError.
    """
    manifest = _manifest(folder)
    try:
        shape, classes = tuple(manifest["shape"]), tuple(manifest["classes"])
        mean, std = tuple(map(float, manifest["mean"])), tuple(map(float, manifest["std"]))
        augment = bool(manifest.get("augment", manifest["name"] == "cifar10"))
        name, counts = manifest["name"], {s: int(manifest[f"{s}_samples"]) for s in ("train", "test")}
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{folder}/manifest.json: field missing or malformed: {error}; prepare it again") from None
    if len(classes) > MOST_CLASSES:
        raise InputError(f"{folder}/manifest.json: {len(classes)} classes; {MOST_CLASSES} are the most")
    if len(mean) != shape[0] or len(std) != shape[0] or not np.isfinite(mean + std).all() or min(std) <= 0:
        raise InputError(f"{folder}/manifest.json: mean and std must be {shape[0]} finite numbers, std above 0")
    splits = {split: _split(folder, split, count, shape, len(classes)) for split, count in counts.items()}
    return Prepared(name, shape, classes, mean, std, augment, **splits)


def _manifest(folder: Path) -> dict:
    path = folder / "manifest.json"
    try:
        manifest = load_json(path, has_types=True)  # it is checked below
    except FileNotFoundError:
        raise InputError(f"{path}: not there; the data was not prepared, or not completely") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error}); prepare the data again") from None
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        raise InputError(f"{path}: not schema {SCHEMA}; prepare the data again with this version")
    return manifest


def _split(folder: Path, split: str, count: int, shape: tuple, classes: int) -> Split:
    images = _array(in_folder(folder, f"{split}_images.npy"), np.uint8, (count, *shape))
    labels = np.array(_array(in_folder(folder, f"{split}_labels.npy"), np.int64, (count,)))
    if count == 0:
        raise InputError(f"{folder}: no {split} samples")
    if labels.min() < 0 or labels.max() >= classes:
        wrong = labels[(labels < 0) | (labels >= classes)][0]
        raise InputError(f"{folder}/{split}_labels.npy: label {wrong} is outside 0..{classes - 1}")
    return Split(images, labels)


def _array(path: Path, dtype, shape: tuple) -> np.ndarray:
    """Map the array; integers only, so that no sample can hold NaN. Raises InputError."""
    try:
        refuse_special(path)
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise ValueError("an archive of several")
    except FileNotFoundError:
        raise InputError(f"{path}: not there; prepare the data again") from None
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path}: truncated or no array file ({error}); prepare the data again") from None
    if array.dtype != dtype or array.shape != shape:
        want = f"{np.dtype(dtype).name} {shape}"
        raise InputError(f"{path}: holds {array.dtype.name} {array.shape}, the manifest says {want}; prepare it again")
    return array
