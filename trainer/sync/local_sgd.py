"""Local SGD: H steps alone, then one average."""

from trainer.sync.replicas import Replicas, average, momentum


class LocalSgd(Replicas):
    """Every H steps the weights and the momentum buffers of all ranks are replaced by their mean, in one all-reduce.

    Source: Stich, Local SGD Converges Fast and Communicates Little, ICLR 2019 (arXiv:1805.09767);
    momentum averaged with the weights as in Yu et al., ICML 2019 (arXiv:1905.03817). With H = 1 and
    no momentum it equals SGD on the joined batch.

    Bytes per step per rank: 2(n-1)/n * S * m / H sent, as many received; m = 2 with momentum, else
    1. For T steps these are floor(T/H) synchronisations, and those are what is counted as such.
    When H does not divide T, one more average of the weights alone, 2(n-1)/n * S, makes one model
    of the replicas after the last step.

    Batch-norm statistics stay each rank's own while training.
    """

    def mix(self, step: int) -> None:
        self.apart = step % self.spec.local_steps != 0
        if self.apart:
            return
        if self.spec.local_steps > 1:
            # Unequal nodes are far apart after H steps: no matter of DEADLINE.
            self.wire.party.meet(f"step {step}'s average")
        average(self.weights + momentum(self.optimizer, self.weights), self.wire)
        self.synchronisations += 1

    def step_bytes(self, gradient_bytes: int) -> tuple[float, float]:
        n, m = self.wire.world_size, 2 if self.spec.momentum else 1
        return local_step_bytes(self, 2 * (n - 1) / n * m * gradient_bytes, gradient_bytes)


def local_step_bytes(sync: Replicas, each: float, gradient_bytes: int) -> tuple[float, float]:
    """Mean over the steps: `each` bytes every H steps, and once an all-reduce of the weights when steps are over."""
    n, steps, every = sync.wire.world_size, sync.steps, sync.spec.local_steps
    last = (steps % every > 0) * 2 * (n - 1) / n * gradient_bytes
    mean = (steps // every * each + last) / steps
    return mean, mean
