"""Images made from the seed: nothing is fetched, and a network learns to tell their classes apart.

Each class is a smooth pattern that wraps around. A sample is its class's pattern, shifted by any amount in both
directions (so that no single pixel tells the class), with its own contrast and brightness, under a smooth pattern that
belongs to no class, plus noise. Only element-wise arithmetic is used, so a seed gives the same bytes on any machine.
"""

from pathlib import Path

import numpy as np

from monitor.data.store import BLOCK, Content, Prepared, image_shape, prepare_once
from monitor.errors import UserError
from trainer.registry import DataSet
from trainer.spec import shape_text

TRAIN_SAMPLES, TEST_SAMPLES = 10_000, 2_000
GRID = 4  # cells of a pattern in each direction
DISTRACTORS = 64  # patterns that belong to no class
NOISE = 32  # pixel noise is uniform in -NOISE..NOISE


def prepare(dataset: DataSet, *, seed: int, data_dir: Path | None, cache: Path, say, verify: bool = False) -> Prepared:
    """The folder synthetic-<shape>-s<seed> of the cache. Raises UserError when a DATA_DIR is given: none is read."""
    if data_dir is not None:
        raise UserError(f"DATA_DIR={data_dir}: DATA=synthetic is made from SEED, reads no folder; leave DATA_DIR out")
    shape = image_shape(dataset)
    key = f"synthetic-{shape_text(shape)}-s{seed}"
    return prepare_once(cache, key, lambda: generate(shape, dataset.classes, seed), say, verify)


def generate(shape: tuple[int, int, int], classes: int, seed: int) -> Content:
    """TRAIN_SAMPLES + TEST_SAMPLES images of `shape` (channels, height, width), classes in equal parts."""
    pattern_stream, train_stream, test_stream = (
        np.random.Generator(np.random.PCG64(s)) for s in np.random.SeedSequence(seed).spawn(3)
    )
    patterns = _patterns(pattern_stream, classes + DISTRACTORS, shape)
    train = _samples(train_stream, patterns, classes, TRAIN_SAMPLES)
    test = _samples(test_stream, patterns, classes, TEST_SAMPLES)
    names = [f"class{i}" for i in range(classes)]
    return Content("synthetic", *train, *test, names, f"generated from seed {seed}", "synthetic", augment=False)


def _patterns(rng: np.random.Generator, count: int, shape: tuple[int, int, int]) -> np.ndarray:
    """Smooth random fields, float32 (count, *shape) in -1..1, that wrap around at their edges."""
    channels, height, width = shape
    field = rng.uniform(-1, 1, (count, channels, GRID, GRID)).astype(np.float32)
    for axis, size in ((2, height), (3, width)):  # linear interpolation along one direction after the other
        at = np.arange(size, dtype=np.float32) * (GRID / size)
        left = at.astype(np.int64)
        part = (at - left).reshape((-1, 1) if axis == 2 else (1, -1))
        field = field.take(left, axis) * (1 - part) + field.take((left + 1) % GRID, axis) * part
    return field


def _samples(rng: np.random.Generator, patterns: np.ndarray, classes: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 (count, *shape) and labels int64 (count,)."""
    labels = rng.permutation(np.arange(count, dtype=np.int64) % classes)
    images = np.empty((count, *patterns.shape[1:]), np.uint8)
    for start in range(0, count, BLOCK):
        of_class = labels[start : start + BLOCK]
        n = len(of_class)
        of_none = rng.integers(classes, len(patterns), n)
        contrast = rng.uniform(50, 90, (n, 1, 1, 1)).astype(np.float32)
        clutter = rng.uniform(0, 50, (n, 1, 1, 1)).astype(np.float32)
        level = rng.uniform(98, 158, (n, 1, 1, 1)).astype(np.float32)
        pixels = contrast * _shifted(rng, patterns, of_class) + clutter * _shifted(rng, patterns, of_none) + level
        pixels += rng.integers(-NOISE, NOISE + 1, pixels.shape, np.int8)
        images[start : start + n] = np.clip(np.rint(pixels), 0, 255)
    return images, labels


def _shifted(rng: np.random.Generator, patterns: np.ndarray, which: np.ndarray) -> np.ndarray:
    """The patterns `which`, each moved around by its own random amount: float32 (len(which), *shape)."""
    _, channels, height, width = patterns.shape
    rows = (np.arange(height) + rng.integers(0, height, (len(which), 1))) % height
    columns = (np.arange(width) + rng.integers(0, width, (len(which), 1))) % width
    pixel = (rows[:, :, None] * width + columns[:, None, :]).reshape(len(which), 1, -1)
    flat = patterns.reshape(len(patterns), channels, -1)[which]
    return np.take_along_axis(flat, pixel, axis=2).reshape(len(which), channels, height, width)
