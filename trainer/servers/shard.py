"""A server's part of the weights, its optimizer, and the clock by which pushes are applied and answered.

Sources: Li et al., Scaling distributed machine learning with the parameter server, OSDI 2014; Ho et
al., More effective distributed ML via a stale synchronous parallel parameter server, NIPS 2013;
Dean et al., Large scale distributed deep networks, NIPS 2012. No wire in here: each worker's pushes
come on a thread of their own.
"""

import threading

import torch

from trainer.spec import RunSpec
from trainer.wire.survivors import GivenUp


class Shard:
    """The weights of one part, flat (float32), and SGD on them with the spec's LR, MOMENTUM and WEIGHT_DECAY.

    A worker pushes its gradient times its samples over the global batch's, so that the sum over all
    workers is the gradient of the joined batch. A worker's clock counts its pushes.

    bound = 0, lock-step: once every worker has pushed, the sum, in rank order, is one SGD step;
    then all are answered. Should workers be lost, what the others push is scaled up to the mean
    over their samples.
    bound > 0, stale synchronous parallel: each push is an SGD step of its own as soon as it comes,
    its weight decay scaled like its gradient: n pushes move the weights about as far as one
    lock-step step. A worker is answered once it is no more than `bound` pushes ahead of the
    slowest.
    """

    def __init__(self, weights: torch.Tensor, spec: RunSpec, bound: int):
        self.weights, self.spec, self.bound = weights, spec, bound
        self.optimizer = torch.optim.SGD([weights], spec.lr, spec.momentum, weight_decay=spec.weight_decay, fused=True)
        self.clock = dict.fromkeys(range(spec.workers), 0)  # pushes of every worker that still trains
        self.lost: dict[int, str] = {}  # why, by worker
        self.updates = 0
        self.steps = 0  # pushes of the slowest worker
        self._pushed: dict[int, torch.Tensor] = {}  # lock-step: what waits for the others
        self._changed = threading.Condition()

    def push(self, worker: int, gradient: torch.Tensor, version: int) -> tuple[int, int]:
        """Take a worker's gradient, computed at the weights of `version` updates; once the worker may go on, write the
        new weights over it. Returns how many updates these have had, and the push's staleness: how many updates were
        made between the worker's last answer and this push. Raises GivenUp.
        """
        with self._changed:
            self._refuse_lost(worker)
            staleness = self.updates - version
            self.clock[worker] += 1
            self._pushed[worker] = gradient
            self._settle()
            self._changed.wait_for(lambda: worker in self.lost or self._may_go_on(worker))
            self._refuse_lost(worker)
            gradient.copy_(self.weights)
            return self.updates, staleness

    def _may_go_on(self, worker: int) -> bool:
        ahead = self.clock[worker] - min(self.clock.values())
        return worker not in self._pushed and ahead <= self.bound

    def _settle(self) -> None:
        """Apply what can be applied, and let everybody look again."""
        if self.bound > 0:
            for worker, gradient in self._pushed.items():
                self._apply(gradient, self.spec.samples_of(worker) / self.spec.batch)
            self._pushed.clear()
        elif self._pushed and self._pushed.keys() >= self.clock.keys():
            first, *others = [self._pushed[worker] for worker in sorted(self._pushed)]
            for gradient in others:
                first += gradient
            samples = sum(self.spec.samples_of(worker) for worker in self._pushed)
            if samples < self.spec.batch:
                first *= self.spec.batch / samples
            self._apply(first, 1.0)
            self._pushed.clear()
        self.steps = min(self.clock.values(), default=self.steps)
        self._changed.notify_all()

    def _apply(self, gradient: torch.Tensor, weight: float) -> None:
        self.weights.grad = gradient
        self.optimizer.param_groups[0]["weight_decay"] = self.spec.weight_decay * weight
        self.optimizer.step()
        self.weights.grad = None
        self.updates += 1

    def done(self, worker: int) -> None:
        """This worker has pushed all it will."""
        with self._changed:
            self._refuse_lost(worker)
            self.clock.pop(worker)
            self._settle()

    def drop(self, worker: int, reason: str) -> bool:
        """Go on without a worker.

        Returns whether it was still counted on; what it had pushed stays.
        """
        with self._changed:
            if worker in self.lost:
                return False
            self.lost[worker] = reason
            self.clock.pop(worker, None)
            self._settle()
            return True

    def newer(self, version: int) -> bool:
        """Wait until there have been more updates than `version`. False: nobody trains any more."""
        with self._changed:
            self._changed.wait_for(lambda: self.updates > version or not self.clock)
            return bool(self.clock)

    def pull(self, into: torch.Tensor) -> tuple[int, int]:
        """Copy the weights.

        Returns how many updates they have had, and the steps of the slowest worker.
        """
        with self._changed:
            into.copy_(self.weights)
            return self.updates, self.steps

    def momentum(self) -> torch.Tensor:
        """SGD's momentum, flat as the weights; zeros before the first update."""
        buffer = self.optimizer.state[self.weights].get("momentum_buffer")
        return torch.zeros_like(self.weights) if buffer is None else buffer

    def load(self, weights: torch.Tensor, momentum: torch.Tensor) -> None:
        """Put the part where weights and momentum were taken."""
        with self._changed:
            self.weights.copy_(weights)
            if self.spec.momentum:
                self.optimizer.state[self.weights]["momentum_buffer"] = momentum.clone()

    def _refuse_lost(self, worker: int) -> None:
        if worker in self.lost:
            raise GivenUp(f"the servers went on without this worker: {self.lost[worker]}")
