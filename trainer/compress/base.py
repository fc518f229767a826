"""The surface of a compressor: what travels in place of gradients.

One file, one class, one line in the registry.

What a strategy hands over need not be gradients: with diloco it is the change of the weights.

Two forms, for one and the same idea:
    reduce           gradients become their sum over the ranks, by collectives that the strategy hands in
    encode, decode   one rank's gradients as one tensor, for strategies that send from point to point

Gradients are a dict from parameter name to tensor. Names matter: what error feedback keeps is kept
by name, so one compressor can serve several groups of gradients, as long as the groups stay the
same from step to step.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from trainer.registry import COMPRESSORS, load
from trainer.spec import RunSpec

Gradients = dict[str, torch.Tensor]
Sum = Callable[[torch.Tensor], torch.Tensor]  # a 1-d tensor becomes the sum over the ranks, in place
Gather = Callable[[torch.Tensor], list[torch.Tensor]]  # every rank's tensor, in the order of ranks


@dataclass(frozen=True)
class Traffic:
    """What one `reduce` hands to the collectives, in order."""

    sums: tuple[tuple[int, int], ...] = ()  # (elements, bytes of an element) of each tensor that is summed
    gathered: tuple[int, ...] = ()  # bytes of each tensor that is gathered

    def ring_bytes(self, n: int) -> float:
        """What each of n ranks sends, and receives, when sums and gathered tensors go round rings, as Gloo's do."""
        summed = sum(elements * size for elements, size in self.sums)
        return 2 * (n - 1) / n * summed + (n - 1) * sum(self.gathered)


class Compressor:
    """Without state unless a subclass keeps some."""

    def __init__(self, spec: RunSpec):
        self.spec = spec

    def reduce(self, gradients: Gradients, total: Sum, gather: Gather) -> None:
        """Replace the gradients by the sum over the ranks of what each rank sent of its own."""
        raise NotImplementedError

    def traffic(self, gradients: Gradients) -> Traffic:
        """What `reduce` of gradients of these shapes hands to `total` and `gather`."""
        raise NotImplementedError

    def encode(self, gradients: Gradients) -> torch.Tensor:
        """What travels for these gradients, a 1-d tensor.

        May be a view of them, and may use them up.
        """
        raise NotImplementedError

    def message(self, gradients: Gradients) -> torch.Tensor:
        """An empty tensor to receive what `encode` makes of gradients of these shapes."""
        raise NotImplementedError

    def decode(self, message: torch.Tensor, gradients: Gradients) -> None:
        """Overwrite the gradients with what the message says of them."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, torch.Tensor]:
        """What must be kept for the run to go on as if it had never stopped."""
        return {}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Take back what state_dict gave."""


def compressor(spec: RunSpec) -> Compressor:
    """The one that COMPRESS names."""
    return load(COMPRESSORS[spec.compress])(spec)
