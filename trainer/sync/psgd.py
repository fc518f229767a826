"""Parallel SGD with one average at the end."""

from trainer.data.batches import OwnPart
from trainer.spec import SpecError
from trainer.sync.replicas import Replicas, average


class Psgd(Replicas):
    """Each worker trains alone on its own random n-th of the data, in batches of BATCH/n; after the last step the
    weights are averaged, once.

    Source: Zinkevich, Weimer, Li and Smola, Parallelized Stochastic Gradient Descent, NIPS 2010 (no arXiv number).

    Bytes per step per rank: 0, and 2(n-1)/n * S once after the last step, as many received. A checkpoint on the
    way holds the average of that moment, with which nobody goes on.

    Momentum is each worker's own and is not averaged; batch-norm statistics are each worker's own until the end, when
    evaluation takes their mean.
    """

    batches = OwnPart

    def __init__(self, wire, spec):
        if spec.transport != "gloo":
            raise SpecError("TRANSPORT", spec.transport, "gloo is what this trainer was built with")
        super().__init__(wire, spec)

    def mix(self, step: int) -> None:
        self.apart = True  # and nothing else: workers do not meet before the end

    def finish(self) -> None:
        super().finish()
        self.synchronisations += 1

    def join(self) -> None:
        average(self.weights, self.wire)

    def step_bytes(self, gradient_bytes: int) -> tuple[float, float]:
        once = 2 * (self.wire.world_size - 1) / self.wire.world_size * gradient_bytes
        return once / self.steps, once / self.steps
