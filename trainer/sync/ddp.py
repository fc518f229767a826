"""torch's DistributedDataParallel."""

import time

from torch.nn.parallel import DistributedDataParallel

from trainer.sync.base import Sync


class Ddp(Sync):
    """Gradients are averaged bucket by bucket while backward still computes the earlier layers' gradients.

    Source: Li et al., PyTorch Distributed, VLDB 2020 (arXiv:2006.15704). Buckets go through Gloo's ring all-reduce.
    Bytes per step per rank: 2(n-1)/n * S sent, as many received.

    Exposed synchronisation is from the moment the last bucket is handed over until backward returns; what the wire does
    before that is hidden behind backward, though on a busy CPU it makes backward longer. Batch-norm statistics are not
    synchronised in training.
    """

    def setup(self, model):
        ddp = DistributedDataParallel(
            model,
            init_sync=False,  # the loop has already broadcast rank 0's weights, through the wire
            forward_sync_buffers=False,
            gradient_as_bucket_view=True,
        )
        ddp.register_comm_hook(None, self._average)
        return ddp

    def _average(self, _, bucket):
        # Divided first, and by multiplication, as DDP without a hook does: results are equal to the last bit.
        gradients = bucket.buffer().mul_(1.0 / self.wire.world_size)
        self._handed_over = time.perf_counter()
        return self.wire.all_reduce_later(gradients).then(lambda future: future.value()[0])

    def backward(self, loss) -> None:
        with self.wire.errors("backward"):
            loss.backward()
        self.wire.waited_seconds += time.perf_counter() - self._handed_over
        self.synchronisations += 1

    def step_bytes(self, gradient_bytes: int) -> tuple[float, float]:
        ring = 2 * (self.wire.world_size - 1) / self.wire.world_size * gradient_bytes
        return ring, ring
