"""Data that was received: bounded before it is read, and no name of it leads elsewhere."""

import json
import os
import pickle

import numpy as np
import pytest
import scipy.io
from orchestrator import write_cifar
from test_data_store import content

from monitor.data import catalogue, cifar10, folders, store, svhn
from monitor.data.store import complete, prepare_once
from monitor.errors import UserError
from trainer.data import prepared
from trainer.data.prepared import InputError
from trainer.pickles import MOST_PLACES, MOST_TUPLES, check_pickle
from trainer.registry import DATA, MOST_CLASSES

START, EMPTY_DICT, EMPTY_TUPLE, ONE, SET, END = b"\x80\x02", b"}", b")", b"\x85", b"K\x01s", b"."


def place(number: int) -> bytes:
    return b"r" + number.to_bytes(4, "little")


BOMBS = {
    "places": START + EMPTY_DICT + place(2**31 - 1) + END,
    "few places": START + EMPTY_DICT + place(MOST_PLACES) + END,
    "a place in letters": START + EMPTY_DICT + b"p4294967295\n" + END,
    "tuple as a key": START + EMPTY_DICT + EMPTY_TUPLE + ONE * 1_000_000 + SET + END,
    "tuples of two": START + EMPTY_DICT + EMPTY_TUPLE + b"K\x01\x86" * (MOST_TUPLES + 1) + SET + END,
    "marked tuples": START + EMPTY_DICT + b"(" * (MOST_TUPLES + 1) + b"t" * (MOST_TUPLES + 1) + SET + END,
    "frozen sets": b"\x80\x04" + EMPTY_DICT + b"(" * (MOST_TUPLES + 1) + b"\x91" * (MOST_TUPLES + 1) + SET + END,
}


@pytest.mark.parametrize("raw", BOMBS.values(), ids=BOMBS)
def test_a_pickle_takes_what_its_length_lets_expect(tmp_path, raw):
    """Nine bytes took 34 GB; 300 kB ended the process with a segmentation fault."""
    with pytest.raises(ValueError, match=r"^its pickle (makes more than|has a place)"):
        check_pickle(raw)
    with pytest.raises(UserError, match=r"data_batch_1: truncated or corrupted \(its pickle"):
        cifar10._unpickle(raw, tmp_path / "data_batch_1")


@pytest.mark.parametrize("protocol", range(5))
def test_pickles_of_batches_are_read_in_every_protocol(tmp_path, protocol):
    batch = {"data": np.zeros((9, 3072), "u1"), "labels": [1] * 9, "filenames": [f"{n}.png" for n in range(9)]}
    images, labels = cifar10._batch(
        cifar10._unpickle(pickle.dumps(batch, protocol=protocol), tmp_path), DATA["cifar10"], tmp_path
    )
    assert images.shape == (9, 3, 32, 32) and labels.tolist() == [1] * 9


@pytest.mark.parametrize("name", ["data_batch_1", "test_batch", "batches.meta"])
@pytest.mark.parametrize("is_link", [False, True])
def test_a_file_of_any_size_is_looked_at_before_it_is_hashed(tmp_path, monkeypatch, name, is_link):
    """A sparse file costs nothing to send, and hours to hash."""
    folder = write_cifar(tmp_path / "cifar")
    monkeypatch.setattr(folders, "sha256", lambda path, **_: pytest.fail("hashed") if path.name == name else "0")
    if is_link:
        (folder / name).rename(tmp_path / "blob")
        (folder / name).symlink_to(tmp_path / "blob")
    os.truncate(folder / name, 1 << 42)
    with pytest.raises(UserError, match=f"{name}: has 4398046511104 bytes; no file of a data set has more than"):
        catalogue.prepare("cifar10", seed=1, data_dir=folder, cache=tmp_path / "cache", say=lambda _: None)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (np.zeros((32, 32, 3, 2), object), np.ones((2, 1), "u1")),
        (np.zeros((32, 32, 3, 2), "f8"), np.ones((2, 1), "u1")),
        (np.zeros((32, 32, 3, 2), "u1"), np.zeros((2, 1), object)),
        (np.zeros((32, 32, 3, 2), "u1"), np.full((2, 1), "a")),
        (np.zeros((32, 32, 3, 2), "u1"), np.zeros((2, 1), [("f", "u1")])),
    ],
    ids=["cells", "floats", "labels in cells", "text", "structure"],
)
def test_a_matlab_file_holds_numbers_before_it_is_loaded(tmp_path, monkeypatch, x, y):
    """Cells are objects of hundreds of bytes each, of which a compressed file names any number."""
    path = tmp_path / "train_32x32.mat"
    scipy.io.savemat(path, {"X": x, "y": y}, do_compression=True)
    monkeypatch.setattr("scipy.io.loadmat", lambda *_, **__: pytest.fail("loaded"))
    with pytest.raises(UserError, match=r"train_32x32.mat: (X is|holds)"):
        svhn.read(path, DATA["svhn"])


@pytest.fixture
def folder(tmp_path):
    return prepare_once(tmp_path / "cache", "tiny", content, lambda _: None).path


def rewrite(folder, **changes):
    """The manifest with these changes, signed as ours is: whoever sends it can do that."""
    manifest = json.loads((folder / "manifest.json").read_text()) | changes
    manifest = {name: value for name, value in manifest.items() if value is not None and name != "sha256"}
    (folder / "manifest.json").write_text(json.dumps(manifest | {"sha256": store._digest(manifest)}))


def file_of(**changes):
    return {f"{name}.npy": {"bytes": 1, "sha256": "0" * 64} | changes for name in store.ARRAYS}


NEEDED = ("name", "label", "classes", "shape", "mean", "std", "train_samples", "files", "schema")
OTHER = {"../x": {"bytes": 1, "sha256": "0" * 64}}
CHANGES = [
    *({name: None} for name in NEEDED),
    *({"classes": names} for names in ([""] * (MOST_CLASSES + 1), [], "ab", [1], ["x" * 301])),
    *({"label": label} for label in (["x"], "x" * 301, 3)),
    *({"shape": shape} for shape in ([3, 4], [3, 4, "5"], [0, 4, 5], 3)),
    *({"train_samples": count} for count in ("40", -1, 1.5, 0, [])),
    *({"files": files} for files in ([], file_of() | OTHER, file_of(bytes="1"), file_of(sha256="../x"))),
    *({"files": files} for files in (dict.fromkeys(file_of()), {}, OTHER)),
    {"name": 3}, {"mean": ["0"]}, {"std": 1}, {"schema": "1"}, {"schema": [1]},
]  # fmt: skip


@pytest.mark.parametrize("changes", CHANGES, ids=lambda changes: str(changes)[:40])
def test_a_manifest_that_says_anything_else_is_no_prepared_folder(folder, changes):
    assert complete(folder)
    rewrite(folder)
    assert complete(folder, verify=True)
    rewrite(folder, **changes)
    assert complete(folder) is None and complete(folder, verify=True) is None


@pytest.mark.parametrize("kind", ["archive", "link", "pipe", "pickle"])
def test_a_rank_reads_plain_arrays(folder, kind):
    path = folder / "train_images.npy"
    array = np.load(path)
    path.unlink()
    match kind:
        case "archive":
            with path.open("wb") as file:
                np.savez(file, array)
        case "pickle":
            path.write_bytes(pickle.dumps(array))
        case "pipe":
            os.mkfifo(path)
        case "link":
            np.save(folder / "other.npy", array)
            path.symlink_to("other.npy")
    with pytest.raises(InputError, match=r"train_images.npy: (truncated or no array file|holds)"):
        prepared.load(folder)


def test_a_rank_makes_no_matrix_of_a_million_classes(folder):
    manifest = json.loads((folder / "manifest.json").read_text()) | {"classes": ["x"] * 1_000_000}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=r"manifest.json: 1000000 classes; 1000 are the most"):
        prepared.load(folder)
