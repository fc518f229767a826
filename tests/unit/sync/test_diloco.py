"""DiLoCo's outer step with COMPRESS, against numpy: ranks are threads of one process, their changes are drawn."""

import math
from threading import Barrier, Thread
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from trainer.spec import RunSpec
from trainer.sync.diloco import Diloco
from trainer.wire.alone import AloneWire

SHAPES = {"matrix": (5, 8), "filters": (4, 3, 2, 2), "bias": (7,)}
H, OUTER_STEPS, RATIO, RANK, LR, MOMENTUM = 2, 4, 0.15, 2, 0.7, 0.9
SETTINGS = {"bf16": {}, "topk": {"ratio": RATIO}, "powersgd": {"compress_rank": RANK}}


class ThreadWire(AloneWire):
    """One rank of n threads: all collectives of the wire that DiLoCo uses, counted as the wire counts them."""

    def __init__(self, rank: int, places: list, barrier: Barrier):
        super().__init__()
        self.rank, self.world_size = rank, len(places)
        self.places, self.barrier = places, barrier

    def all_reduce(self, tensor):
        self.count_ring(tensor)
        return tensor.copy_(torch.stack(self._everyones(tensor)).sum(0))

    def all_gather(self, tensor):
        others = (self.world_size - 1) * tensor.nbytes
        self.count("all_gather", others, others)
        return self._everyones(tensor)

    def _everyones(self, tensor):
        self.places[self.rank] = tensor.clone()
        self.barrier.wait(100)
        everyone = [t.clone() for t in self.places]
        self.barrier.wait(100)
        return everyone


class Weights(nn.Module):
    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        for name, shape in SHAPES.items():
            tensor = torch.randn(shape, generator=generator)
            filters = tensor.to(memory_format=torch.channels_last) if len(shape) == 4 else tensor
            self.register_parameter(name, nn.Parameter(filters))


def spec_of(n: int, compress: str) -> RunSpec:
    outer = {"local_steps": H, "outer_lr": LR, "outer_momentum": MOMENTUM}
    return RunSpec(
        sync="diloco", nodes=n, batch=n, steps=H * OUTER_STEPS, compress=compress, **outer, **SETTINGS[compress]
    )


def built(n: int, compress: str) -> list[Diloco]:
    places, barrier = [None] * n, Barrier(n)
    ranks = [Diloco(ThreadWire(rank, places, barrier), spec_of(n, compress)) for rank in range(n)]
    for rank in ranks:
        rank.setup(Weights())
        rank.begin(SimpleNamespace(state={}), H * OUTER_STEPS)
    return ranks


def moves(rank: int, step: int) -> dict[str, torch.Tensor]:
    """How far this rank's local step takes its weights."""
    generator = torch.Generator().manual_seed(100 * rank + step)
    return {name: 0.1 * torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def take(ranks: list[Diloco], steps) -> None:
    """Local steps and what follows each of them."""

    def one(rank):
        for step in steps:
            with torch.no_grad():
                for name, move in moves(rank.wire.rank, step).items():
                    rank.model.get_parameter(name).add_(move)
            rank.mix(step)

    threads = [Thread(target=one, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def weights_of(rank: Diloco) -> dict[str, np.ndarray]:
    return {name: p.detach().numpy().copy() for name, p in rank.model.named_parameters()}


# -- the same in numpy, from the papers --------------------------------------------------------------------------


def sent_bf16(due: list[dict], memory) -> list[dict]:
    return [{k: torch.from_numpy(v).bfloat16().float().numpy() for k, v in own.items()} for own in due]


def sent_topk(due: list[dict], memory) -> list[dict]:
    """The largest entries of all parameters together; the others are zero."""
    sent = []
    for own in due:
        entries = np.concatenate([v.ravel() for v in own.values()])
        entries[np.argsort(-np.abs(entries))[math.ceil(RATIO * len(entries)) :]] = 0
        parts = np.split(entries, np.cumsum([v.size for v in own.values()])[:-1])
        sent.append({k: part.reshape(v.shape) for (k, v), part in zip(own.items(), parts, strict=True)})
    return sent


def sent_powersgd(due: list[dict], memory) -> list[dict]:
    """Each matrix projected on the columns of the mean's P: P = M Q, Q of the outer step before. Vectors whole."""
    sent = [dict(own) for own in due]
    for name, shape in SHAPES.items():
        if len(shape) == 1:
            continue
        matrices = [own[name].reshape(shape[0], -1).astype(np.float64) for own in due]
        p, _ = np.linalg.qr(sum(matrices) @ memory[name])
        for own, matrix in zip(sent, matrices, strict=True):
            own[name] = (p @ (p.T @ matrix)).reshape(shape)
        memory[name], _ = np.linalg.qr(sum(matrices).T @ p)
    return sent


SENT = {"bf16": sent_bf16, "topk": sent_topk, "powersgd": sent_powersgd}


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("compress", SETTINGS)
def test_outer_steps_are_those_of_numpy_with_what_was_not_sent_added_to_the_next(compress, n):
    ranks = built(n, compress)
    outer = {name: value.astype(np.float64) for name, value in weights_of(ranks[0]).items()}
    velocity = {name: np.zeros_like(value) for name, value in outer.items()}
    kept = [{name: 0.0 for name in SHAPES} for _ in range(n)]
    memory = {}
    if compress == "powersgd":  # the first Q is drawn from SEED: taken from a rank of its own that sends the first step
        (probe,) = built(1, compress)
        probe.compressor._corrected(dict(probe.model.named_parameters()))
        memory = {name: q.double().numpy() for name, q in probe.compressor.start.items()}
    for outer_step in range(OUTER_STEPS):
        steps = range(H * outer_step + 1, H * outer_step + H + 1)
        take(ranks, steps)
        changes = [{name: -sum(moves(r, s)[name].numpy() for s in steps) for name in SHAPES} for r in range(n)]
        due = [{k: own[k] + left[k] for k in SHAPES} for own, left in zip(changes, kept, strict=True)]
        sent = SENT[compress](due, memory)
        if compress != "bf16":  # which feeds nothing back
            kept = [{k: d[k] - s[k] for k in SHAPES} for d, s in zip(due, sent, strict=True)]
        for name in SHAPES:
            change = sum(own[name] for own in sent) / n
            velocity[name] = MOMENTUM * velocity[name] + change
            outer[name] = outer[name] - LR * (change + MOMENTUM * velocity[name])
            tolerance = {"rtol": 0, "atol": 5e-3} if compress == "bf16" else {"rtol": 1e-4, "atol": 1e-5}
            for rank in ranks:
                np.testing.assert_allclose(weights_of(rank)[name], outer[name], err_msg=name, **tolerance)
                np.testing.assert_array_equal(weights_of(rank)[name], weights_of(ranks[0])[name])
    for rank in ranks:
        formula = tuple(int(each * H * OUTER_STEPS + 1e-6) for each in rank.step_bytes(4 * (40 + 48 + 7)))
        assert rank.wire.take_bytes() == formula


@pytest.mark.parametrize(
    ("compress", "sent"),
    [  # of one outer step on 3 ranks, by hand: 95 entries, matrices of 5 x 8 and 4 x 12
        ("bf16", 2 * 2 / 3 * 2 * 95),
        ("topk", 2 * 8 * 15),
        ("powersgd", 2 * 2 / 3 * 4 * (2 * (5 + 8) + 2 * (4 + 12) + 7)),
    ],
)
def test_bytes_of_an_outer_step_by_hand(compress, sent):
    (rank, *_) = built(3, compress)
    assert rank.step_bytes(4 * 95) == pytest.approx((sent / H, sent / H))


@pytest.mark.parametrize("compress", SETTINGS)
def test_state_taken_over_goes_on_to_the_last_bit(compress, tmp_path):
    """Also from between two outer steps: each rank's weights are then its own."""
    whole, first, second = (built(2, compress) for _ in range(3))
    take(whole, range(1, 8))
    take(first, range(1, 4))
    for i, (old, new) in enumerate(zip(first, second, strict=True)):
        torch.save(old.state(), tmp_path / f"{i}.pt")
        new.model.load_state_dict(old.model.state_dict())
        new.load_state(torch.load(tmp_path / f"{i}.pt", weights_only=True))
    take(second, range(4, 8))
    for one, other in zip(whole, second, strict=True):
        for name, value in weights_of(one).items():
            np.testing.assert_array_equal(weights_of(other)[name], value)
        assert one.state().keys() == other.state().keys()
        for name, value in one.state().items():
            assert torch.equal(other.state()[name], value), name
