"""Only the largest entries travel."""

import math

import torch

from trainer.compress.base import Gather, Gradients, Sum, Traffic
from trainer.compress.feedback import ErrorFeedback
from trainer.flat import flatten, unflatten


class TopK(ErrorFeedback):
    """Of the m entries of a group of gradients, taken together, the k = ceil(RATIO * m) largest in size are sent.

    Source: Stich et al., Sparsified SGD with memory, 2018 (arXiv:1809.07599); error feedback keeps
    the others.
    What is sent is 8k bytes: k indices as int32, then k values as float32, in one int32 tensor.
    Ranks choose different entries, so these cannot be summed on their way: every rank gathers every
    rank's, 8k(n-1) bytes sent and received.
    """

    def reduce(self, gradients: Gradients, total: Sum, gather: Gather) -> None:
        messages = gather(self.encode(gradients))
        flat = torch.zeros(_entries(gradients))
        for message in messages:  # in the order of ranks, so that all get the same sum to the last bit
            indices, values = unpack(message)
            flat.index_add_(0, indices, values)
        unflatten(flat, gradients.values())

    def traffic(self, gradients: Gradients) -> Traffic:
        return Traffic(gathered=(self.message(gradients).nbytes,))

    def encode(self, gradients: Gradients) -> torch.Tensor:
        flat, group = flatten(gradients.values()), next(iter(gradients))
        if group in self.kept:
            flat += self.kept[group]
        indices = flat.abs().topk(self._count(gradients), sorted=False).indices
        message = pack(indices, flat[indices])
        self.kept[group] = flat.index_fill_(0, indices, 0.0)
        return message

    def message(self, gradients: Gradients) -> torch.Tensor:
        return torch.empty(2 * self._count(gradients), dtype=torch.int32)

    def decode(self, message: torch.Tensor, gradients: Gradients) -> None:
        indices, values = unpack(message)
        unflatten(torch.zeros(_entries(gradients)).index_copy_(0, indices, values), gradients.values())

    def _count(self, gradients: Gradients) -> int:
        return math.ceil(self.spec.ratio * _entries(gradients))


def _entries(gradients: Gradients) -> int:
    return sum(g.numel() for g in gradients.values())


def pack(indices: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Indices int64 (k,) and values float32 (k,) as one int32 tensor (2k,), values bit by bit."""
    return torch.cat([indices.to(torch.int32), values.view(torch.int32)])


def unpack(message: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What `pack` put together."""
    indices, values = message.chunk(2)
    return indices.long(), values.view(torch.float32)
