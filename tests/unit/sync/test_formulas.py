"""The bytes that the registry says a strategy sends are those of its `step_bytes`, which the wire's count equals."""

import re
from types import SimpleNamespace

import pytest
import torch

from trainer.registry import SYNCS, load
from trainer.spec import RunSpec
from trainer.sync.base import Sync

RANKS, STEPS, MODEL = 4, 6, torch.nn.Linear(1000, 8)
S = sum(p.nbytes for p in MODEL.parameters())
SETTINGS = {  # those that its formula names
    "local_sgd": [{"local_steps": 3}, {"local_steps": 3, "momentum": 0.0}],
    "diloco": [{"local_steps": 3}],
    "gossip": [{"topology": "ring"}, {"topology": "random"}],
}
WITH_LINKS = ("ddp", "gossip", "hogwild")  # their `setup` wants the other ranks there, and decides no bytes
STRATEGIES = {
    name: s for name, s in SYNCS.items() if s.place.startswith("trainer.") and not s.servers and s.distributed
}
CASES = [(name, settings) for name in STRATEGIES for settings in SETTINGS.get(name, [{}])]


def value(formula: str, **letters: float) -> float:
    """2(n-1)/n · S with numbers for its letters."""
    text = re.sub(r"(\d|\))(?=[A-Za-z(])", r"\1*", formula.replace("·", "*"))
    return eval(text, {"__builtins__": {}}, letters)


def sent(formula: str, spec: RunSpec, rank: int, gradient_bytes: int) -> float:
    """Bytes of all steps by the registry's text: the case of this rank and these settings, and what comes once."""
    letters = {"n": spec.nodes, "S": gradient_bytes, "H": spec.local_steps}
    holds = {f"TOPOLOGY={spec.topology}", f"MOMENTUM={spec.momentum:g}", "others" if rank else "rank 0"}
    cases = [case.rpartition(": ") for case in formula.split("; ")]
    special = [text for label, _, text in cases if label in holds]
    plain = [text for label, _, text in cases if not label]
    once = [text for label, _, text in cases if label == "once at the end"]
    return STEPS * value((special or plain)[0], **letters) + sum(value(text, **letters) for text in once)


def bytes_of(sync: str, spec: RunSpec, rank: int) -> float:
    """Bytes of all steps by the strategy itself, on a wire that carries nothing."""
    wire = SimpleNamespace(rank=rank, world_size=spec.nodes)
    strategy = load(SYNCS[sync].place)(wire, spec)
    (Sync if sync in WITH_LINKS else type(strategy)).setup(strategy, MODEL)
    Sync.begin(strategy, None, STEPS)
    strategy.full_wire, strategy.links = wire, dict.fromkeys(range(spec.nodes))  # gossip's
    return strategy.step_bytes(S)[0] * STEPS


@pytest.mark.parametrize(("sync", "settings"), CASES)
def test_the_registrys_formula_is_step_bytes(sync, settings):
    shape = {"nodes": 1, "nproc": RANKS} if SYNCS[sync].one_node else {"nodes": RANKS}
    spec = RunSpec(sync=sync, batch=RANKS, steps=STEPS, **shape, **settings)
    average = 2 * (RANKS - 1) / RANKS * S if sync == "gossip" else 0  # of the replicas, after the last step
    for rank in range(RANKS):
        assert bytes_of(sync, spec, rank) == pytest.approx(sent(SYNCS[sync].sends, spec, rank, S) + average)


def test_a_formula_is_computed():
    assert value("2(n-1)/n · 2S/H", n=4, S=100, H=8) == 37.5
    spec = RunSpec(sync="gather_scatter", nodes=4, steps=STEPS)
    assert [sent("rank 0: (n-1) · S; others: S", spec, rank, 10) for rank in (0, 1)] == [30 * STEPS, 10 * STEPS]
    assert sent("0; once at the end: S", spec, 0, 10) == 10
