"""Decentralised SGD: each rank averages with its neighbours only."""

import numpy as np

from trainer.sync.replicas import Replicas, flat, put_back

_PAIRS = 5  # a random stream of its own from the seed, beside those of trainer/data/batches.py


class Gossip(Replicas):
    """After each local step a rank replaces its weights by the mean of its own and its neighbours'.

    TOPOLOGY=ring: the ranks beside it, weights 1/3 each (1/2 with two ranks). TOPOLOGY=random: one partner, drawn anew
    each step from the seed, the same pairs on every rank; of an odd number of ranks one goes without. Either mixing
    matrix is symmetric and doubly stochastic: it keeps the mean of the replicas, and draws them towards it.

    Source: Lian et al., Can Decentralized Algorithms Outperform Centralized Algorithms?, NIPS 2017 (arXiv:1705.09056),
    with the average after the local step instead of beside it; random pairs: Boyd et al., Randomized Gossip
    Algorithms, IEEE Transactions on Information Theory 52(6), 2006.

    Bytes per step per rank: S for each neighbour sent, as many received: ring 2S (n = 2: S, n = 1: 0), random S (odd
    n: in the mean (n-1)/n * S). No all-reduce but for evaluation and checkpoints, which take the mean of all replicas:
    2(n-1)/n * S once after the last step.

    Momentum and batch-norm statistics stay each rank's own while training.
    """

    def mix(self, step: int) -> None:
        peers = self._neighbours(step)
        mine = flat(self.weights)
        for theirs in self.wire.swap(mine, peers):
            mine.add_(theirs)
        put_back(mine.div_(1 + len(peers)), self.weights)
        self.apart = True
        self.synchronisations += 1

    def _neighbours(self, step: int) -> list[int]:
        wire, spec = self.wire, self.spec
        return neighbours(spec.topology, wire.rank, wire.world_size, spec.seed, step)

    def step_bytes(self, gradient_bytes: int) -> tuple[float, float]:
        n = self.wire.world_size
        sends = sum(len(self._neighbours(step)) for step in range(1, self.steps + 1))
        mean = (sends + 2 * (n - 1) / n) * gradient_bytes / self.steps
        return mean, mean


def neighbours(topology: str, rank: int, world_size: int, seed: int, step: int) -> list[int]:
    """The ranks that `rank` averages with in this step. Symmetric: it is among the neighbours of each of them."""
    if topology == "ring":
        return sorted({(rank - 1) % world_size, (rank + 1) % world_size} - {rank})
    order = np.random.default_rng([seed, _PAIRS, step]).permutation(world_size).tolist()
    place = order.index(rank) ^ 1  # places 0 and 1 are partners, 2 and 3, ...
    return [order[place]] if place < world_size else []
