"""What strategies share whose replicas train apart, each with an optimizer of its own."""

import torch

from trainer.flat import flatten, unflatten
from trainer.sync.base import Sync


class Replicas(Sync):
    """Replicas whose weights differ between synchronisations, while `apart` is true.

    One model is what is evaluated and served: the plain mean of the replicas' weights, which
    `finish` leaves on every rank. A checkpoint on the way has the same mean in model.pt, which
    nobody goes on with; each rank's own weights and momentum are in its own file.
    """

    finish_changes_weights = True
    apart = False  # whether the weights of the ranks may differ

    def finish(self) -> None:
        if self.apart:
            self.wire.party.meet("the last average")  # a slow rank's last steps are not cut short by the deadline
            self.join()

    def join(self) -> None:
        """Replace the weights by their mean over the ranks."""
        average(self.weights, self.wire)

    @property
    def weights(self) -> list[torch.Tensor]:
        return list(self.model.parameters())


def average(tensors, wire, all_reduce=None) -> None:
    """Replace the tensors by their mean over the ranks, in one all-reduce.

    Every rank gets the same bits.

    `all_reduce`: one of the wire's; default: Gloo's.
    """
    unflatten((all_reduce or wire.all_reduce)(flatten(tensors)).div_(wire.world_size), tensors)


def momentum(optimizer, parameters) -> list[torch.Tensor]:
    """The optimizer's momentum buffers, one for each parameter; none with MOMENTUM=0 and before the first step."""
    buffers = (optimizer.state.get(p, {}).get("momentum_buffer") for p in parameters)
    return [b for b in buffers if b is not None]
