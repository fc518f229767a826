"""Gradients gathered on rank 0, averaged there, scattered back."""

from trainer.flat import flatten, unflatten
from trainer.sync.base import Sync


class GatherScatter(Sync):
    """After backward, every rank sends all its gradients to rank 0, which adds them up and sends each the mean.

    The simplest centralised way, with rank 0 both worker and server: its link carries what n-1
    others send and receive.
    Bytes per step: rank 0 (n-1) * S sent and received, every other rank S sent and received.
    """

    def synchronise(self) -> None:
        gradients = self.weighted_gradients().values()
        flat = flatten(gradients)
        parts = self.wire.gather(flat)  # of all ranks on rank 0, nothing on the others
        for part in parts[1:]:
            parts[0] += part
        self.wire.scatter(flat, parts[:1] * len(parts))
        unflatten(flat, gradients)
        self.synchronisations += 1

    def step_bytes(self, gradient_bytes: int) -> tuple[float, float]:
        peers = self.wire.world_size - 1 if self.wire.rank == 0 else 1
        total = peers * gradient_bytes + self.batch_norm_bytes()
        return total, total
