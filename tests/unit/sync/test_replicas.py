"""Who gossips with whom, and who trains on what."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainer.data.batches import Batches, OwnPart
from trainer.data.prepared import Prepared, Split
from trainer.spec import TOPOLOGIES
from trainer.sync.gossip import neighbours

seeds = st.integers(0, 2**31 - 1)


def mixing_matrix(topology, n, seed, step):
    """Row r: the weights with which rank r averages."""
    matrix = np.zeros((n, n))
    for rank in range(n):
        group = [rank, *neighbours(topology, rank, n, seed, step)]
        assert len(set(group)) == len(group)
        matrix[rank, group] = 1 / len(group)
    return matrix


@given(st.sampled_from(TOPOLOGIES), st.integers(1, 24), seeds, st.integers(1, 10**6))
def test_mixing_matrices_are_symmetric_and_doubly_stochastic(topology, n, seed, step):
    matrix = mixing_matrix(topology, n, seed, step)
    assert np.array_equal(matrix, matrix.T)
    assert np.allclose(matrix.sum(0), 1)
    assert np.allclose(matrix.sum(1), 1)


@given(st.integers(1, 24), seeds, st.integers(1, 10**6))
def test_random_pairs_leave_at_most_one_out(n, seed, step):
    partners = [neighbours("random", rank, n, seed, step) for rank in range(n)]
    assert sorted(map(len, partners)) == [0] * (n % 2) + [1] * (n - n % 2)
    assert all(partners[p] == [rank] for rank, own in enumerate(partners) for p in own)


def test_random_pairs_bring_everyone_together_in_time():
    """The product of the steps' matrices tends to the mean over all."""
    product = np.eye(7)
    for step in range(1, 101):
        product = mixing_matrix("random", 7, 42, step) @ product
    assert np.allclose(product, 1 / 7, atol=1e-4)


@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 40), seeds, st.integers(1, 3))
def test_own_parts_are_disjoint_and_cover_what_an_epoch_covers(n, each, more, seed, epochs):
    total = n * each + more
    split = Split(np.zeros((total, 1, 1, 1), dtype=np.uint8), np.arange(total))
    data = Prepared("any", (1, 1, 1), tuple(map(str, range(total))), (0.0,), (1.0,), False, split, split)
    ranks = [OwnPart(data, n * each, seed, rank, n) for rank in range(n)]
    steps = ranks[0].steps_per_epoch
    parts = [set() for _ in ranks]
    for epoch in range(epochs):
        for batches, part in zip(ranks, parts, strict=True):
            indices = [i for step in range(steps) for i in batches.indices(epoch * steps + step + 1)]
            assert len(indices) == len(set(indices)) == steps * each  # nothing twice in an epoch
            part.update(indices)
    assert sum(map(len, parts)) == len(set().union(*parts))  # nobody's sample is another's
    if n == 1:
        whole = Batches(data, each, seed)
        for step in range(1, steps + 1):
            assert np.array_equal(ranks[0].indices(step), whole.indices(step))
