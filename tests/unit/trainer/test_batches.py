"""Which samples are seen, and what becomes of them: against torchvision, and as properties of the shares."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.data.batches import PAD, Batches, crop_and_flip, evaluation_batches, normalise, share, weighted_share
from trainer.data.prepared import InputError, Prepared, Split, load

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


def prepared(train=20, test=7, augment=True) -> Prepared:
    rng = np.random.default_rng(0)

    def split(count):
        return Split(rng.integers(0, 256, (count, 3, 32, 32)).astype(np.uint8), np.arange(count) % 10)

    return Prepared("any", (3, 32, 32), tuple("abcdefghij"), MEAN, STD, augment, split(train), split(test))


@given(st.integers(0, 400), st.integers(1, 16))
def test_shares_are_disjoint_and_whole_whatever_n(total, n):
    parts = [range(total)[share(total, r, n)] for r in range(n)]
    assert [i for part in parts for i in part] == list(range(total))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 2**31 - 1), st.integers(1, 9))
def test_n_ranks_see_what_one_rank_with_the_joined_batch_sees(n, each, seed, step):
    data, batch = prepared(), n * each
    joined = Batches(data, batch, seed)(step)
    shares = [Batches(data, batch, seed, r, n)(step) for r in range(n)]
    assert torch.equal(torch.cat([images for images, _ in shares]), joined[0])
    assert torch.equal(torch.cat([labels for _, labels in shares]), joined[1])


@given(st.lists(st.integers(1, 9), min_size=1, max_size=16), st.integers(1, 9))
def test_weighted_shares_are_disjoint_whole_and_in_proportion(shares, unit):
    total = unit * sum(shares)
    parts = [range(total)[weighted_share(total, r, tuple(shares))] for r in range(len(shares))]
    assert [i for part in parts for i in part] == list(range(total))
    assert [len(part) for part in parts] == [unit * share for share in shares]


@given(st.integers(1, 50), st.integers(1, 16))
def test_equal_weighted_shares_are_shares(unit, n):
    for r in range(n):
        assert weighted_share(unit * n, r, (1,) * n) == share(unit * n, r, n)


def test_ranks_of_unequal_shares_see_the_joined_batch():
    data, shares = prepared(), (3, 1, 2)
    joined = Batches(data, 12, 4)(1)
    parts = [Batches(data, 12, 4, r, 3, shares)(1) for r in range(3)]
    assert [len(labels) for _, labels in parts] == [6, 2, 4]
    assert torch.equal(torch.cat([images for images, _ in parts]), joined[0])
    assert torch.equal(torch.cat([labels for _, labels in parts]), joined[1])


@given(st.integers(1, 20), st.integers(0, 2**31 - 1))
def test_an_epoch_sees_no_sample_twice_and_drops_the_incomplete_batch(batch, seed):
    batches = Batches(prepared(), batch, seed)
    assert batches.steps_per_epoch == 20 // batch
    for epoch in (1, 2):
        steps = range((epoch - 1) * batches.steps_per_epoch + 1, epoch * batches.steps_per_epoch + 1)
        assert {batches.epoch(step) for step in steps} == {epoch}
        seen = np.concatenate([batches.indices(step) for step in steps])
        assert len(np.unique(seen)) == len(seen) == 20 // batch * batch


def test_epochs_differ_in_order_and_seeds_differ():
    batches = Batches(prepared(), 20, seed=1)
    first, second = batches.indices(1), batches.indices(2)
    assert sorted(first) == sorted(second) == list(range(20))
    assert first.tolist() != second.tolist()
    assert first.tolist() != Batches(prepared(), 20, seed=2).indices(1).tolist()
    assert first.tolist() == batches.indices(1).tolist()  # going back gives the same again


def test_loading_marks_the_samples_of_this_rank_only():
    batches = Batches(prepared(), 8, seed=1, rank=1, world_size=2)
    batches(1)
    assert np.flatnonzero(batches.seen).tolist() == sorted(batches.indices(1))
    assert batches.seen.sum() == 4


def test_whole_batch_transforms_equal_torchvision_sample_by_sample():
    functional = pytest.importorskip("torchvision.transforms.functional")
    rng = np.random.default_rng(5)
    images = rng.integers(0, 256, (40, 3, 32, 32)).astype(np.uint8)
    rows, columns = rng.integers(0, 2 * PAD + 1, (2, 40))
    rows[:2], columns[:2] = (0, 2 * PAD), (2 * PAD, 0)  # the corners
    flips = rng.random(40) < 0.5
    ours = normalise(crop_and_flip(images, rows, columns, flips), MEAN, STD)
    for i, image in enumerate(torch.from_numpy(images)):
        expected = functional.crop(functional.pad(image, [PAD]), rows[i], columns[i], 32, 32)
        if flips[i]:
            expected = functional.hflip(expected)
        expected = functional.normalize(expected.float() / 255, MEAN, STD)
        torch.testing.assert_close(ours[i], expected, rtol=1e-5, atol=1e-5)
    assert ours.is_contiguous(memory_format=torch.channels_last)


def test_made_up_images_are_only_normalised():
    data = prepared(augment=False)
    batches = Batches(data, 5, seed=3)
    images, labels = batches(2)
    indices = batches.indices(2)
    assert torch.equal(images, normalise(data.train.images[indices], MEAN, STD))
    assert labels.tolist() == data.train.labels[indices].tolist()


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 30), st.integers(1, 16))
def test_each_test_sample_comes_once(count, n):
    data = prepared(test=count)
    parts = [batch for r in range(n) for batch in evaluation_batches(data, r, n, batch=3)]
    assert torch.equal(torch.cat([i for i, _ in parts]), normalise(data.test.images, MEAN, STD))
    assert torch.cat([labels for _, labels in parts]).tolist() == data.test.labels.tolist()


def test_a_training_set_smaller_than_a_batch_is_an_input_error():
    with pytest.raises(InputError, match="BATCH=21: the training set has 20 samples"):
        Batches(prepared(), 21, seed=0)


@pytest.fixture
def folder(tmp_path):
    data = prepared()
    arrays = {f"{s}_{k}": getattr(getattr(data, s), k) for s in ("train", "test") for k in ("images", "labels")}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    manifest = {"schema": 1, "name": "any", "shape": [3, 32, 32], "classes": list("abcdefghij")}
    write(tmp_path, manifest | {"mean": MEAN, "std": STD, "train_samples": 20, "test_samples": 7, "augment": True})
    return tmp_path


def write(folder, manifest):
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_load_gives_back_what_was_saved(folder):
    data, expected = load(folder), prepared()
    assert np.array_equal(data.train.images, expected.train.images)
    assert np.array_equal(data.test.labels, expected.test.labels)
    assert (data.shape, data.mean, data.std, data.augment) == (expected.shape, MEAN, STD, True)


def _truncate(folder):
    path = folder / "train_images.npy"
    path.write_bytes(path.read_bytes()[:-1000])


def _pickled(folder):
    np.save(folder / "train_labels.npy", np.array([{}] * 20, dtype=object), allow_pickle=True)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (_truncate, "train_images.npy: truncated"),
        (_pickled, "train_labels.npy: truncated or no array file"),
        (lambda f: (f / "manifest.json").unlink(), "not prepared, or not completely"),
        (lambda f: (f / "manifest.json").write_text("{"), "manifest.json: cannot be read"),
        (lambda f: write(f, {"schema": 2}), "not schema 1"),
        (lambda f: write(f, {"schema": 1, "name": "any"}), "field missing or malformed: 'shape'"),
        (lambda f: (f / "test_images.npy").unlink(), "test_images.npy: not there"),
        (lambda f: np.save(f / "test_labels.npy", np.full(7, 10)), "test_labels.npy: label 10 is outside 0..9"),
        (lambda f: np.save(f / "test_labels.npy", np.full(7, -1)), "test_labels.npy: label -1 is outside 0..9"),
        (lambda f: np.save(f / "train_images.npy", np.zeros((20, 3, 32, 32))), r"holds float64 \(20, 3, 32, 32\)"),
        (lambda f: np.save(f / "train_labels.npy", np.zeros(19, np.int64)), r"holds int64 \(19,\), the manifest says"),
        (lambda f: _edit(f, std=[0, 1, 1]), "std above 0"),
        (lambda f: _edit(f, mean=[float("nan"), 0, 0]), "finite numbers"),
    ],
)
def test_damaged_data_is_one_clear_line(folder, damage, says):
    damage(folder)
    with pytest.raises(InputError, match=says) as error:
        load(folder)
    assert "\n" not in str(error.value)


def _edit(folder, **changes):
    write(folder, json.loads((folder / "manifest.json").read_text()) | changes)


def test_dropout_depends_on_seed_step_and_rank_alone():
    def seeds(steps, seed=1, rank=0):
        batches = Batches(prepared(), 4, seed, rank, 2)
        return [batches.dropout_seed(step) for step in steps]

    assert seeds([1, 2, 3])[2] == seeds([3])[0]
    assert len({*seeds([1, 2, 3]), *seeds([1, 2, 3], seed=2), *seeds([1, 2, 3], rank=1)}) == 9


def test_grey_images_of_28x28():
    rng = np.random.default_rng(0)
    split = Split(rng.integers(0, 256, (6, 1, 28, 28)).astype(np.uint8), np.arange(6))
    data = Prepared("any", (1, 28, 28), tuple("abcdefghij"), (0.1307,), (0.3081,), False, split, split)
    batches = Batches(data, 6, seed=0)
    images, labels = batches(1)
    assert images.shape == (6, 1, 28, 28) and images.is_contiguous(memory_format=torch.channels_last)
    expected = (torch.from_numpy(split.images[labels.numpy()]) / 255 - 0.1307) / 0.3081
    torch.testing.assert_close(images, expected, rtol=1e-5, atol=1e-6)
    (whole, _), *none = evaluation_batches(data, 0, 1)
    assert whole.shape == (6, 1, 28, 28) and not none
