"""What n ranks compute is what one computes on the joined batch; what the wire counts is what the formula says."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from injected import PARAMETERS, PROGRAM, REAL_STRATEGIES, tiny
from ranks import Ranks, write_prepared
from torch.nn.functional import cross_entropy

from trainer.data.batches import Batches, evaluation_batches
from trainer.data.prepared import load
from trainer.events import Evaluated, Ready, Step, Trained, Warning
from trainer.registry import load as load_class
from trainer.spec import RunSpec
from trainer.wire import Wire

BATCH, STEPS = 24, 5


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    # 2 steps an epoch, with 2 samples over; 13 test samples divide over no number of ranks.
    return write_prepared(tmp_path_factory.mktemp("data"), train=50, test=13, augment=True)


@pytest.fixture(scope="module")
def plain(data):
    """Plain SGD on the joined batch, with nothing of ours but the batches: its losses, weights and test score."""
    prepared = load(data)
    torch.manual_seed(7)
    model = tiny(10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    batches, losses = Batches(prepared, BATCH, seed=7), []
    for step in range(1, STEPS + 1):
        images, labels = batches(step)
        optimizer.zero_grad()
        loss = cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        images, labels = next(evaluation_batches(prepared, 0, 1))
        logits = model(images)
    score = cross_entropy(logits, labels).item(), (logits.argmax(1) == labels).double().mean().item()
    return losses, model.state_dict(), score, int(batches.seen.sum())


def spec_of(sync: str, nodes: int) -> RunSpec:
    return RunSpec(sync=sync, model="tiny", nodes=nodes, batch=BATCH, steps=STEPS, seed=7, lr=0.05, every_steps=2)


DISTRIBUTED = [name for name, strategy in REAL_STRATEGIES.items() if strategy.distributed]


@pytest.mark.parametrize(("sync", "nodes"), [("single", 1)] + [(name, n) for name in DISTRIBUTED for n in (1, 2, 3, 4)])
def test_equals_plain_sgd_on_the_joined_batch(sync, nodes, data, plain, tmp_path):
    losses, weights, (test_loss, test_accuracy), distinct = plain
    spec = spec_of(sync, nodes)
    with Ranks(spec, data, tmp_path, PROGRAM) as ranks:
        ranks.finish()
    steps = [rank.of(Step) for rank in ranks]
    for i, expected in enumerate(losses):
        assert sum(s[i].loss for s in steps) / nodes == pytest.approx(expected, abs=2e-5)
    saved = torch.load(tmp_path / f"checkpoints/step-{STEPS:06d}.pt", weights_only=True)
    for name, tensor in weights.items():
        torch.testing.assert_close(saved["model"][name], tensor, rtol=1e-4, atol=1e-5)
    (score,) = ranks[0].of(Evaluated)
    assert (score.samples, score.loss) == (13, pytest.approx(test_loss, abs=2e-5))
    assert score.accuracy == pytest.approx(test_accuracy)
    assert sum(map(sum, score.confusion_matrix)) == 13
    assert {rank.of(Trained)[0].distinct_samples for rank in ranks} == {distinct}
    assert [p.name for p in sorted((tmp_path / "checkpoints").iterdir())] == [f"step-{s:06d}.pt" for s in (2, 4, 5)]

    for rank in ranks:  # what the wire counted, against the strategy's formula
        gradient_bytes = rank.of(Ready)[0].gradient_bytes
        assert gradient_bytes == 4 * PARAMETERS
        strategy = load_class(REAL_STRATEGIES[sync].place)(Wire(rank.rank, nodes), spec)
        sent, received = strategy.step_bytes(gradient_bytes)
        assert sum(s.sent_bytes for s in rank.of(Step)) == int(sent * STEPS + 1e-6)
        assert sum(s.received_bytes for s in rank.of(Step)) == int(received * STEPS + 1e-6)


def test_ddp_equals_torchs_own_to_the_last_bit(data, tmp_path):
    """DistributedDataParallel without our hook, on 3 ranks, where an average is no power of two."""
    spec = spec_of("ddp", 3)
    with Ranks(spec, data, tmp_path, PROGRAM) as ours:
        ours.finish()
    with Ranks(spec, data, tmp_path / "plain.pt", ("tests/local/plain_ddp.py",)) as plain:
        for rank in plain:
            assert rank.end() == 0, rank.errors
    saved = torch.load(tmp_path / f"checkpoints/step-{STEPS:06d}.pt", weights_only=True)["model"]
    for name, tensor in torch.load(tmp_path / "plain.pt", weights_only=True).items():
        assert torch.equal(saved[name], tensor)


def test_vgg_checkpoint_reproduces_the_test_score(data, tmp_path):
    """Batch-norm statistics averaged over the ranks: what was evaluated in shards is what the checkpoint holds."""
    from trainer.models.vgg import vgg11

    with Ranks(RunSpec(nodes=2, batch=24, steps=None, epochs=1, lr=0.01), data, tmp_path) as ranks:
        ranks.finish()
    assert ranks[0].of(Ready)[0].steps == len(ranks[0].of(Step)) == 2
    state = torch.load(tmp_path / "checkpoints/step-000002.pt", weights_only=True)
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


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="a quiet network namespace needs root")
def test_bytes_counted_are_the_bytes_on_the_interface(data, tmp_path):
    """Two more steps of VGG-11 on 3 ranks, in a network namespace where nothing else speaks."""

    def loopback_bytes(steps: int) -> int:
        script = Path(__file__).parent / "loopback_bytes.py"
        command = ["unshare", "-n", sys.executable, str(script), str(data), str(steps)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if "unshare" in done.stderr:
            pytest.skip(f"no network namespace to be had here: {done.stderr.strip()}")
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    formula = 3 * 2 * (2 * 2 / 3 * 4 * 9_231_114)  # ranks x steps x bytes a step
    assert loopback_bytes(3) - loopback_bytes(1) == pytest.approx(formula, rel=0.05)
