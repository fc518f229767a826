"""Hogwild: one set of weights in shared memory, and no locks."""

import os

import torch

from trainer.sync.base import Sync

_ALIGNED = 16  # floats: each tensor starts on a cache line of its own, as torch's allocator would have it


class Hogwild(Sync):
    """The weights of all ranks are one piece of memory.

    Each rank computes gradients on its batch of BATCH/n and updates the weights in place, whatever
    the others are writing at that moment: no locks, no waiting, no copies. An update is seen by the
    others at once; one that two ranks write at the same place and time may be lost.

    Source: Niu, Recht, Ré and Wright, Hogwild!, NIPS 2011 (arXiv:1106.5730). As there, the ranks
    are processes of one machine: NODES=1, and NPROC says how many. T steps of n ranks are n*T
    updates, each from BATCH/n samples.

    Bytes per step per rank: 0 on the wire. Nothing is synchronised; the ranks meet for checkpoints
    and for the evaluation, when nobody writes.

    Momentum is each rank's own. Batch-norm statistics stay each rank's own while training.

    The memory is an anonymous file (memfd) that rank 0 makes and the others map, which is what
    torch.multiprocessing does with the tensors it passes to the processes it spawned. Here they are
    started as ranks of any strategy are. The file has no name, so nothing is left of it however the
    ranks end, and the size of /dev/shm does not matter.
    """

    def setup(self, model):
        parameters = list(model.parameters())
        places, length = [], 0
        for parameter in parameters:
            places.append(length)
            length += -(-parameter.numel() // _ALIGNED) * _ALIGNED
        shared = self._map(length)
        for parameter, place in zip(parameters, places, strict=True):
            view = shared.as_strided(parameter.shape, parameter.stride(), place)
            if self.wire.rank == 0:
                view.copy_(parameter.detach())
            parameter.data = view
        self.wire.party.meet("shared weights")
        if self.wire.rank == 0:
            os.close(self._file)  # the mappings stay
        return super().setup(model)

    def _map(self, length: int) -> torch.Tensor:
        """`length` float32 numbers of memory that is the same on every rank."""
        if self.wire.rank == 0:
            self._file = os.memfd_create("syncbed-weights")
            os.ftruncate(self._file, 4 * length)
            path = f"/proc/{os.getpid()}/fd/{self._file}"
            self.wire.party.publish("shared weights", path)
        else:
            path = self.wire.party.read("shared weights")
        return torch.from_file(path, shared=True, size=length, dtype=torch.float32)

    def step_bytes(self, gradient_bytes: int) -> tuple[float, float]:
        return 0, 0
