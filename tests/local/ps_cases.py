"""A rank of a Group in a test of parameter servers."""

import time
from itertools import count
from pathlib import Path

from cases import Trained, train

from trainer.spec import RunSpec
from trainer.sync.ps_async import PsAsync


def slow_worker(wire, spec: RunSpec, data: Path) -> Trained:
    """As cases.train, but worker 1 pushes only when all others are as far ahead as the bound lets them be."""
    original, numbers = PsAsync.synchronise, count(1)

    def held_back(self):
        step = next(numbers)
        if wire.rank == 1:
            furthest = min(step + spec.staleness, spec.steps)
            others = [f"reached/{rank}/{furthest}" for rank in range(spec.workers) if rank != 1]
            while not wire.party.published(*others):
                time.sleep(0.001)
        else:
            wire.party.publish(f"reached/{wire.rank}/{step}", "")
        original(self)

    PsAsync.synchronise = held_back
    try:
        return train(wire, spec, data)
    finally:
        PsAsync.synchronise = original
