"""The surface of a synchronisation strategy: one file, one class, one line in the registry.

A strategy says in its docstring the algorithm, its source, and the bytes per step that a rank sends
and receives, as a formula of the gradients' bytes S and the world size n; `step_bytes` is that
formula as code, which the tests hold against what the wire counted.
"""

from trainer.data.batches import Batches
from trainer.spec import RunSpec
from trainer.sync import batch_norm
from trainer.wire.collectives import Wire


class Sync:
    """What the loop calls, in this order: setup, begin; backward, synchronise, step and mix each step; finish.

    Time spent in `synchronise` and `mix`, and time any of them waits for the wire, is reported as
    exposed synchronisation.
    """

    batches = Batches  # how the training data is dealt out
    finish_changes_weights = False  # whether `finish` writes the weights
    lockstep = True  # the ranks take step k together; otherwise checkpoints on the way are rank 0's alone

    def __init__(self, wire: Wire, spec: RunSpec):
        self.wire, self.spec = wire, spec
        self.steps = spec.steps or 0  # of the whole run; 0 for EPOCHS, until `begin`
        self.synchronisations = 0  # how often the replicas were brought together
        self.staleness: float | None = None  # of this step's update, where there is such a thing

    def setup(self, model):
        """Take the model, whose weights are rank 0's on every rank.

        Returns what the loop calls for a forward pass.
        """
        self.model = model
        if self.spec.sync_bn:
            batch_norm.synchronise(model, self.wire, self.weight)
        return model

    def begin(self, optimizer, steps: int) -> None:
        """Take the optimizer of the model's weights, and the number of steps of the run."""
        self.optimizer, self.steps = optimizer, steps

    def backward(self, loss) -> None:
        """Compute the gradients of this rank's share of the batch."""
        loss.backward()

    def synchronise(self) -> None:
        """Bring the gradients of the ranks together."""

    def step(self, optimizer) -> None:
        """Update the weights."""
        optimizer.step()

    def mix(self, step: int) -> None:
        """Bring the weights of the ranks together, after step number `step` (from 1)."""

    def together(self, point: str) -> Wire:
        """Wait for all ranks that are left at this point between two steps, each once; the wire among them."""
        self.wire.party.meet(point)
        return self.wire

    def finish(self) -> None:
        """After the last step: bring together what is still apart.

        Every rank then has the same weights.

        A strategy that writes weights here sets `finish_changes_weights`: checkpoints hold those
        from before.
        """

    def step_bytes(self, gradient_bytes: int) -> tuple[float, float]:
        """Payload bytes this rank sends and receives in one step, mean over the steps, `finish` included.

        May need `setup` before.
        """
        raise NotImplementedError

    def state(self) -> dict:
        """What this rank must keep besides weights and optimizer to go on as if it had never stopped.

        Tensors and numbers by name, so that it can be loaded without executing code.
        """
        return {}

    def load_state(self, state: dict) -> None:
        """Take back what `state` gave.

        Called after `begin`, when model and optimizer are restored.
        """

    @property
    def weight(self) -> float:
        """This rank's samples over the global batch's: the sum of the ranks' gradients times this is the mean's."""
        return self.spec.samples_of(self.wire.rank) / self.spec.batch

    def parameters(self) -> dict:
        """The parameters that are trained, by name."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def weighted_gradients(self) -> dict:
        """This rank's part of the global batch's gradient, by parameter name: the gradients themselves, scaled."""
        return {name: p.grad.mul_(self.weight) for name, p in self.parameters().items()}

    def batch_norm_bytes(self) -> float:
        """What SYNC_BN=1 adds to the bytes a rank sends per step, and as much to those it receives."""
        return batch_norm.step_bytes(self.model, self.wire.world_size) if self.spec.sync_bn else 0
