"""Error feedback: what a compressor did not send is kept and added to the next gradient."""

import torch

from trainer.compress.base import Compressor
from trainer.spec import RunSpec

KEPT = "kept/"


class ErrorFeedback(Compressor):
    """Keeps one tensor per name. Source: Karimireddy et al., 2019 (arXiv:1901.09847).

    At every step: sent + kept = gradient + kept before.
    """

    def __init__(self, spec: RunSpec):
        super().__init__(spec)
        self.kept: dict[str, torch.Tensor] = {}

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {KEPT + name: tensor for name, tensor in self.kept.items()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.kept = {key.removeprefix(KEPT): t.clone() for key, t in state.items() if key.startswith(KEPT)}
