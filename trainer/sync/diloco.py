"""DiLoCo: H steps alone, then an outer step along the averaged change."""

import torch

from trainer.compress.base import compressor
from trainer.flat import flatten, split, unflatten
from trainer.sync.local_sgd import local_step_bytes
from trainer.sync.replicas import Replicas


class Diloco(Replicas):
    """Every H steps the change of the weights since the last synchronisation, averaged over the ranks, is the gradient
    of an outer SGD with Nesterov momentum; all replicas go on from its result.

        change   = mean over ranks of (outer weights - this rank's weights)
        velocity = OUTER_MOMENTUM * velocity + change
        outer weights -= OUTER_LR * (change + OUTER_MOMENTUM * velocity)

    Source: Douillard et al., DiLoCo, 2023 (arXiv:2311.08105), whose inner optimizer is AdamW where
    this one is SGD. With OUTER_LR=1 and OUTER_MOMENTUM=0 the outer step is the average: with
    MOMENTUM=0 that equals local_sgd.

    Bytes per step per rank: 2(n-1)/n * S / H sent, as many received. For T steps these are
    floor(T/H) outer steps, and those are what is counted as synchronisations; when H does not
    divide T, one more average of the weights, 2(n-1)/n * S without an outer step, makes one model
    of the replicas after the last step.

    COMPRESS makes the change smaller on its way, see trainer/compress/: the formula of all_reduce,
    divided by H. What a rank did not send of its change it adds to its next one (error feedback).
    That last average travels as it is.

    The inner momentum stays each rank's own, across outer steps too; so do batch-norm statistics
    while training.
    """

    def setup(self, model):
        self.outer = flatten(model.parameters())
        self.velocity = torch.zeros_like(self.outer)
        self.compressor = compressor(self.spec)
        return super().setup(model)

    def mix(self, step: int) -> None:
        self.apart = step % self.spec.local_steps != 0
        if self.apart:
            return
        if self.spec.local_steps > 1:
            self.wire.party.meet(f"step {step}'s outer step")  # as in local_sgd
        momentum = self.spec.outer_momentum
        change = self.average(self.outer - flatten(self.weights))
        self.velocity.mul_(momentum).add_(change)
        self.outer.sub_(change.add_(self.velocity, alpha=momentum), alpha=self.spec.outer_lr)
        unflatten(self.outer, self.weights)
        self.synchronisations += 1

    def average(self, change: torch.Tensor) -> torch.Tensor:
        """The mean of `change`, float32 (parameters,), over the ranks.

        All that DiLoCo sends goes through here.
        """
        parts = dict(zip(self.shapes, split(change, self.shapes.values()), strict=True))
        self.compressor.reduce(parts, self.wire.all_reduce, self.wire.all_gather)  # the parts are views of `change`
        return change.div_(self.wire.world_size)

    @property
    def shapes(self) -> dict:
        """What the change is made of, by name: as the weights."""
        return dict(self.model.named_parameters())

    def state(self) -> dict:
        return {"outer": self.outer.clone(), "velocity": self.velocity.clone()} | self.compressor.state_dict()

    def load_state(self, state: dict) -> None:
        self.compressor.load_state_dict(state)
        self.outer.copy_(state["outer"])
        self.velocity.copy_(state["velocity"])

    def step_bytes(self, gradient_bytes: int) -> tuple[float, float]:
        each = self.compressor.traffic(self.shapes).ring_bytes(self.wire.world_size)
        return local_step_bytes(self, each, gradient_bytes)
