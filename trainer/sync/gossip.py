"""Decentralised SGD: each rank averages with its neighbours only."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet

import numpy as np
import torch

from trainer.flat import flatten, unflatten
from trainer.sync.replicas import Replicas
from trainer.wire import survivors
from trainer.wire.collectives import Wire
from trainer.wire.link import FOREVER, Link
from trainer.wire.peers import EVIDENCE_SECONDS, SILENT_SECONDS

LOOK_SECONDS = 0.2  # how often a rank that waits for a neighbour looks whether it still lives
_PAIRS = 5  # a random stream of its own from the seed, beside those of trainer/data/batches.py


class Gossip(Replicas):
    """After each local step a rank replaces its weights by the mean of its own and its neighbours'.

    TOPOLOGY=ring: the ranks beside it, weights 1/3 each (1/2 with two ranks). TOPOLOGY=random: one
    partner, drawn anew each step from the seed, the same pairs on every rank; of an odd number of
    ranks one goes without. Either mixing matrix is symmetric and doubly stochastic: it keeps the
    mean of the replicas, and draws them towards it.

    Source: Lian et al., Can Decentralized Algorithms Outperform Centralized Algorithms?, NIPS 2017
    (arXiv:1705.09056), with the average after the local step instead of beside it; random pairs:
    Boyd et al., Randomized Gossip Algorithms, IEEE Transactions on Information Theory 52(6), 2006.

    Bytes per step per rank: S for each neighbour sent, as many received: ring 2S (n = 2: S, n = 1:
    0), random S (odd n: in the mean (n-1)/n * S). No all-reduce but for evaluation and checkpoints,
    which take the mean of all replicas: 2(n-1)/n * S once after the last step.

    Momentum and batch-norm statistics stay each rank's own while training.

    A rank that is lost, rank 0 excepted, is gone on without: its neighbours take the mean of those
    left, and the mean at the end is of all that are. Each pair of ranks has a link of its own, so
    that a lost one breaks no other.
    """

    def setup(self, model):
        module = super().setup(model)
        self.full_wire = self.wire  # of all that began; `wire` is of those that are left at the end
        rank, world_size = self.wire.rank, self.wire.world_size
        near = range(world_size) if self.spec.topology == "random" else neighbours("ring", rank, world_size)
        self.links = {other: Link(self.wire.party, other) for other in near if other != rank}
        self.waiting = ThreadPoolExecutor(max(1, len(self.links)), "neighbour")
        self.among: dict[tuple[int, ...], Wire] = {self.wire.party.ranks: self.wire}
        return module

    def mix(self, step: int) -> None:
        mine = flatten(self.weights)
        if self.full_wire.world_size > 1:
            self.full_wire.party.note(f"swap of {mine.numel()} float32")  # on every rank, also one without neighbours
            survivors.spare(self.full_wire.party, self.spec)
        swaps = {rank: self.waiting.submit(_swap, self.links[rank], mine) for rank in self._neighbours(step)}
        theirs = [weights for rank, swap in swaps.items() if (weights := self._received(rank, swap)) is not None]
        # A swap with one that is lost may still be reading `mine`.
        total = mine.clone() if len(theirs) < len(swaps) else mine
        for weights in theirs:
            total.add_(weights)
        unflatten(total.div_(1 + len(theirs)), self.weights)
        self.apart = True
        self.synchronisations += 1

    def _received(self, rank: int, swap: Future) -> torch.Tensor | None:
        """What this neighbour sent; None when it is lost, from now on. Raises WireError."""
        began, deadline = time.monotonic(), self.spec.deadline_seconds
        with self.full_wire.party.errors(f"a swap with rank {rank}"):
            while True:
                try:
                    weights = swap.result(LOOK_SECONDS)
                    self.full_wire.count("swap", *self.links[rank].take_bytes())
                    return weights
                except NotYet:
                    why = self._lost(rank, deadline / 2)
                    if not why and time.monotonic() - began > deadline:
                        raise RuntimeError("timed out") from None
                except RuntimeError as error:  # Gloo's
                    why = self._lost(rank, SILENT_SECONDS, EVIDENCE_SECONDS)
                    if not why:
                        raise error
                if why:
                    survivors.report(self.full_wire.party, rank, why)
                    del self.links[rank]
                    return None

    def _lost(self, rank: int, silent_seconds: float, patience: float = 0.0) -> str | None:
        """Why a neighbour is lost, after some patience; None: it is not, or cannot be done without."""
        peers, until = self.full_wire.party.peers, time.monotonic() + patience
        while rank in peers.expendable:
            if (why := peers.absent(rank, silent_seconds)) or time.monotonic() > until:
                return why
            time.sleep(LOOK_SECONDS / 2)
        return None

    def together(self, point: str) -> Wire:
        if self.full_wire.world_size == 1 or not self.apart:  # alone, or nobody can have been lost yet
            return super().together(point)
        wire = survivors.regroup(self.full_wire, self.spec, point, self.among)
        wire.take_bytes()  # what it was used for before
        return wire

    def finish(self) -> None:
        self.waiting.shutdown(wait=False)
        self.wire = self.together("the last average")
        if self.apart:
            self.join()

    def _neighbours(self, step: int) -> list[int]:
        """The ranks that this one averages with in this step, of those that are left."""
        wire, spec = self.full_wire, self.spec
        near = neighbours(spec.topology, wire.rank, wire.world_size, spec.seed, step)
        return [rank for rank in near if rank in self.links]

    def step_bytes(self, gradient_bytes: int) -> tuple[float, float]:
        n = self.full_wire.world_size
        sends = sum(len(self._neighbours(step)) for step in range(1, self.steps + 1))
        mean = (sends + 2 * (n - 1) / n) * gradient_bytes / self.steps
        return mean, mean


def _swap(link: Link, mine: torch.Tensor) -> torch.Tensor:
    """Send and receive at once. How long it may take is for whoever waits to say."""
    theirs, sending = torch.empty_like(mine), link.send(mine)
    link.receive(theirs, patience=FOREVER)
    sending.wait()
    return theirs


def neighbours(topology: str, rank: int, world_size: int, seed: int = 0, step: int = 0) -> list[int]:
    """The ranks that `rank` averages with in this step.

    Symmetric: it is among the neighbours of each of them.
    """
    if topology == "ring":
        return sorted({(rank - 1) % world_size, (rank + 1) % world_size} - {rank})
    order = np.random.default_rng([seed, _PAIRS, step]).permutation(world_size).tolist()
    place = order.index(rank) ^ 1  # places 0 and 1 are partners, 2 and 3, ...
    return [order[place]] if place < world_size else []
