"""CIFAR-10 (Krizhevsky, 2009, "Learning Multiple Layers of Features from Tiny Images") in its public Python layout.

The source is a folder in that layout, named by DATA_DIR, or the public archive. A batch file is a pickle of a
dictionary with `data`, uint8 (n, 3072), each row the red, green and blue plane of a 32x32 image row by row, and
`labels`, n classes from 0. Pickles can run code: they are read by a reader that knows arrays and plain values alone.
"""

import io
import pickle
import re
import tarfile
from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from monitor.data import folders
from monitor.data.store import Content, Prepared, image_shape, prepare_once
from monitor.errors import UserError
from trainer.pickles import check_pickle
from trainer.received import read_received
from trainer.registry import DataSet

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
SHA256 = "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"  # as Keras and torchvision have it
INNER = "cifar-10-batches-py"  # the archive's folder
MOST_BYTES = 1 << 30  # of a batch; the public ones have 31 MB
META, TEST, TRAIN = "batches.meta", "test_batch", re.compile(r"data_batch_([1-9]\d*)")
PUBLIC_BATCHES = [META, *(f"data_batch_{i}" for i in range(1, 6)), TEST]


def prepare(dataset: DataSet, *, seed: int, data_dir: Path | None, cache: Path, say, verify: bool = False) -> Prepared:
    """The folder `cifar10` of the cache (public archive) or `cifar10-<digest of the files>` (DATA_DIR).

    A changed folder has another digest, so it is prepared anew. The seed plays no part.
    Raises UserError for a folder or file that cannot be used, Unavailable when the archive cannot be fetched.
    """
    if data_dir is None:
        return _from_archive(dataset, cache, say, verify)
    folder, names = _layout(data_dir)
    digest = folders.digest(folder, names)

    def make() -> Content:
        say(f"preparing CIFAR-10 from {folder}")
        files = ((name, folders.readable(folder / name, _read)) for name in names)
        return _content(dataset, files, folder, f"a folder of {len(names)} files, digest {digest}")

    return prepare_once(cache, f"cifar10-{digest[:12]}", make, say, verify)


def _read(path: Path) -> bytes:
    return read_received(path, MOST_BYTES, may_be_link=True)


def _from_archive(dataset: DataSet, cache: Path, say, verify: bool) -> Prepared:
    def make() -> Content:
        from monitor.data.download import fetch  # its libraries take a third of a second to import, rarely needed

        archive = fetch(URL, SHA256, cache / ".cifar10.download", say)
        with tarfile.open(archive) as tar:  # nothing is extracted: the batches are read out of the archive
            content = _content(dataset, _members(tar), archive, URL)
        archive.unlink()
        return content

    return prepare_once(cache, "cifar10", make, say, verify)


def _members(tar: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    """Name and content of each batch, in the order of the archive; nothing else in it is looked at."""
    names = {f"{INNER}/{name}": name for name in PUBLIC_BATCHES}
    for member in tar:
        file = tar.extractfile(member) if member.isreg() and member.name in names else None
        if file is not None:
            yield names[member.name], file.read(MOST_BYTES)


def _layout(data_dir: Path) -> tuple[Path, list[str]]:
    """The folder that holds the batches and their names in reading order."""
    looked_for = f"batches.meta, test_batch and data_batch_1.. there or in {INNER}/ below"
    places = folders.listing(data_dir, [INNER], looked_for)
    for folder, names in places.items():
        numbers = sorted(int(match[1]) for name in names if (match := TRAIN.fullmatch(name)))
        if not numbers and META not in names and TEST not in names:
            continue
        file_names = [META, *(f"data_batch_{i}" for i in range(1, max(numbers, default=1) + 1)), TEST]
        missing = [name for name in file_names if name not in names]
        if missing:
            raise UserError(f"DATA_DIR={data_dir}: {', '.join(missing)} missing in {folder}; copy the whole folder")
        return folder, file_names
    raise folders.not_here(data_dir, "CIFAR-10", looked_for, places[data_dir])


def _content(dataset: DataSet, files: Iterable[tuple[str, bytes]], where: Path, source: str) -> Content:
    """Check every batch and join them: training batches by number. `where` is named in errors."""
    classes, batches = None, {}
    for name, raw in files:
        if name == META:
            classes = _class_names(_unpickle(raw, where / name), dataset.classes, where / name)
        else:
            batches[name] = _batch(_unpickle(raw, where / name), dataset, where / name)
    if classes is None or TEST not in batches or len(batches) < 2:
        raise UserError(f"{where}: batches are missing in the archive; found {', '.join(sorted(batches)) or 'none'}")
    test_images, test_labels = batches.pop(TEST)
    train = [batches[name] for name in sorted(batches, key=lambda name: int(name.removeprefix("data_batch_")))]
    train_images, train_labels = (np.concatenate(parts) for parts in zip(*train, strict=True))
    counts = f" ({len(train_images)} + {len(test_images)} images from a folder)" if source != URL else ""
    label = f"cifar10{counts}"
    return Content(
        "cifar10", train_images, train_labels, test_images, test_labels, classes, source, label, augment=True
    )


def _batch(batch: dict, dataset: DataSet, path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 (n, channels, height, width) and labels int64 (n,) of one batch file."""
    shape = image_shape(dataset)
    pixels = prod(shape)
    images = batch.get("data")
    if not isinstance(images, _Array):
        raise UserError(f"{path}: has no array `data`; a CIFAR-10 batch would do")
    images = images.array(path)
    if images.dtype != np.uint8 or images.ndim != 2 or images.shape[1] != pixels or not len(images):
        raise UserError(f"{path}: data is {images.dtype} {images.shape}; uint8 (n, {pixels}) would do")
    labels = batch.get("labels")
    labels = labels.array(path).tolist() if isinstance(labels, _Array) else labels
    if not isinstance(labels, list) or len(labels) != len(images):
        count = len(labels) if isinstance(labels, list) else "no"
        raise UserError(f"{path}: {count} labels for {len(images)} images; one label an image would do")
    for label in labels:
        if type(label) is not int or not 0 <= label < dataset.classes:
            raise UserError(f"{path}: label {_shown(label)}; whole numbers from 0 to {dataset.classes - 1} would do")
    return images.reshape(-1, *shape), np.array(labels, np.int64)


def _class_names(meta: dict, classes: int, path: Path) -> list[str]:
    names = meta.get("label_names")
    names = [_text(name) for name in names] if isinstance(names, list) else names
    if not isinstance(names, list) or len(names) != classes or not all(isinstance(name, str) for name in names):
        raise UserError(f"{path}: label_names is no list of {classes} names; the batches.meta of CIFAR-10 would do")
    return names


def _shown(label: object) -> str:
    """A label for an error: what is not short is named by its type, as its text may be of any length."""
    is_short = type(label) in (bool, float, type(None)) or (type(label) is int and abs(label) < 10**18)
    if is_short or (isinstance(label, str | bytes) and len(label) <= 80):
        return repr(label)
    return f"of type {type(label).__name__}"


class _Dtype:
    """What a pickle says of an array's element type: kept as text, checked when used."""

    def __init__(self, code, *_):
        self.code, self.order = code, ""

    def __setstate__(self, state):
        self.order = state[1]


class _Array:
    """What a pickle says of an array. numpy's own rebuilding is not trusted with unchecked state, and not needed."""

    state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def array(self, path: Path) -> np.ndarray:
        """Raises UserError."""
        try:
            _version, shape, dtype, by_column, raw = self.state
            if not re.fullmatch(r"[iu][1248]", dtype.code):
                raise ValueError(f"elements {dtype.code}")
            raw = raw.encode("latin1") if isinstance(raw, str) else raw  # text in a pickle of Python 2
            flat = np.frombuffer(raw, np.dtype(dtype.code).newbyteorder("<" if dtype.order == "|" else dtype.order))
            return flat.reshape(shape, order="F" if by_column else "C")
        except Exception as error:  # any part of the state may be of any type, so any error may be raised
            raise UserError(f"{path}: corrupted array ({error}); copy the file anew") from error


class _Refused(Exception):
    """A pickle asks for something that no batch needs."""


def _latin1(text, encoding) -> bytes:
    """How Python 3 writes bytes into a pickle that Python 2 can read."""
    if encoding != "latin1":
        raise _Refused(f"_codecs.encode to {encoding}")
    return text.encode("latin1")


class _Unpickler(pickle.Unpickler):
    """Reads plain values and the names that a batch needs, under numpy 1's or 2's module name; refuses any other."""

    ALLOWED = {  # noqa: RUF012 (never changed)
        ("numpy", "ndarray"): _Array,
        ("numpy", "dtype"): _Dtype,
        ("numpy.core.multiarray", "_reconstruct"): lambda *_: _Array(),
        ("numpy._core.multiarray", "_reconstruct"): lambda *_: _Array(),
        ("_codecs", "encode"): _latin1,
    }

    def find_class(self, module, name):
        try:
            return self.ALLOWED[module, name]
        except KeyError:
            raise _Refused(f"{module}.{name}") from None


def _unpickle(raw: bytes, path: Path) -> dict:
    try:
        check_pickle(raw)
        value = _Unpickler(io.BytesIO(raw), encoding="latin1").load()
    except _Refused as error:
        raise UserError(f"{path}: refused: its pickle asks for {error}, which no CIFAR-10 batch does") from None
    except Exception as error:  # broken pickles raise nearly anything, see the documentation of pickle.UnpicklingError
        reason = str(error) or type(error).__name__
        raise UserError(f"{path}: truncated or corrupted ({reason}); copy the file anew") from error
    if not isinstance(value, dict):
        raise UserError(f"{path}: holds a {type(value).__name__}, not a dictionary; a CIFAR-10 batch would do")
    return {_text(key): item for key, item in value.items()}


def _text(value):
    """Names are bytes in a copy that was read as bytes and written again."""
    return value.decode("latin1") if isinstance(value, bytes) else value
