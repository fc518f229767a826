"""Strategies that synchronise less, against independent simulations of their replicas in one process.

What holds for every strategy that is not `exact` is tested on all of the registry's: a new one needs no new test.
"""

import numpy as np
import pytest
import torch
from cases import trace
from injected import PARAMETERS, REAL_STRATEGIES, tiny
from ranks import write_prepared
from torch.nn.functional import cross_entropy

from trainer.data.batches import Batches, OwnPart
from trainer.data.prepared import load
from trainer.events import Evaluated, Ready, Step, Trained
from trainer.registry import SYNCS
from trainer.spec import RunSpec

BATCH, STEPS, LR, DECAY, SEED = 24, 7, 0.05, 1e-4, 7


def case(sync: str, workers: int, **settings) -> RunSpec:
    where = {"nproc": workers, "nodes": 1} if SYNCS[sync].shared_memory else {"nodes": workers}
    common = {"model": "tiny", "batch": BATCH, "steps": STEPS, "seed": SEED, "lr": LR, "weight_decay": DECAY}
    common["every_steps"] = 2
    return RunSpec(sync=sync, **(common | where | settings))


WORLDS = (1, 2, 3, 4)
LOSSLESS = {"topk": {"ratio": 1.0}, "powersgd": {"compress_rank": 400}, "bf16": {}}  # but for bf16's rounding
LOSSY = {"topk": {"ratio": 0.03}, "powersgd": {"compress_rank": 2}}
CASES = {
    "single": case("single", 1),
    **{f"local_sgd H=1 n={n}": case("local_sgd", n, local_steps=1, momentum=0.0) for n in WORLDS},
    **{f"ddp n={n}": case("ddp", n, momentum=0.0) for n in (2, 3)},
    **{f"local_sgd H=3 n={n}": case("local_sgd", n, local_steps=3) for n in WORLDS},
    "local_sgd H=3 plain": case("local_sgd", 3, local_steps=3, momentum=0.0),
    "local_sgd H=7": case("local_sgd", 2, local_steps=7),
    "local_sgd H=8": case("local_sgd", 2, local_steps=8),
    "local_sgd epochs": case("local_sgd", 2, local_steps=3, steps=None, epochs=2),
    **{f"diloco n={n}": case("diloco", n, local_steps=3) for n in WORLDS},
    "diloco plain": case("diloco", 3, local_steps=3, outer_lr=1.0, outer_momentum=0.0, momentum=0.0),
    **{f"diloco all {c}": case("diloco", 3, local_steps=3, compress=c, **how) for c, how in LOSSLESS.items()},
    **{f"diloco some {c}": case("diloco", 3, local_steps=3, compress=c, **how) for c, how in LOSSY.items()},
    **{f"gossip {t} n={n}": case("gossip", n, topology=t) for t in ("ring", "random") for n in WORLDS},
    **{f"psgd n={n}": case("psgd", n) for n in WORLDS},
    **{f"hogwild n={n}": case("hogwild", n) for n in (1, 2)},
    "hogwild longer": case("hogwild", 3, steps=30, every_steps=0),
    **{f"hogwild in turn n={n}": case("hogwild", n) for n in (2, 3)},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    # 2 steps an epoch, with 2 samples over.
    return write_prepared(tmp_path_factory.mktemp("data"), train=50, test=13, augment=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("group")


@pytest.fixture(scope="module")
def outcomes(data, folder, groups):
    """What each rank of each case computed. A case's checkpoints are in the folder of its number."""
    outcomes = {}
    for i, (name, spec) in enumerate(CASES.items()):
        ranks = groups[spec.workers].run(trace, spec, data, folder / str(i), "in turn" in name)
        for rank in ranks:
            rank.weights = [torch.from_numpy(w) for w in rank.weights]
            rank.final = torch.from_numpy(rank.final)
        outcomes[name] = ranks
    return outcomes


class Replica:
    """One of n: plain torch, with nothing of ours but the batches."""

    def __init__(self, data, rank: int, world: int, momentum: float = 0.9, batches=Batches):
        torch.manual_seed(SEED)
        self.model = tiny(10)
        self.optimizer = torch.optim.SGD(self.model.parameters(), LR, momentum, weight_decay=DECAY)
        self.batches = batches(load(data), BATCH, SEED, rank, world)

    def step(self, step: int) -> None:
        images, labels = self.batches(step)
        self.optimizer.zero_grad()
        cross_entropy(self.model(images), labels).backward()
        self.optimizer.step()

    @property
    def weights(self) -> torch.Tensor:
        return torch.nn.utils.parameters_to_vector(self.model.parameters()).detach().clone()

    @weights.setter
    def weights(self, values):
        torch.nn.utils.vector_to_parameters(values.clone(), self.model.parameters())

    @property
    def momentum(self) -> list[torch.Tensor]:
        return [self.optimizer.state[p]["momentum_buffer"] for p in self.model.parameters()]


def replicas(data, n: int, **settings) -> list[Replica]:
    return [Replica(data, rank, n, **settings) for rank in range(n)]


def mean(tensors) -> torch.Tensor:
    return torch.stack(list(tensors)).mean(0)


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_bytes_are_the_formula_synchronisations_exact_and_one_model_is_left(name, outcomes):
    spec, ranks = CASES[name], outcomes[name]
    check_bytes_and_one_model(ranks)
    steps = ranks[0].of(Ready)[0].steps
    times = {"local_sgd": steps // spec.local_steps, "diloco": steps // spec.local_steps, "psgd": 1}
    times |= {"hogwild": 0, "single": 0}
    assert {o.of(Trained)[0].synchronisations for o in ranks} == {times.get(spec.sync, steps)}


def check_bytes_and_one_model(ranks) -> None:
    """What the wire counted is what the formula says, rank by rank, and in the end all have the same weights."""
    steps = ranks[0].of(Ready)[0].steps
    assert [e.step for e in ranks[0].of(Step)] == list(range(1, steps + 1))
    for outcome in ranks:
        (trained,) = outcome.of(Trained)
        sent, received = outcome.step_bytes
        assert sum(s.sent_bytes for s in outcome.of(Step)) + trained.sent_bytes == int(sent * steps + 1e-6)
        assert sum(s.received_bytes for s in outcome.of(Step)) + trained.received_bytes == int(received * steps + 1e-6)
        assert np.array_equal(outcome.final, ranks[0].final)
    (score,) = ranks[0].of(Evaluated)
    assert score.samples == 13


# The exact ones' bytes are in test_algebra.py, those of strategies with servers in test_parameter_servers.py.
INEXACT = [name for name, s in REAL_STRATEGIES.items() if s.distributed and not s.exact and not s.servers]


@pytest.mark.parametrize("n", WORLDS)
@pytest.mark.parametrize("sync", INEXACT)
def test_whatever_the_strategy_bytes_are_the_formula_and_one_model_is_left(sync, n, data, groups, tmp_path):
    several = {"local_steps": 3} if "local_steps" in REAL_STRATEGIES[sync].settings else {}
    check_bytes_and_one_model(groups[n].run(trace, case(sync, n, **several), data, tmp_path))


def test_bytes_of_local_steps_by_hand(outcomes):
    """7 steps of H=3 on 3 ranks: two averages of weights and momentum, and the weights once more at the end."""
    once = 2 * 2 * 4 * PARAMETERS // 3
    for rank in outcomes["local_sgd H=3 n=3"]:
        assert [s.sent_bytes for s in rank.of(Step)] == [0, 0, 2 * once, 0, 0, 2 * once, 0]
        assert rank.of(Trained)[0].sent_bytes == once
    for rank in outcomes["diloco n=3"]:
        assert [s.received_bytes for s in rank.of(Step)] == [0, 0, once, 0, 0, once, 0]
    for rank in outcomes["psgd n=3"]:
        assert [s.sent_bytes for s in rank.of(Step)] == [0] * 7
        assert rank.of(Trained)[0].sent_bytes == once
    assert [s.sent_bytes for s in outcomes["local_sgd H=7"][0].of(Step)][-1] == 2 * 4 * PARAMETERS
    assert outcomes["local_sgd H=7"][0].of(Trained)[0].sent_bytes == 0  # nothing is apart after the last step


@pytest.mark.parametrize("n", WORLDS)
def test_local_sgd_with_h_1_is_sgd_on_the_joined_batch(n, outcomes, data):
    whole = Replica(data, 0, 1, momentum=0)
    for step in range(1, STEPS + 1):
        whole.step(step)
        for rank in outcomes[f"local_sgd H=1 n={n}"]:
            close(rank.weights[step - 1], whole.weights)
    if ddp := outcomes.get(f"ddp n={n}"):
        close(outcomes[f"local_sgd H=1 n={n}"][0].final, ddp[0].final)


@pytest.mark.parametrize("n", WORLDS)
def test_local_sgd_equals_its_simulation(n, outcomes, data):
    alone = replicas(data, n)
    for step in range(1, STEPS + 1):
        for replica in alone:
            replica.step(step)
        if step % 3 == 0:
            together = mean(r.weights for r in alone)
            momenta = [mean(parts) for parts in zip(*(r.momentum for r in alone), strict=True)]
            for replica in alone:
                replica.weights = together
                for buffer, value in zip(replica.momentum, momenta, strict=True):
                    buffer.copy_(value)
        for replica, rank in zip(alone, outcomes[f"local_sgd H=3 n={n}"], strict=True):
            close(rank.weights[step - 1], replica.weights)
    for replica, rank in zip(alone, outcomes[f"local_sgd H=3 n={n}"], strict=True):
        close(torch.from_numpy(rank.momentum), torch.cat([m.flatten() for m in replica.momentum]))
        close(rank.final, mean(r.weights for r in alone))


@pytest.mark.parametrize("n", WORLDS)
def test_diloco_equals_its_simulation(n, outcomes, data):
    alone = replicas(data, n)
    theta = alone[0].weights.requires_grad_()
    outer = torch.optim.SGD([theta], lr=0.7, momentum=0.9, nesterov=True)
    for step in range(1, STEPS + 1):
        for replica in alone:
            replica.step(step)
        if step % 3 == 0:
            theta.grad = mean(theta.detach() - r.weights for r in alone)
            outer.step()
            for replica in alone:
                replica.weights = theta.detach()
        for replica, rank in zip(alone, outcomes[f"diloco n={n}"], strict=True):
            close(rank.weights[step - 1], replica.weights)
    close(outcomes[f"diloco n={n}"][0].final, mean(r.weights for r in alone))


def test_diloco_with_outer_lr_1_and_no_momentum_is_local_sgd(outcomes):
    for ours, local in zip(outcomes["diloco plain"], outcomes["local_sgd H=3 plain"], strict=True):
        for a, b in zip(ours.weights, local.weights, strict=True):
            close(a, b)
        close(ours.final, local.final)


@pytest.mark.parametrize("compress", LOSSLESS)
def test_diloco_that_sends_all_entries_or_the_full_rank_is_diloco(compress, outcomes):
    """What is lost, and fed back, is followed entry by entry in tests/unit/sync/test_diloco.py."""
    tolerance = {"rtol": 0.02, "atol": 2e-3} if compress == "bf16" else {"rtol": 1e-4, "atol": 1e-5}
    for ours, plain in zip(outcomes[f"diloco all {compress}"], outcomes["diloco n=3"], strict=True):
        for a, b in zip(ours.weights, plain.weights, strict=True):
            torch.testing.assert_close(a, b, **tolerance)


@pytest.mark.parametrize("compress", LOSSY)
def test_diloco_that_loses_something_keeps_the_replicas_equal_and_sends_less(compress, outcomes):
    ranks, plain = outcomes[f"diloco some {compress}"], outcomes["diloco n=3"]
    for step in (3, 6):
        assert all(torch.equal(rank.weights[step - 1], ranks[0].weights[step - 1]) for rank in ranks)
        assert not torch.allclose(ranks[0].weights[step - 1], plain[0].weights[step - 1], rtol=1e-4, atol=1e-5)
    assert 0 < ranks[0].of(Step)[2].sent_bytes < plain[0].of(Step)[2].sent_bytes / 2


RING = {
    1: [[1]],
    2: [[1 / 2, 1 / 2], [1 / 2, 1 / 2]],
    3: [[1 / 3] * 3] * 3,
    4: [[1 / 3, 1 / 3, 0, 1 / 3], [1 / 3, 1 / 3, 1 / 3, 0], [0, 1 / 3, 1 / 3, 1 / 3], [1 / 3, 0, 1 / 3, 1 / 3]],
}


@pytest.mark.parametrize("n", WORLDS)
@pytest.mark.parametrize("topology", ["ring", "random"])
def test_gossip_equals_its_mixing_matrix_and_keeps_the_mean(topology, n, outcomes, data):
    alone, matched = replicas(data, n), set()
    for step in range(1, STEPS + 1):
        for replica in alone:
            replica.step(step)
        before = torch.stack([r.weights for r in alone])
        after = torch.stack([o.weights[step - 1] for o in outcomes[f"gossip {topology} n={n}"]])
        close(after.mean(0), before.mean(0))
        if topology == "ring":
            mixed = torch.tensor(RING[n], dtype=before.dtype) @ before
        else:  # who was whose partner is read off the result: those whose weights are now the same
            pairs = [(a, b) for a in range(n) for b in range(a) if torch.equal(after[a], after[b])]
            assert len(pairs) == n // 2
            mixed = before.clone()
            for a, b in pairs:
                mixed[a] = mixed[b] = (before[a] + before[b]) / 2
            matched |= set(pairs)
        close(after, mixed)
        for replica, weights in zip(alone, mixed, strict=True):
            replica.weights = weights
    close(outcomes[f"gossip {topology} n={n}"][0].final, mean(r.weights for r in alone))
    assert topology == "ring" or n < 3 or len(matched) > n // 2  # the pairs changed


@pytest.mark.parametrize("n", WORLDS)
def test_psgd_is_the_average_of_independent_runs_on_parts_of_the_data(n, outcomes, data):
    alone = replicas(data, n, batches=OwnPart)
    for step in range(1, STEPS + 1):
        for replica in alone:
            replica.step(step)
        for replica, rank in zip(alone, outcomes[f"psgd n={n}"], strict=True):
            close(rank.weights[step - 1], replica.weights)
    close(outcomes[f"psgd n={n}"][0].final, mean(r.weights for r in alone))
    seen = np.stack([r.batches.seen for r in alone])
    assert seen.sum(0).max() == 1  # nobody saw a sample of another's part
    assert outcomes[f"psgd n={n}"][0].of(Trained)[0].distinct_samples == seen.sum()


@pytest.mark.parametrize("name", ["local_sgd H=3 n=1", "psgd n=1", "gossip ring n=1", "hogwild n=1"])
def test_one_worker_is_single_to_the_last_bit(name, outcomes):
    for ours, single in zip(outcomes[name][0].weights, outcomes["single"][0].weights, strict=True):
        assert torch.equal(ours, single)
    assert torch.equal(outcomes[name][0].final, outcomes["single"][0].final)


@pytest.mark.parametrize("name", ["local_sgd H=3 n=3", "diloco n=3", "gossip ring n=4", "psgd n=3"])
def test_checkpoints_serve_the_mean_of_the_replicas(name, outcomes, folder):
    checkpoints = folder / str(list(CASES).index(name)) / "checkpoints"
    for step in (2, 4, 6):
        served = torch.load(checkpoints / f"step-{step:06d}/model.pt", weights_only=True)["model"]
        close(torch.cat([t.flatten() for t in served.values()]), mean(o.weights[step - 1] for o in outcomes[name]))
    served = torch.load(checkpoints / "step-000007/model.pt", weights_only=True)["model"]
    assert torch.equal(torch.cat([t.flatten() for t in served.values()]), outcomes[name][0].final)


@pytest.mark.parametrize("n", [2, 3])
def test_hogwild_in_turn_is_one_model_updated_by_each(n, outcomes, data):
    """Without overlap the shared weights take each worker's step after the other's; each has its own momentum."""
    alone = replicas(data, n)
    weights = alone[0].weights
    for step in range(1, STEPS + 1):
        for replica in alone:
            replica.weights = weights
            replica.step(step)
            weights = replica.weights
        for rank in outcomes[f"hogwild in turn n={n}"]:
            close(rank.weights[step - 1], weights)


def test_hogwild_without_locks_trains_one_model(outcomes):
    ranks = outcomes["hogwild longer"]
    assert [len(rank.of(Step)) for rank in ranks] == [30, 30, 30]
    last = max(ranks, key=lambda rank: rank.of(Step)[-1].time)
    assert torch.equal(last.weights[-1], last.final)  # no average was taken: the last to write saw the final weights
    # In the order of time: where the others have a core of their own, one may begin when they are far ahead.
    losses = [s.loss for s in sorted((s for rank in ranks for s in rank.of(Step)), key=lambda s: s.time)]
    assert np.mean(losses[-15:]) < 0.8 * np.mean(losses[:15])


def test_hogwild_leaves_no_file(outcomes):
    for rank in outcomes["hogwild n=2"]:
        assert rank.files  # still mapped by this process,
        assert all("memfd:syncbed-weights (deleted)" in name for name in rank.files)  # by no name,
        assert not any(name.startswith("open:") for name in rank.files)  # and not open
