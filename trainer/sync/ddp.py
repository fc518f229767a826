"""torch's DistributedDataParallel."""

import time

import torch
from torch.nn.parallel import DistributedDataParallel

from trainer.sync.base import Sync


class Ddp(Sync):
    """Gradients are averaged bucket by bucket while backward still computes the earlier layers' gradients.

    Source: Li et al., PyTorch Distributed, VLDB 2020 (arXiv:2006.15704). Buckets go through Gloo's
    ring all-reduce.
    Bytes per step per rank: 2(n-1)/n * S sent, as many received. SYNC_BN=1 adds its own, see
    batch_norm.

    Exposed synchronisation is from the moment the last bucket is handed over until backward
    returns; what the wire does before that is hidden behind backward, though on a busy CPU it makes
    backward longer. torch's own synchronisation of batch-norm buffers is off: see SYNC_BN.
    """

    def setup(self, model):
        super().setup(model)
        ddp = DistributedDataParallel(
            model,
            init_sync=False,  # the loop has already broadcast rank 0's weights, through the wire
            forward_sync_buffers=False,
            gradient_as_bucket_view=True,
        )
        ddp.register_comm_hook(None, self._average)
        self.ddp = ddp
        return ddp

    def load_state(self, state: dict) -> None:
        """Bring DDP to the buckets it goes on with.

        After its first backward it orders parameters by when their gradients were ready, and cuts
        other buckets. Which part of which bucket a gradient is in decides in what order Gloo adds
        the ranks' up. So a run that goes on must not have its first step in the first buckets: one
        backward comes before it, of which nothing stays.
        """
        buffers = [buffer.clone() for buffer in self.model.buffers()]
        with torch.autocast("cpu", torch.bfloat16, enabled=self.spec.precision == "bf16"):  # casts change the order too
            logits = self.ddp(torch.zeros(2, *self.spec.shape))
        self.backward(logits.float().sum())
        with torch.no_grad():
            for buffer, before in zip(self.model.buffers(), buffers, strict=True):
                buffer.copy_(before)

    def _average(self, _, bucket):
        # Weighted first, and by multiplication, as DDP without a hook does: results are equal to the last bit.
        gradients = bucket.buffer().mul_(self.weight)
        self._handed_over = time.perf_counter()
        return self.wire.all_reduce_later(gradients).then(lambda future: future.value()[0])

    def backward(self, loss) -> None:
        with self.wire.party.errors("backward"):
            loss.backward()
        self.wire.waited_seconds += time.perf_counter() - self._handed_over
        self.synchronisations += 1

    def step_bytes(self, gradient_bytes: int) -> tuple[float, float]:
        ring = 2 * (self.wire.world_size - 1) / self.wire.world_size * gradient_bytes
        total = ring + self.batch_norm_bytes()
        return total, total
