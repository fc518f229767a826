"""The surface of a synchronisation strategy: one file, one class, one line in the registry.

A strategy says in its docstring the algorithm, its source, and the bytes per step that a rank sends and receives, as a
formula of the gradients' bytes S and the world size n; `step_bytes` is that formula as code, which the tests hold
against what the wire counted.
"""

from trainer.spec import RunSpec
from trainer.wire import Wire


class Sync:
    """What the loop calls, in this order: setup once; backward, synchronise and step each step; finish once.

    Time spent in `synchronise`, and time any of them waits for the wire, is reported as exposed synchronisation.
    """

    def __init__(self, wire: Wire, spec: RunSpec):
        self.wire, self.spec = wire, spec
        self.synchronisations = 0  # how often the replicas were brought together

    def setup(self, model):
        """Take the model, whose weights are rank 0's on every rank. Returns what the loop calls for a forward pass."""
        self.model = model
        return model

    def backward(self, loss) -> None:
        """Compute the gradients of this rank's share of the batch."""
        loss.backward()

    def synchronise(self) -> None:
        """Bring the gradients of the ranks together."""

    def step(self, optimizer) -> None:
        """Update the weights."""
        optimizer.step()

    def finish(self) -> None:
        """After the last step: bring together what is still apart."""

    def step_bytes(self, gradient_bytes: int) -> tuple[float, float]:
        """Payload bytes this rank sends and receives in one step, mean over the steps."""
        raise NotImplementedError
