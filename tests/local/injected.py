"""Test-only entries of the registry. As a program, the trainer with them: `python tests/local/injected.py`.

INJECTED_SIGNAL="8 9": the rank sends itself signal 9 as it begins step 8. Steps take a millisecond: from outside it
could come after the last one.
"""

import os

import torch
from torch import nn

from trainer.registry import MODELS, SYNCS, Model, Strategy
from trainer.sync.base import Sync


def tiny(classes: int, shape=(3, 32, 32)) -> nn.Module:
    """Without batch norm, whose statistics of a shard differ from those of the joined batch."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=4),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(6 * 8 * 8, 16),
        nn.Tanh(),
        nn.Linear(16, classes),
    )


def tiny_bn(classes: int, shape=(3, 32, 32)) -> nn.Module:
    """With batch norm, of images and of vectors."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=4),
        nn.BatchNorm2d(6),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(6 * 8 * 8, 16),
        nn.BatchNorm1d(16),
        nn.Tanh(),
        nn.Linear(16, classes),
    )


def noisy(classes: int, shape=(3, 32, 32)) -> nn.Module:
    """With what a run must remember besides weights: statistics of batch norm, and dropout's random state."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=4), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Dropout(), nn.Linear(384, classes)
    )


class Odd(Sync):
    """Rank 1 all-reduces a tensor of another size than the others."""

    def synchronise(self) -> None:
        self.wire.all_reduce(torch.zeros(1000 if self.wire.rank == 1 else 2000))


PARAMETERS = 168 + 16 * 385 + 170  # not a multiple of 3 times 4 ranks: bytes of a bucket are no whole parts
MODELS["tiny"] = Model("injected:tiny", "a small network without batch norm", {(3, 32, 32): PARAMETERS})
MODELS["tiny_bn"] = Model("injected:tiny_bn", "the same with batch norm", {(3, 32, 32): PARAMETERS + 2 * (6 + 16)})
MODELS["noisy"] = Model("injected:noisy", "a small network with batch norm and dropout", {(3, 32, 32): 168 + 12 + 3850})
REAL_STRATEGIES = dict(SYNCS)
ODD = Strategy("injected:Odd", "collectives that do not fit together")  # other tests ask for every strategy there is
PROGRAM = (__file__,)


def send_itself_a_signal(at: int, number: int) -> None:
    from trainer.run.loop import Run

    step = Run.step

    def signalled(self, this: int) -> None:
        if this == at:
            os.kill(os.getpid(), number)
        step(self, this)

    Run.step = signalled


if __name__ == "__main__":
    from trainer.__main__ import main

    if wanted := os.environ.get("INJECTED_SIGNAL"):
        send_itself_a_signal(*map(int, wanted.split()))
    SYNCS["odd"] = ODD
    main()
