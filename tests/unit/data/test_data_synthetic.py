"""Synthetic images: the same bytes for the same seed, and something to learn in them."""

from dataclasses import replace

import numpy as np
import pytest

from monitor.data import synthetic
from monitor.data.catalogue import prepare
from monitor.errors import UserError
from trainer.registry import DATA


def get(cache, seed=42, data_dir=None, shape=None):
    return prepare("synthetic", seed=seed, data_dir=data_dir, cache=cache, say=lambda _: None, shape=shape)


def test_a_seed_fixes_every_byte(tmp_path):
    one, two, other = get(tmp_path / "a"), get(tmp_path / "b"), get(tmp_path / "a", seed=43)
    assert one.key == "synthetic-3x32x32-s42" and other.key == "synthetic-3x32x32-s43"
    assert one.manifest == two.manifest
    for name, file in other.manifest["files"].items():
        assert file["sha256"] != one.manifest["files"][name]["sha256"]
    assert (one.manifest["train_samples"], one.manifest["test_samples"]) == (10_000, 2_000)
    assert one.manifest["shape"] == [3, 32, 32] and len(one.manifest["classes"]) == 10
    assert one.manifest["augment"] is False and one.label == "synthetic"


def test_the_bytes_of_seed_42_stay_what_they_are(tmp_path):
    """Figures measured on these images at different times must be of the same images."""
    files = get(tmp_path).manifest["files"]
    assert files["train_images.npy"]["sha256"][:16] == "0d7a6eb15208e060"
    assert files["test_labels.npy"]["sha256"][:16] == "d5255ec3ff15d988"


def test_classes_in_equal_parts_and_no_image_twice():
    made = synthetic.generate((3, 32, 32), 10, 1)
    assert np.bincount(made.train_labels).tolist() == [1000] * 10
    assert np.bincount(made.test_labels).tolist() == [200] * 10
    images = np.concatenate([made.train_images, made.test_images]).reshape(12_000, -1)
    assert len({row.tobytes() for row in images}) == 12_000
    assert (made.train_labels[:-1] != made.train_labels[1:]).any()


def best_shift(images, pattern):
    """Height of the strongest circular correlation of each image with the pattern, wherever it lies."""
    spectrum = np.fft.rfft2(images - images.mean(axis=(2, 3), keepdims=True))
    match = np.fft.irfft2(spectrum * np.conj(np.fft.rfft2(pattern - pattern.mean(axis=(1, 2), keepdims=True))))
    return match.sum(axis=1).max(axis=(1, 2)) / np.linalg.norm(pattern - pattern.mean(axis=(1, 2), keepdims=True))


def test_the_pattern_tells_the_class_and_single_pixels_do_not():
    made = synthetic.generate((3, 32, 32), 10, 42)
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(42).spawn(3)[0]))
    patterns = synthetic._patterns(rng, 10 + synthetic.DISTRACTORS, (3, 32, 32))
    images, labels = made.test_images[:500].astype(np.float64), made.test_labels[:500]
    matched = np.stack([best_shift(images, p) for p in patterns[:10]]).argmax(axis=0)
    assert (matched == labels).mean() > 0.9  # what a network that looks for a pattern anywhere can reach
    train = made.train_images.reshape(10_000, -1) / 255.0
    centres = np.stack([train[made.train_labels == c].mean(axis=0) for c in range(10)])
    distance = ((images.reshape(-1, 1, 3072) / 255 - centres) ** 2).sum(axis=2)
    assert 0.1 < (distance.argmin(axis=1) == labels).mean() < 0.8


@pytest.mark.parametrize(("shape", "classes"), [((1, 28, 28), 10), ((3, 20, 36), 7)])
def test_other_shapes(tmp_path, monkeypatch, shape, classes):
    monkeypatch.setattr(synthetic, "TRAIN_SAMPLES", 50)
    monkeypatch.setitem(DATA, "synthetic", replace(DATA["synthetic"], classes=classes))
    prepared = get(tmp_path, shape=shape)
    assert prepared.key == f"synthetic-{shape[0]}x{shape[1]}x{shape[2]}-s42"
    images = np.load(prepared.path / "train_images.npy")
    assert images.shape == (50, *shape) and len(prepared.manifest["classes"]) == classes
    assert images.std() > 10


def test_a_folder_makes_no_sense(tmp_path):
    with pytest.raises(UserError) as raised:
        get(tmp_path / "cache", data_dir=tmp_path)
    assert str(raised.value) == (
        f"DATA_DIR={tmp_path}: DATA=synthetic is made from SEED, reads no folder; leave DATA_DIR out"
    )
