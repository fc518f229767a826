"""All-reduce written out: a ring of point-to-point sends."""

import torch

from trainer.compress.base import compressor
from trainer.data.batches import share
from trainer.sync.base import Sync


class Ring(Sync):
    """After backward, all gradients as one tensor are cut into n chunks, which go round the ring of ranks twice.

    Reduce-scatter: in each of n-1 rounds every rank sends a chunk to the next rank and adds the one
    that comes from the rank before to its own; then rank r holds the sum of chunk r+1. All-gather:
    in n-1 more rounds the sums go round.
    Source: Patarasuk & Yuan, Bandwidth optimal all-reduce algorithms, 2009. Read it beside
    all_reduce, which leaves the same to Gloo.
    Bytes per step per rank: 2(n-1)/n * S sent and received where n divides the number of elements.
    In general chunks c differ by an element: rank r sends 2S - c[r+1] - c[r+2] and receives 2S -
    c[r] - c[r+1].
    COMPRESS changes what travels, see trainer/compress/; topk's entries are gathered, (n-1) times
    their bytes.
    """

    def setup(self, model):
        self.compressor = compressor(self.spec)
        return super().setup(model)

    def synchronise(self) -> None:
        self.compressor.reduce(self.weighted_gradients(), self.all_reduce, self.wire.all_gather)
        self.synchronisations += 1

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum of a 1-d tensor over the ranks, in place."""
        rank, n = self.wire.rank, self.wire.world_size
        after, before = (rank + 1) % n, (rank - 1) % n
        what = f"{len(tensor)} {tensor.dtype}"
        chunks = [tensor[share(len(tensor), i, n)] for i in range(n)]
        for i in range(n - 1):
            outgoing, incoming = chunks[(rank - i) % n], torch.empty_like(chunks[(rank - i - 1) % n])
            self.wire.exchange(outgoing, after, incoming, before, f"round {i + 1} of reduce-scatter of {what}")
            chunks[(rank - i - 1) % n] += incoming
        for i in range(n - 1):
            outgoing, incoming = chunks[(rank - i + 1) % n], chunks[(rank - i) % n]
            self.wire.exchange(outgoing, after, incoming, before, f"round {i + 1} of all-gather of {what}")
        return tensor

    def step_bytes(self, gradient_bytes: int) -> tuple[float, float]:
        rank, n = self.wire.rank, self.wire.world_size
        sent = received = self.batch_norm_bytes()
        traffic = self.compressor.traffic(self.parameters())
        for elements, size in traffic.sums:
            chunks = [len(range(elements)[share(elements, i, n)]) for i in range(n)]
            sent += (2 * elements - chunks[(rank + 1) % n] - chunks[(rank + 2) % n]) * size
            received += (2 * elements - chunks[rank] - chunks[(rank + 1) % n]) * size
        gathered = (n - 1) * sum(traffic.gathered)
        return sent + gathered, received + gathered

    def state(self) -> dict:
        return self.compressor.state_dict()

    def load_state(self, state: dict) -> None:
        self.compressor.load_state_dict(state)
