"""SVHN from MATLAB files: axes and digits the right way round, and one line for everything else."""

import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest

from monitor.data import svhn
from monitor.data.catalogue import prepare
from monitor.errors import UserError

savemat = pytest.importorskip("scipy.io").savemat
TRAIN, TEST = svhn.SHA256


def content(count: int, seed: int) -> dict:
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(count) % 10 + 1).astype(np.uint8)
    return {"X": rng.integers(0, 256, (32, 32, 3, count), np.uint8), "y": labels.reshape(-1, 1)}


@pytest.fixture
def folder(tmp_path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    savemat(folder / TRAIN, content(30, 0), do_compression=True)
    savemat(folder / TEST, content(12, 1), do_compression=True)
    return folder


def get(data_dir: Path | None, cache: Path, **how):
    return prepare("svhn", seed=42, data_dir=data_dir, cache=cache, say=lambda _: None, **how)


def refusal(data_dir: Path | None, cache: Path) -> str:
    with pytest.raises(UserError) as raised:
        get(data_dir, cache)
    assert raised.value.exit_code == 2 and "\n" not in str(raised.value)
    assert not cache.exists() or all(p.name.startswith(".") and not p.name.endswith(".tmp") for p in cache.iterdir())
    return str(raised.value)


@pytest.mark.parametrize("compressed", [True, False])
def test_every_pixel_and_digit(folder, tmp_path, compressed):
    savemat(folder / TRAIN, content(30, 0), do_compression=compressed)
    prepared = get(folder, tmp_path / "cache")
    images, labels = (np.load(prepared.path / f"train_{kind}.npy") for kind in ("images", "labels"))
    source = content(30, 0)
    assert images.shape == (30, 3, 32, 32) and images.dtype == np.uint8
    for sample in (0, 7, 29):
        for row, column, channel in ((0, 0, 0), (5, 11, 2), (31, 3, 1)):
            assert images[sample, channel, row, column] == source["X"][row, column, channel, sample]
    assert np.array_equal(images.transpose(2, 3, 1, 0), source["X"])
    assert labels.tolist() == [0 if label == 10 else label for label in source["y"][:, 0]] and 0 in labels
    assert len(np.load(prepared.path / "test_labels.npy")) == 12
    manifest = prepared.manifest
    assert (manifest["shape"], manifest["classes"]) == ([3, 32, 32], list("0123456789"))
    assert manifest["augment"] is False and prepared.label == "svhn (30 + 12 images from a folder)"


def test_the_folder_above(folder, tmp_path):
    folder.rename(tmp_path / "svhn")
    assert get(tmp_path, tmp_path / "cache").label == "svhn (30 + 12 images from a folder)"


def test_labels_as_numbers_of_another_kind(folder, tmp_path):
    first = get(folder, tmp_path / "cache")
    source = content(30, 0)
    savemat(folder / TRAIN, {**source, "y": source["y"].astype(np.float64), "more": 1})
    second = get(folder, tmp_path / "cache")
    assert second.key != first.key
    assert second.manifest["files"]["train_labels.npy"] == first.manifest["files"]["train_labels.npy"]


X, Y = content(4, 3)["X"], content(4, 3)["y"]
WOULD_DO = "X (32, 32, 3, n) and y (n, 1) would do"


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ({"X": X}, f"holds X (32, 32, 3, 4); {WOULD_DO}"),
        ({"z": 1}, f"holds z (1, 1); {WOULD_DO}"),
        ({"X": X[:28, :28], "y": Y}, f"holds X (28, 28, 3, 4), y (4, 1); {WOULD_DO}"),
        ({"X": X, "y": Y[:3]}, f"holds X (32, 32, 3, 4), y (3, 1); {WOULD_DO}"),
        ({"X": X, "y": Y.T}, f"holds X (32, 32, 3, 4), y (1, 4); {WOULD_DO}"),
        ({"X": X.astype(float), "y": Y}, "X is double, y is uint8; uint8 and whole numbers would do"),
        ({"X": X, "y": Y + 10}, "label 1?; whole numbers from 1 to 10, which is the digit 0, would do"),
        ({"X": X, "y": Y + 0.5}, "label ?.5; whole numbers from 1 to 10, which is the digit 0, would do"),
    ],
)
def test_arrays_of_another_kind(folder, tmp_path, value, line):
    savemat(folder / TEST, value)
    said = refusal(folder, tmp_path / "cache")
    if "?" in line:
        before, after = line.split("?")
        assert said.startswith(f"{folder / TEST}: {before}") and said.endswith(after)
    else:
        assert said == f"{folder / TEST}: {line}"


@pytest.mark.parametrize("keep", [0, 1, 100, 130, 2000, -1])
def test_a_truncated_file(folder, tmp_path, keep):
    path = folder / TEST
    path.write_bytes(path.read_bytes()[:keep])
    assert refusal(folder, tmp_path / "cache").startswith((f"{path}: truncated or no MATLAB file (", f"{path}: holds "))


def test_noise_is_one_line_whatever_it_is(folder, tmp_path):
    rng, path = np.random.default_rng(3), folder / TEST
    whole = path.read_bytes()
    for trial in range(60):
        broken = bytearray(whole if trial % 3 else rng.bytes(400))
        broken[int(rng.integers(0, 300))] ^= 1 << int(rng.integers(8))
        path.write_bytes(broken)
        try:
            get(folder, tmp_path / "cache")
        except UserError as error:
            assert str(error).startswith(f"{path}: ") and "\n" not in str(error)


def test_files_of_other_formats(folder, tmp_path):
    for other in (gzip.compress(b"x" * 500), b"<html>log in first</html>" * 20, b"\x89HDF\r\n\x1a\n" + bytes(600)):
        (folder / TEST).write_bytes(other)
        line = refusal(folder, tmp_path / "cache")
        assert line.startswith((f"{folder / TEST}: truncated or no MATLAB file (", f"{folder / TEST}: holds "))


def test_a_missing_file_or_folder(folder, tmp_path):
    (folder / TEST).unlink()
    line = refusal(folder, tmp_path / "cache")
    assert line == f"DATA_DIR={folder}: {TEST} missing in {folder}; copy the whole folder"
    (folder / TRAIN).unlink()
    looked_for = f"{TRAIN} and {TEST} there or in svhn or SVHN below"
    line = refusal(folder, tmp_path / "cache")
    assert line == f"DATA_DIR={folder}: not SVHN: looked for {looked_for}, found an empty folder"


def test_fetched_with_checksums(folder, tmp_path, monkeypatch):
    """`fetch` itself is tested with the archive of CIFAR-10; here, what it is asked for and what is kept."""
    asked = []

    def fetch(url, sha256, place, say):
        asked.append((url, sha256))
        place.mkdir(parents=True)
        (place / "file").write_bytes((folder / url.rsplit("/", 1)[1]).read_bytes())
        return place / "file"

    monkeypatch.setattr("monitor.data.download.fetch", fetch)
    prepared = get(None, tmp_path / "cache")
    assert asked == [(f"{svhn.MIRROR}{name}", svhn.SHA256[name]) for name in (TRAIN, TEST)]
    assert prepared.key == prepared.label == "svhn"
    assert np.load(prepared.path / "test_images.npy").tobytes() == content(12, 1)["X"].transpose(3, 2, 0, 1).tobytes()
    assert sorted(p.name for p in (tmp_path / "cache").iterdir()) == [".svhn.lock", "svhn"]
    digest = hashlib.sha256((prepared.path / "test_images.npy").read_bytes()).hexdigest()
    assert prepared.manifest["files"]["test_images.npy"]["sha256"] == digest
