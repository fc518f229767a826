"""MNIST and Fashion-MNIST from a folder, a package or mirrors: the right pixels, and one line for everything else."""

import functools
import gzip
import hashlib
import http.server
import struct
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from monitor.data import idx
from monitor.data import mnist as module
from monitor.data.catalogue import prepare
from monitor.errors import UserError

SMALL = Path(__file__).parents[4] / "shared" / "data" / "mnist-small"
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
NAMES = [f"{stem}-ubyte" for stem in module.STEMS]
COUNTS = (7, 7, 4, 4)


def packed(magic: int, *sizes: int, data: bytes) -> bytes:
    """An IDX file, by the format's own words."""
    return struct.pack(f">{1 + len(sizes)}I", magic, *sizes) + data


def files(seed: int = 0) -> dict[str, bytes]:
    rng = np.random.default_rng(seed)
    made = {}
    for name, count in zip(NAMES, COUNTS, strict=True):
        if "images" in name:
            made[name] = packed(0x803, count, 28, 28, data=rng.bytes(count * 784))
        else:
            made[name] = packed(0x801, count, data=bytes(rng.integers(0, 10, count).tolist()))
    return made


@pytest.fixture
def folder(tmp_path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    for name, content in files().items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(content))
    return folder


def get(data_dir: Path | None, cache: Path, name: str = "mnist", **how):
    return prepare(name, seed=42, data_dir=data_dir, cache=cache, **{"say": lambda _: None, **how})


def arrays(prepared):
    return [np.load(prepared.path / f"{n}.npy") for n in ("train_images", "train_labels", "test_images", "test_labels")]


def refusal(data_dir: Path | None, cache: Path, name: str = "mnist") -> str:
    """The one line said; no data set is left in the cache."""
    with pytest.raises(UserError) as raised:
        get(data_dir, cache, name)
    assert raised.value.exit_code == 2 and "\n" not in str(raised.value)
    assert not cache.exists() or all(p.name.startswith(".") and not p.name.endswith(".tmp") for p in cache.iterdir())
    return str(raised.value)


def by_struct(path: Path) -> np.ndarray:
    """An independent reader: every number by struct, from the whole file."""
    raw = gzip.decompress(path.read_bytes())
    (dimensions,) = struct.unpack_from(">xxxB", raw)
    shape = struct.unpack_from(f">{dimensions}I", raw, 4)
    return np.array(list(raw[4 + 4 * dimensions :]), np.uint8).reshape(shape)


@pytest.mark.skipif(not SMALL.is_dir(), reason=f"{SMALL} is not there")
@pytest.mark.parametrize("data_dir", [SMALL, SMALL / "MNIST", SMALL / "MNIST" / "raw"])
def test_real_digits_as_an_independent_reader_sees_them(tmp_path, data_dir):
    prepared = get(data_dir, tmp_path)
    expected = [by_struct(SMALL / "MNIST" / "raw" / f"{name}.gz") for name in NAMES]
    for ours, theirs in zip(arrays(prepared), expected, strict=True):
        assert np.array_equal(ours.reshape(theirs.shape), theirs)
    train, labels, test, _ = arrays(prepared)
    assert train.dtype == np.uint8 and train.shape[1:] == (1, 28, 28) and labels.dtype == np.int64
    assert prepared.label == f"mnist ({len(train)} + {len(test)} images from a folder)"
    manifest = prepared.manifest
    assert (manifest["shape"], manifest["classes"]) == ([1, 28, 28], list("0123456789"))
    assert manifest["augment"] is False
    assert np.allclose(manifest["mean"], (train / 255).mean(), rtol=1e-9)
    assert np.allclose(manifest["std"], (train / 255).std(), rtol=1e-9)


@pytest.mark.skipif(not DEBIAN.is_dir(), reason="Debian's dataset-fashion-mnist is not installed")
def test_debians_fashion_mnist_is_found_by_itself_and_known_to_be_the_public_one(tmp_path):
    prepared = get(None, tmp_path, "fashion_mnist")
    train, train_labels, test, test_labels = arrays(prepared)
    assert (train.shape, test.shape) == ((60_000, 1, 28, 28), (10_000, 1, 28, 28))
    assert np.array_equal(test[:, 0], by_struct(DEBIAN / "t10k-images-idx3-ubyte.gz"))
    assert np.array_equal(test_labels, by_struct(DEBIAN / "t10k-labels-idx1-ubyte.gz"))
    assert np.bincount(train_labels).tolist() == [6000] * 10 and np.bincount(test_labels).tolist() == [1000] * 10
    assert prepared.label == "fashion_mnist"  # all of it, as published: no count of images
    assert prepared.manifest["classes"][9] == "Ankle boot"
    line = refusal(DEBIAN, tmp_path / "other")
    assert (
        line == f"{DEBIAN}/train-images-idx3-ubyte.gz: holds the images of Fashion-MNIST; DATA=fashion_mnist would do"
    )


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
@pytest.mark.parametrize("below", ["", "raw"])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_plain_and_packed_files_there_or_below(tmp_path, name, below, ending):
    source = tmp_path / "source" / below
    source.mkdir(parents=True)
    for file, content in files().items():
        (source / f"{file}{ending}").write_bytes(gzip.compress(content) if ending else content)
    read = arrays(get(tmp_path / "source", tmp_path / "cache", name))
    for array, content in zip(read, files().values(), strict=True):
        assert array.astype(np.uint8).tobytes() == content[-array.size :]


def test_both_kinds_of_files_beside_each_other(folder, tmp_path):
    """As torchvision leaves them."""
    first = get(folder, tmp_path / "cache")
    for name, content in files().items():
        (folder / name).write_bytes(content)
    assert get(folder, tmp_path / "cache") == first


def test_a_changed_folder_is_prepared_anew(folder, tmp_path):
    first = get(folder, tmp_path / "cache")
    assert get(folder, tmp_path / "cache", verify=True) == first
    (folder / f"{NAMES[0]}.gz").write_bytes(gzip.compress(files(1)[NAMES[0]]))
    second = get(folder, tmp_path / "cache")
    assert second.key != first.key and not np.array_equal(arrays(first)[0], arrays(second)[0])


@pytest.mark.parametrize("keep", [0, 1, 2, 10, 200, -1])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_truncated_file(folder, tmp_path, keep, ending):
    content = (folder / f"{NAMES[2]}.gz").read_bytes()
    (folder / f"{NAMES[2]}.gz").unlink()
    path = folder / f"{NAMES[2]}{ending}"
    path.write_bytes((content if ending else files()[NAMES[2]])[:keep])
    line = refusal(folder, tmp_path / "cache")
    assert line.startswith((f"{path}: truncated or corrupted (", f"{path}: starts with "))


def test_noise_is_one_line_whatever_it_is(folder, tmp_path):
    rng, path = np.random.default_rng(3), folder / f"{NAMES[0]}.gz"
    whole = path.read_bytes()
    for trial in range(60):
        broken = bytearray(whole if trial % 2 else rng.bytes(200))
        broken[int(rng.integers(0, 60))] ^= 1 << int(rng.integers(8))
        path.write_bytes(broken)
        try:
            get(folder, tmp_path / "cache")
        except UserError as error:
            assert str(error).startswith(f"{path}: ") and "\n" not in str(error)


IMAGES, LABELS = "unsigned bytes (n, 28, 28)", "unsigned bytes (n)"


@pytest.mark.parametrize(
    ("which", "content", "line"),
    [
        (0, packed(0x801, 7, data=bytes(7)), f"starts with 00000801; an IDX file of {IMAGES} would do"),
        (0, packed(0xD03, 7, 28, 28, data=b""), f"starts with 00000d03; an IDX file of {IMAGES} would do"),
        (1, packed(0x803, 7, 1, 1, data=bytes(7)), f"starts with 00000803; an IDX file of {LABELS} would do"),
        (1, b"", f"starts with nothing; an IDX file of {LABELS} would do"),
        (0, packed(0x803, 7, 28, data=b""), "truncated or corrupted (its header ends early); copy the file anew"),
        (0, packed(0x803, 7, 32, 32, data=bytes(7168)), f"holds items of 32x32; {IMAGES} would do"),
        (0, packed(0x803, 0, 28, 28, data=b""), "says it holds 0 items; 1 to 300000 would do"),
        (1, packed(0x801, 2**32 - 1, data=b""), "says it holds 4294967295 items; 1 to 300000 would do"),
        (1, packed(0x801, 7, data=bytes(6)), "truncated or corrupted (6 of 7 bytes); copy the file anew"),
        (1, packed(0x801, 7, data=bytes(8)), "more follows after the 7 items it says it holds; copy the file anew"),
        (1, packed(0x801, 6, data=bytes(6)), "6 labels for 7 images; one label an image would do"),
        (1, packed(0x801, 7, data=bytes([0, 1, 2, 10, 4, 5, 6])), "label 10; whole numbers from 0 to 9 would do"),
    ],
)
def test_a_file_of_another_kind(folder, tmp_path, which, content, line):
    path = folder / f"{NAMES[which]}.gz"
    path.write_bytes(gzip.compress(content))
    assert refusal(folder, tmp_path / "cache") == f"{path}: {line}"


def test_a_file_that_unpacks_without_end_is_not_unpacked(folder, tmp_path, monkeypatch):
    path = folder / f"{NAMES[1]}.gz"
    bomb = gzip.compress(packed(0x801, 7, data=bytes(50_000_000)))
    path.write_bytes(bomb)
    asked = []
    real = gzip.GzipFile.read
    monkeypatch.setattr(gzip.GzipFile, "read", lambda self, size=-1: asked.append(size) or real(self, size))
    assert refusal(folder, tmp_path / "cache").endswith(
        "more follows after the 7 items it says it holds; copy the file anew"
    )
    assert asked and all(0 < size <= 7 * 784 for size in asked)


@pytest.mark.parametrize("gone", NAMES)
def test_a_missing_file(folder, tmp_path, gone):
    (folder / f"{gone}.gz").unlink()
    line = refusal(folder, tmp_path / "cache")
    assert line == f"DATA_DIR={folder}: {gone} missing in {folder}; copy the whole folder"


def test_a_folder_of_another_layout(tmp_path):
    wrong = tmp_path / "wrong"
    wrong.mkdir()
    (wrong / "batches.meta").touch()
    start = f"DATA_DIR={wrong}: not MNIST: looked for train-images-idx3-ubyte and its three companions"
    line = refusal(wrong, tmp_path / "cache")
    assert line.startswith(start) and line.endswith(", found batches.meta")
    assert refusal(wrong / "x", tmp_path / "cache").startswith(f"DATA_DIR={wrong}/x: no such folder; give one with ")


def test_a_directory_where_a_file_should_be(folder, tmp_path):
    (folder / f"{NAMES[3]}.gz").unlink()
    (folder / NAMES[3]).mkdir()
    line = refusal(folder, tmp_path / "cache")
    assert line == f"{folder}/{NAMES[3]}: cannot be read (Is a directory); make it a readable file"


@pytest.fixture
def mirror(folder, monkeypatch):
    """Two mirrors: the first has lost its files, the second serves `folder`. Their checksums are the expected ones."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=folder))
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    url = f"http://127.0.0.1:{httpd.server_port}/"
    sums = tuple(hashlib.sha256((folder / f"{name}.gz").read_bytes()).hexdigest() for name in NAMES)
    monkeypatch.setattr(module, "MNIST", replace(module.MNIST, mirrors=(f"{url}lost/", url), packed=sums))
    yield url
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def test_fetched_from_the_mirror_that_has_it(mirror, folder, tmp_path):
    cache, said = tmp_path / "cache", []
    prepared = get(None, cache, say=said.append)
    assert prepared.key == "mnist" and prepared.manifest["source"] == mirror
    assert said[-4:] == [f"downloading {mirror}{name}.gz" for name in NAMES]
    assert arrays(prepared)[0].tobytes() == files()[NAMES[0]][16:]
    assert sorted(p.name for p in cache.iterdir()) == [".mnist.lock", "mnist"]
    assert get(None, cache, say=pytest.fail, verify=True) == prepared


def test_no_mirror_has_the_expected_files(mirror, folder, tmp_path):
    (folder / f"{NAMES[2]}.gz").write_bytes(b"<html>log in first</html>")
    host = mirror.split("/")[2]
    trouble = f"{host}: answered 404 File not found; {mirror}{NAMES[2]}.gz: not the expected file (its SHA-256 differs)"
    assert refusal(None, tmp_path / "cache") == (
        f"DATA=mnist cannot be fetched ({trouble}); "
        "a network (then `make data DATA=mnist`), DATA_DIR=folder with its files, or DATA=synthetic would do"
    )
    said = []
    how = {"data_dir": None, "cache": tmp_path / "cache", "say": said.append, "shape": (1, 28, 28)}
    made = prepare("mnist", seed=7, or_synthetic=True, **how)
    assert said[-1].startswith(f"warning: mnist cannot be fetched ({trouble}), so synthetic images are used instead; ")
    assert (made.key, made.manifest["shape"]) == ("synthetic-1x28x28-s7", [1, 28, 28])
    assert made.label == "synthetic (no DATA named, mnist could not be fetched)"


def test_a_package_of_the_system_comes_before_a_download(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FASHION_MNIST", replace(module.FASHION_MNIST, package=folder, mirrors=()))
    prepared = get(None, tmp_path / "cache", "fashion_mnist")
    assert prepared.label == "fashion_mnist (7 + 4 images from a folder)"
    monkeypatch.setattr(module, "FASHION_MNIST", replace(module.FASHION_MNIST, package=tmp_path / "none", mirrors=()))
    assert refusal(None, tmp_path / "empty", "fashion_mnist").startswith("DATA=fashion_mnist cannot be fetched (")


def test_the_reader_says_what_the_system_says(tmp_path):
    with pytest.raises(FileNotFoundError):
        idx.read(tmp_path / "nothing", ())
