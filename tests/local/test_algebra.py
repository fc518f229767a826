"""What n ranks compute is what one computes on the joined batch; what the wire counts is what the formula says.

Runs over every strategy of the registry that is `exact`, with every setting it takes: a new one needs no new test.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import plain, plain_ddp, train
from injected import PARAMETERS, PROGRAM, REAL_STRATEGIES
from ranks import Ranks, write_prepared
from torch.nn.functional import cross_entropy

from trainer.data.batches import evaluation_batches
from trainer.data.prepared import load
from trainer.events import Evaluated, Ready, Step, Trained, Warning
from trainer.registry import COMPRESSORS
from trainer.spec import RunSpec

BATCH, STEPS = 24, 5
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
BF16_TOLERANCE = {"rtol": 0.02, "atol": 2e-3}  # of weights after 5 steps with gradients of 8 bits


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    # 2 steps an epoch, with 2 samples over; 13 test samples divide over no number of ranks.
    return write_prepared(tmp_path_factory.mktemp("data"), train=50, test=13, augment=True)


@pytest.fixture(scope="module")
def joined(data):
    """SGD on the joined batch, by model."""
    return {model: plain(spec_of("single", 1, model=model), data) for model in ("tiny", "tiny_bn")}


def spec_of(sync: str, nodes: int, **changes) -> RunSpec:
    values = {"model": "tiny", "batch": BATCH, "steps": STEPS, "seed": 7, "lr": 0.05, "every_steps": 2} | changes
    return RunSpec(sync=sync, nodes=nodes, **values)


EXACT = {name: s for name, s in REAL_STRATEGIES.items() if s.distributed and s.exact and not s.servers}
# Settings under which a strategy that takes them still equals plain SGD: full rank, all entries, rounding aside.
LOSSLESS = {"none": {}, "bf16": {}, "topk": {"ratio": 1.0}, "powersgd": {"compress_rank": 400}}
LOSSY = {"bf16": {}, "topk": {"ratio": 0.03}, "powersgd": {"compress_rank": 2}}
SHARES = {2: (2, 1), 3: (1, 4, 3), 4: (3, 1, 1, 1)}
GRANULARITIES = [
    {"granularity": "tensor"},
    {"granularity": "flat"},
    {"granularity": "bucket", "bucket_mb": 0.002},
]


def variants(strategy, n: int, compressions: dict) -> list[dict]:
    """The settings under which to run a strategy: each it takes by itself, compression at every granularity."""
    takes = strategy.settings
    several = GRANULARITIES if "granularity" in takes else [{}]
    found = [{}]
    if "compress" in takes:
        found += [{"compress": name, **values, **some} for name, values in compressions.items() for some in several]
    else:
        found += [some for some in several if some]
    if "shares" in takes and n in SHARES:
        found.append({"shares": SHARES[n]})
    if "sync_bn" in takes:
        found.append({"sync_bn": 1, "model": "tiny_bn"})
        if "shares" in takes and n in SHARES:
            found.append({"sync_bn": 1, "model": "tiny_bn", "shares": SHARES[n]})
    return found


def check_bytes(ranks, steps: int = STEPS) -> None:
    """What the wire counted is what the formula says, rank by rank."""
    for rank, trained in enumerate(ranks):
        formula = tuple(int(b * steps + 1e-6) for b in trained.step_bytes)
        assert trained.bytes == formula, f"rank {rank}"
        assert trained.live.expected == trained.step_bytes, f"rank {rank}, live"
        assert tuple(map(sum, zip((0, 0), *trained.live.bytes.values(), strict=True))) == formula, f"rank {rank}, live"


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("sync", EXACT)
def test_equals_plain_sgd_on_the_joined_batch(sync, n, data, joined, groups):
    for changes in variants(EXACT[sync], n, LOSSLESS):
        spec = spec_of(sync, n, **changes)
        ranks = groups[n].run(train, spec, data)
        try:
            check_equal(ranks, spec, joined[spec.model])
            check_bytes(ranks)
        except AssertionError as error:
            raise AssertionError(f"with {changes}: {error}") from error


def check_equal(ranks, spec, expected) -> None:
    rounded = spec.compress == "bf16"
    for i, loss in enumerate(expected.losses):
        steps = [rank.of(Step)[i] for rank in ranks]
        assert [s.samples for s in steps] == [spec.samples_of(worker) for worker in range(len(ranks))]
        mean = sum(s.loss * s.samples for s in steps) / spec.batch
        assert mean == pytest.approx(loss, abs=2e-3 if rounded else 2e-5)
    for name, array in expected.state.items():
        for rank in ranks:
            np.testing.assert_array_equal(rank.state[name], ranks[0].state[name], err_msg=f"{name} between ranks")
        tolerance = BF16_TOLERANCE if rounded else TOLERANCE
        np.testing.assert_allclose(ranks[0].state[name], array, err_msg=name, **tolerance)


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("sync", [name for name in EXACT if "compress" in EXACT[name].settings])
def test_lossy_compression_sends_what_the_formula_says_and_keeps_replicas_equal(sync, n, data, groups):
    assert LOSSY.keys() == COMPRESSORS.keys() - {"none"}
    for changes in variants(EXACT[sync], n, LOSSY):
        if "compress" in changes:
            ranks = groups[n].run(train, spec_of(sync, n, **changes), data)
            check_bytes(ranks)
            for name, array in ranks[0].state.items():
                for rank in ranks[1:]:
                    np.testing.assert_array_equal(rank.state[name], array, err_msg=f"{name} with {changes}")


@pytest.mark.parametrize(("sync", "n"), [(name, 3) for name in EXACT] + [("ddp", 1)])
def test_checkpoint_and_score_are_those_of_one_replica(sync, n, data, joined, groups, tmp_path):
    expected = joined["tiny"]
    ranks = groups[n].run(train, spec_of(sync, n), data, tmp_path, True)
    saved = torch.load(tmp_path / f"checkpoints/step-{STEPS:06d}/model.pt", weights_only=True)
    for name, array in expected.state.items():
        np.testing.assert_allclose(saved["model"][name].numpy(), array, **TOLERANCE)
    (score,) = ranks[0].of(Evaluated)
    assert (score.samples, score.loss) == (13, pytest.approx(expected.test_loss, abs=2e-5))
    assert score.accuracy == pytest.approx(expected.test_accuracy)
    assert sum(map(sum, score.confusion_matrix)) == 13
    assert {rank.of(Trained)[0].distinct_samples for rank in ranks} == {expected.distinct}
    assert [rank.of(Trained)[0].synchronisations for rank in ranks] == [STEPS] * n
    assert [p.name for p in sorted((tmp_path / "checkpoints").iterdir())] == [f"step-{s:06d}" for s in (2, 4, 5)]
    assert {rank.of(Ready)[0].gradient_bytes for rank in ranks} == {4 * PARAMETERS}


def test_single_is_plain_sgd(data, joined, tmp_path):
    with Ranks(spec_of("single", 1), data, tmp_path, PROGRAM) as ranks:
        ranks.finish()
    assert [s.loss for s in ranks[0].of(Step)] == pytest.approx(joined["tiny"].losses, abs=2e-5)
    assert {(s.sent_bytes, s.received_bytes) for s in ranks[0].of(Step)} == {(0, 0)}
    saved = torch.load(tmp_path / f"checkpoints/step-{STEPS:06d}/model.pt", weights_only=True)
    for name, array in joined["tiny"].state.items():
        np.testing.assert_allclose(saved["model"][name].numpy(), array, **TOLERANCE)


@pytest.mark.parametrize("sync", EXACT)
def test_processes_that_share_nodes_are_workers_like_others(sync, data, joined, groups):
    spec = spec_of(sync, 2, nproc=2)
    ranks = groups[4].run(train, spec, data)
    check_equal(ranks, spec, joined["tiny"])
    check_bytes(ranks)


def test_ddp_equals_torchs_own_to_the_last_bit(data, groups):
    """DistributedDataParallel without our hook, on 3 ranks, where an average is no power of two."""
    spec = spec_of("ddp", 3)
    ours, theirs = groups[3].run(train, spec, data), groups[3].run(plain_ddp, spec, data)
    for name, array in theirs[0].items():
        np.testing.assert_array_equal(ours[0].state[name], array)


def test_vgg_checkpoint_reproduces_the_test_score(data, tmp_path):
    """Batch-norm statistics averaged over the ranks: what was evaluated in shards is what the checkpoint holds."""
    from trainer.models.vgg import vgg11

    with Ranks(RunSpec(nodes=2, batch=24, steps=None, epochs=1, lr=0.01), data, tmp_path) as ranks:
        ranks.finish()
    assert ranks[0].of(Ready)[0].steps == len(ranks[0].of(Step)) == 2
    state = torch.load(tmp_path / "checkpoints/step-000002/model.pt", weights_only=True)
    assert (state["step"], state["epoch"], state["spec"]["epochs"]) == (2, 1, 1)
    model = vgg11()
    model.load_state_dict(state["model"])
    model.eval()
    with torch.no_grad():
        images, labels = next(evaluation_batches(load(data), 0, 1))
        logits = model(images)
    (score,) = ranks[0].of(Evaluated)
    assert score.accuracy == pytest.approx((logits.argmax(1) == labels).double().mean().item())
    assert score.loss == pytest.approx(cross_entropy(logits, labels).item(), rel=1e-4)
    confusion = torch.zeros(10, 10, dtype=torch.int64)
    for true, predicted in zip(labels, logits.argmax(1), strict=True):
        confusion[true, predicted] += 1
    assert score.confusion_matrix == confusion.tolist()


def test_a_loss_that_is_not_finite_is_data_and_warned_of_once(data):
    spec = RunSpec(sync="single", nodes=1, model="tiny", batch=24, steps=4, lr=1e38)
    with Ranks(spec, data, program=PROGRAM) as ranks:
        ranks.finish()
    losses = [s.loss for s in ranks[0].of(Step)]
    assert len(losses) == 4
    assert losses[-1] is None
    (warning,) = ranks[0].of(Warning)
    assert f"not finite at step {losses.index(None) + 1}" in warning.message


def in_a_quiet_network(script: str, *arguments) -> str:
    """What the script prints, run in a network namespace where nothing else speaks."""
    command = ["unshare", "-n", sys.executable, str(Path(__file__).parent / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150)
    if "unshare" in done.stderr:
        pytest.skip(f"no network namespace to be had here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return done.stdout


quiet_network = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"), reason="a quiet network namespace needs root"
)


@quiet_network
def test_bytes_counted_are_the_bytes_on_the_interface(data):
    """Two more steps of VGG-11 on 3 ranks."""
    formula = 3 * 2 * (2 * 2 / 3 * 4 * 9_231_114)  # ranks x steps x bytes a step
    for _ in range(3):  # on a busy machine acknowledgements come late, and TCP sends parts again
        three, one = (int(in_a_quiet_network("loopback_bytes.py", data, steps)) for steps in (3, 1))
        if three - one == pytest.approx(formula, rel=0.05):
            break
    assert three - one == pytest.approx(formula, rel=0.05)


@quiet_network
def test_each_collective_counts_the_bytes_on_the_interface():
    for name, (sent, received, carried) in json.loads(in_a_quiet_network("loopback_wire.py")).items():
        assert sent == pytest.approx(received, abs=3), name  # each rank rounds down
        assert carried == pytest.approx(sent, rel=0.05), name
