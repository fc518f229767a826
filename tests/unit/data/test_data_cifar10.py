"""CIFAR-10 from a folder: the right pixels, and one clear line for everything that is not CIFAR-10."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from monitor.data.catalogue import prepare
from monitor.errors import UserError

SMALL = Path(__file__).parents[4] / "shared" / "data" / "cifar10-small"
NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
needs_small = pytest.mark.skipif(not SMALL.is_dir(), reason=f"{SMALL} is not there")


def batch(n: int, seed: int) -> dict:
    rng = np.random.default_rng(seed)
    return {"data": rng.integers(0, 256, (n, 3072), np.uint8), "labels": rng.integers(0, 10, n).tolist()}


@pytest.fixture
def folder(tmp_path) -> Path:
    """A small folder in the public layout: three training batches of different sizes, as Python 3 writes them."""
    folder = tmp_path / "source"
    folder.mkdir()
    write(folder / "batches.meta", {"label_names": NAMES, "num_vis": 3072})
    for i, n in enumerate((5, 3, 4)):
        write(folder / f"data_batch_{i + 1}", batch(n, i))
    write(folder / "test_batch", batch(6, 9))
    return folder


def write(path: Path, value, protocol: int = 2) -> None:
    path.write_bytes(pickle.dumps(value, protocol=protocol))


def get(data_dir: Path, cache: Path, **how):
    return prepare("cifar10", seed=42, data_dir=data_dir, cache=cache, say=lambda _: None, **how)


def arrays(prepared):
    return {
        name: np.load(prepared.path / f"{name}.npy", allow_pickle=False)
        for name in ("train_images", "train_labels", "test_images", "test_labels")
    }


def refusal(data_dir: Path, cache: Path) -> str:
    """The one line said about this folder; nothing is left in the cache."""
    with pytest.raises(UserError) as raised:
        get(data_dir, cache)
    assert raised.value.exit_code == 2 and "\n" not in str(raised.value)
    assert not cache.exists() or all(p.name.endswith(".lock") for p in cache.iterdir())
    return str(raised.value)


@needs_small
@pytest.mark.parametrize("data_dir", [SMALL, SMALL / "cifar-10-batches-py"])
def test_real_images_as_an_independent_reader_sees_them(tmp_path, data_dir):
    prepared = get(data_dir, tmp_path)
    read = arrays(prepared)
    assert read["train_images"].shape == (10_000, 3, 32, 32) and read["test_images"].shape == (2_000, 3, 32, 32)
    assert prepared.label == "cifar10 (10000 + 2000 images from a folder)"
    assert prepared.manifest["classes"] == NAMES and prepared.manifest["augment"] is True
    start = 0
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        with (SMALL / "cifar-10-batches-py" / name).open("rb") as file:
            source = pickle.load(file, encoding="bytes")
        rows, n = source[b"data"], len(source[b"labels"])
        which, at = ("test", 0) if name == "test_batch" else ("train", start)
        images, labels = read[f"{which}_images"][at : at + n], read[f"{which}_labels"][at : at + n]
        assert labels.tolist() == source[b"labels"]
        for channel in range(3):  # a row is the red plane, the green, the blue; each plane row by row
            plane = rows[:, 1024 * channel : 1024 * (channel + 1)]
            assert np.array_equal(images[:, channel].reshape(n, 1024), plane)
        assert images[7, 2, 5, 11] == rows[7, 2 * 1024 + 5 * 32 + 11]
        start += n
    scaled = read["train_images"].astype(np.float64) / 255
    assert np.allclose(prepared.manifest["mean"], scaled.mean(axis=(0, 2, 3)), rtol=1e-9)
    assert np.allclose(prepared.manifest["std"], scaled.std(axis=(0, 2, 3)), rtol=1e-9)


@pytest.mark.parametrize("protocol", [2, 4])
def test_batches_of_any_number_and_size(folder, tmp_path, protocol):
    for path in folder.iterdir():
        write(path, pickle.loads(path.read_bytes()), protocol)
    read = arrays(get(folder, tmp_path / "cache"))
    assert np.array_equal(
        read["train_images"].reshape(12, 3072), np.concatenate([batch(n, i)["data"] for i, n in enumerate((5, 3, 4))])
    )
    assert read["test_labels"].tolist() == batch(6, 9)["labels"] and read["test_labels"].dtype == np.int64


def test_batches_are_joined_by_number(folder, tmp_path):
    for i in range(4, 12):
        write(folder / f"data_batch_{i}", batch(1, i))
    labels = arrays(get(folder, tmp_path / "cache"))["train_labels"]
    assert labels[12:].tolist() == [batch(1, i)["labels"][0] for i in range(4, 12)]


def test_other_ways_to_write_the_same_batch(folder, tmp_path):
    """Keys as bytes, labels as an array, rows stored column by column, numpy 1's module name."""
    want = arrays(get(folder, tmp_path / "cache"))
    value = batch(5, 0)
    write(
        folder / "data_batch_1",
        {b"data": np.asfortranarray(value["data"]), b"labels": np.array(value["labels"], ">i4")},
    )
    write(folder / "batches.meta", {b"label_names": [name.encode() for name in NAMES]})
    for path in (folder / "data_batch_2", folder / "test_batch"):
        path.write_bytes(path.read_bytes().replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
    prepared = get(folder, tmp_path / "cache")
    assert all(np.array_equal(array, want[name]) for name, array in arrays(prepared).items())
    assert prepared.manifest["classes"] == NAMES


def test_a_changed_folder_is_prepared_anew(folder, tmp_path):
    first = get(folder, tmp_path / "cache")
    assert get(folder, tmp_path / "cache", verify=True) == first
    path = folder / "data_batch_2"
    before = path.stat()
    write(path, batch(3, 77))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # same name, size and time: still noticed
    second = get(folder, tmp_path / "cache")
    assert second.key != first.key and first.path.is_dir()
    assert np.array_equal(arrays(second)["train_images"][5:8].reshape(3, 3072), batch(3, 77)["data"])


class Evil:
    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    ("function", "args", "asks"),
    [
        (os.system, ("touch {}",), "posix.system"),
        (eval, ("open('{}', 'w')",), "__builtin__.eval"),
        (np.load, ("{}",), "numpy.load"),
        (getattr, (np, "load"), "__builtin__.getattr"),
    ],
)
def test_a_pickle_that_runs_code_is_refused(folder, tmp_path, function, args, asks):
    mark = tmp_path / "ran"
    args = tuple(a.format(mark) if isinstance(a, str) else a.dtype for a in args)
    write(folder / "data_batch_2", {"data": Evil(function, *args), "labels": []})
    assert refusal(folder, tmp_path / "cache") == (
        f"{folder}/data_batch_2: refused: its pickle asks for {asks}, which no CIFAR-10 batch does"
    )
    assert not mark.exists()


def test_an_array_of_objects_is_refused(folder, tmp_path):
    write(folder / "data_batch_1", {"data": np.array([None, 1], object), "labels": [1, 2]})
    assert (
        refusal(folder, tmp_path / "cache")
        == f"{folder}/data_batch_1: corrupted array (elements O8); copy the file anew"
    )


@pytest.mark.parametrize("keep", [0, 1, 100, 3000, -1])
def test_a_truncated_file(folder, tmp_path, keep):
    path = folder / "test_batch"
    path.write_bytes(path.read_bytes()[:keep])
    line = refusal(folder, tmp_path / "cache")
    assert line.startswith(f"{path}: truncated or corrupted (") and line.endswith("; copy the file anew")


def test_noise_is_one_line_whatever_it_is(folder, tmp_path):
    rng, path = np.random.default_rng(3), folder / "data_batch_1"
    whole = path.read_bytes()
    for trial in range(60):
        broken = bytearray(whole if trial % 2 else rng.bytes(200))
        broken[int(rng.integers(0, 60))] ^= 1 << int(rng.integers(8))  # in the part that is not pixels
        path.write_bytes(broken)
        try:
            get(folder, tmp_path / "cache")
        except UserError as error:
            assert str(error).startswith(f"{path}: ") and "\n" not in str(error)


def changed(**items) -> dict:
    return {**batch(5, 0), **items}


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ([1, 2], "holds a list, not a dictionary; a CIFAR-10 batch would do"),
        ({"labels": [1]}, "has no array `data`; a CIFAR-10 batch would do"),
        (changed(data=np.zeros((5, 784), np.uint8)), "data is uint8 (5, 784); uint8 (n, 3072) would do"),
        (changed(data=np.zeros((5, 3072), np.int64)), "data is int64 (5, 3072); uint8 (n, 3072) would do"),
        (changed(data=np.zeros((0, 3072), np.uint8)), "data is uint8 (0, 3072); uint8 (n, 3072) would do"),
        (changed(labels=[1, 2, 3]), "3 labels for 5 images; one label an image would do"),
        (changed(labels=None), "no labels for 5 images; one label an image would do"),
        (changed(labels=[0, 1, 10, 3, 4]), "label 10; whole numbers from 0 to 9 would do"),
        (changed(labels=[0, 1, -1, 3, 4]), "label -1; whole numbers from 0 to 9 would do"),
        (changed(labels=[0, 1, 2.0, 3, 4]), "label 2.0; whole numbers from 0 to 9 would do"),
    ],
)
def test_a_batch_of_another_kind(folder, tmp_path, value, line):
    write(folder / "data_batch_1", value, protocol=4)
    assert refusal(folder, tmp_path / "cache") == f"{folder}/data_batch_1: {line}"


@pytest.mark.parametrize("names", [None, NAMES[:9], [*NAMES[:9], 3]])
def test_class_names_of_another_kind(folder, tmp_path, names):
    write(folder / "batches.meta", {"label_names": names})
    assert refusal(folder, tmp_path / "cache") == (
        f"{folder}/batches.meta: label_names is no list of 10 names; the batches.meta of CIFAR-10 would do"
    )


@pytest.mark.parametrize("gone", ["test_batch", "batches.meta", "data_batch_2", "data_batch_1"])
def test_a_missing_file(folder, tmp_path, gone):
    (folder / gone).unlink()
    assert refusal(folder, tmp_path / "cache") == (
        f"DATA_DIR={folder}: {gone} missing in {folder}; copy the whole folder"
    )


LOOKED_FOR = "batches.meta, test_batch and data_batch_1.. there or in cifar-10-batches-py/ below"


def test_a_folder_of_another_layout(tmp_path):
    wrong = tmp_path / "wrong"
    wrong.mkdir()
    start = f"DATA_DIR={wrong}: not CIFAR-10: looked for {LOOKED_FOR}, found "
    assert refusal(wrong, tmp_path / "cache") == start + "an empty folder"
    for name in "abcdefg":
        (wrong / name).touch()
    assert refusal(wrong, tmp_path / "cache") == start + "a, b, c, d, e, ..."


def test_no_folder(tmp_path):
    (tmp_path / "file").touch()
    for name, problem in (("nowhere", "no such folder"), ("file", "not a folder")):
        line = f"DATA_DIR={tmp_path / name}: {problem}; give one with {LOOKED_FOR}"
        assert refusal(tmp_path / name, tmp_path / "cache") == line


def test_a_file_without_permission(folder, tmp_path):
    """As the user nobody when the tests run as root, whom no permission stops."""
    path, user = folder / "data_batch_3", os.geteuid()
    path.chmod(0)
    opened = [p for p in tmp_path.parents if p != Path("/") and p.stat().st_uid == user and user == 0]
    modes = {p: p.stat().st_mode for p in opened}
    cache = tmp_path / "cache"
    try:
        if user == 0:
            for p in [*opened, tmp_path]:
                p.chmod(p.stat().st_mode | 0o055)
            os.seteuid(65534)
        assert refusal(folder, cache) == f"{path}: cannot be read (Permission denied); make it a readable file"
    finally:
        os.seteuid(user)
        for p, mode in modes.items():
            p.chmod(mode)


def test_a_directory_where_a_file_should_be(folder, tmp_path):
    (folder / "test_batch").unlink()
    (folder / "test_batch").mkdir()
    assert refusal(folder, tmp_path / "cache") == (
        f"{folder}/test_batch: cannot be read (Is a directory); make it a readable file"
    )
