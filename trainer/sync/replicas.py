"""What strategies share whose replicas train apart, each with an optimizer of its own."""

import torch

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


def flat(tensors) -> torch.Tensor:
    """A copy of the tensors' elements, one after the other, in one dimension."""
    return torch.cat([t.detach().reshape(-1) for t in tensors])


@torch.no_grad()
def put_back(values: torch.Tensor, tensors) -> None:
    """Write what `flat` gave into the tensors."""
    for tensor, part in zip(tensors, values.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(part.view(tensor.shape))


def average(tensors, wire, all_reduce=None) -> None:
    """Replace the tensors by their mean over the ranks, in one all-reduce.

    Every rank gets the same bits.

    `all_reduce`: one of the wire's; default: Gloo's.
    """
    put_back((all_reduce or wire.all_reduce)(flat(tensors)).div_(wire.world_size), tensors)


def momentum(optimizer, parameters) -> list[torch.Tensor]:
    """The optimizer's momentum buffers, one for each parameter; none with MOMENTUM=0 and before the first step."""
    buffers = (optimizer.state.get(p, {}).get("momentum_buffer") for p in parameters)
    return [b for b in buffers if b is not None]
