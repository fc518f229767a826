"""Gradients travel as they are."""

import torch

from trainer.compress.base import Compressor, Gather, Gradients, Sum, Traffic
from trainer.flat import flatten, unflatten


class Plain(Compressor):
    """Every element in the type it has: what is sent is S bytes.

    A subclass says in which other type they travel.
    """

    dtype = torch.float32

    def reduce(self, gradients: Gradients, total: Sum, gather: Gather) -> None:
        self.decode(total(self.encode(gradients)), gradients)

    def traffic(self, gradients: Gradients) -> Traffic:
        return Traffic(sums=((sum(g.numel() for g in gradients.values()), self.dtype.itemsize),))

    def encode(self, gradients: Gradients) -> torch.Tensor:
        only = next(iter(gradients.values()))
        if len(gradients) == 1 and only.is_contiguous() and only.dtype == self.dtype:
            return only.view(-1)
        return flatten(gradients.values(), self.dtype)

    def message(self, gradients: Gradients) -> torch.Tensor:
        return torch.empty(sum(g.numel() for g in gradients.values()), dtype=self.dtype)

    def decode(self, message: torch.Tensor, gradients: Gradients) -> None:
        unflatten(message, gradients.values())
