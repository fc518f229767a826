"""Parallel SGD with one average at the end."""

from trainer.data.batches import OwnPart
from trainer.sync.replicas import Replicas, average


class Psgd(Replicas):
    """Each worker trains alone on its own random n-th of the data, in batches of BATCH/n; after the last step the
    weights are averaged, once.

    Source: Zinkevich, Weimer, Li and Smola, Parallelized Stochastic Gradient Descent, NIPS 2010 (no
    arXiv number).

    Bytes per step per rank: 0, and 2(n-1)/n * S once after the last step, as many received. A
    checkpoint on the way holds the average of that moment, with which nobody goes on.

    TRANSPORT=mpi: the average is MPI's all-reduce, over MPICH's ring, whose bytes are the same
    (trainer/wire/mpi.py).

    Momentum is each worker's own and is not averaged; batch-norm statistics are each worker's own
    until the end, when evaluation takes their mean.
    """

    batches = OwnPart

    def setup(self, model):
        self._on_mpi = self.spec.transport == "mpi"
        if self._on_mpi:
            self.wire.connect_mpi()
        return super().setup(model)

    def mix(self, step: int) -> None:
        self.apart = True  # and nothing else: workers do not meet before the end

    def finish(self) -> None:
        super().finish()
        self.synchronisations += 1

    def join(self) -> None:
        average(self.weights, self.wire, self.wire.all_reduce_mpi if self._on_mpi else None)

    def step_bytes(self, gradient_bytes: int) -> tuple[float, float]:
        once = 2 * (self.wire.world_size - 1) / self.wire.world_size * gradient_bytes
        return once / self.steps, once / self.steps
