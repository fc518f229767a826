"""What the loop tells the live figures, on one replica in this process."""

import numpy as np

from trainer import events
from trainer.data.prepared import Prepared, Split
from trainer.run.loop import Run
from trainer.run.metrics import NoMetrics
from trainer.spec import RunSpec
from trainer.wire.alone import AloneParty, AloneWire


class Listener(NoMetrics):
    def __init__(self):
        self.told = []

    def begin(self, step_bytes, steps_before, synchronisations_before):
        self.told.append(("begin", step_bytes(), steps_before, synchronisations_before))

    def step(self, event):
        self.told.append(event)

    def synchronised(self, traffic, synchronisations):
        self.told.append((traffic, synchronisations))

    def evaluated(self, samples):
        self.told.append(f"{samples} scored")


class CountingParty(AloneParty):
    """Counts something for whoever meets: a stand-in for a strategy's collectives."""

    def meet(self, name):
        self.wire.count("all_reduce", 5, 7)


def counting_wire() -> AloneWire:
    party = CountingParty()
    party.wire = AloneWire(party)
    return party.wire


def test_figures_of_a_run_of_one_replica():
    rng = np.random.default_rng(0)
    split = Split(rng.integers(0, 255, (8, 1, 28, 28), np.uint8), rng.integers(0, 10, 8))
    data = Prepared("mnist", (1, 28, 28), tuple("abcdefghij"), (0.5,), (1.0,), False, split, split)
    said, listener = [], Listener()
    spec = RunSpec(sync="single", nodes=1, model="logistic", data="mnist", batch=4, steps=2)
    run = Run(spec, data, counting_wire(), said.append, metrics=listener)
    run.train()
    run.evaluate()
    steps = [event for event in said if isinstance(event, events.Step)]
    assert listener.told == [
        ("begin", (0, 0), 0, 0),
        steps[0],
        ({("all_reduce", "sent"): 5, ("all_reduce", "received"): 7}, 0),  # of meeting before the first step
        steps[1],
        ({}, 0),
        ({("all_reduce", "sent"): 5, ("all_reduce", "received"): 7}, 0),  # after the last one: counted there too
        "8 scored",
    ]
    (trained,) = [event for event in said if isinstance(event, events.Trained)]
    assert [(e.sent_bytes, e.received_bytes) for e in (*steps, trained)] == [(5, 7), (0, 0), (5, 7)]
