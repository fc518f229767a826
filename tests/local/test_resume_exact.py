"""A run that stopped and went on leaves, to the last bit, what one leaves that never stopped."""

import os
from dataclasses import replace

import pytest
import torch
from cases import train
from injected import PROGRAM, REAL_STRATEGIES
from ranks import Ranks, write_prepared

from trainer.checkpoint import files as checkpoint
from trainer.checkpoint.state import digest
from trainer.checkpoint_folder import complete_ones, name_of, rank_file, read
from trainer.events import Evaluated, Failed, Monitored, Ready, Step, Trained
from trainer.layout import seats
from trainer.registry import SYNCS
from trainer.spec import RunSpec

STEPS, STOP, RANKS = 7, 2, 3  # of three ranks, sums depend on their order; H=3 is apart at step 2
# What a strategy is tried with besides its defaults, where it takes the setting.
VARIANTS = {
    "compress": [{"compress": "bf16"}, {"compress": "topk", "ratio": 0.1}, {"compress": "powersgd"}],
    "granularity": [{"granularity": "tensor"}, {"granularity": "flat"}],
    "bucket_mb": [{"bucket_mb": 0.001}],
    "topology": [{"topology": "random"}],
    "sync_bn": [{"sync_bn": 1}],
    "staleness": [{"staleness": 0}],
}


def spec_of(sync: str, **changes) -> RunSpec:
    strategy = SYNCS[sync]
    values = {"sync": sync, "model": "noisy", "nodes": RANKS, "batch": 24, "steps": STEPS, "seed": 5, "lr": 0.05}
    values |= {"every_steps": STOP, "local_steps": 3 if "local_steps" in strategy.settings else 8}
    if not strategy.distributed:
        values["nodes"] = 1
    if strategy.servers:
        values |= {"colocated": 1, "servers": 2}
    return RunSpec(**values | changes)


CASES = {}
for name, strategy in REAL_STRATEGIES.items():
    if strategy.repeatable:
        CASES[f"{name}-stop"] = spec_of(name), STOP
        CASES[f"{name}-undisturbed"] = spec_of(name), 0
        for setting in (name for name in VARIANTS if name in strategy.settings):
            for i, variant in enumerate(VARIANTS[setting]):
                CASES[f"{name}-{setting}-{i}"] = spec_of(name, **variant), STOP
CASES["single-bf16"] = spec_of("single", precision="bf16"), STOP
CASES["ddp-bf16"] = spec_of("ddp", precision="bf16"), STOP
CASES["ddp-vgg11"] = spec_of("ddp", model="vgg11", batch=6, steps=4), STOP  # more than one bucket
CASES["ddp-no-momentum"] = spec_of("ddp", momentum=0.0), STOP


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_prepared(tmp_path_factory.mktemp("data"), train=50, augment=True)


def whole_state(out, rank: int) -> dict:
    """What the last checkpoint of a run holds for a rank, as digests."""
    folder = complete_ones(out / "checkpoints")[-1]

    class Place:
        world_size = read(folder).world_size

    Place.rank = rank
    _, state = checkpoint.load(folder, Place, {})
    served = torch.load(folder / "model.pt", weights_only=True)["model"]
    return {name: digest(value) for name, value in (state | {f"served {n}": v for n, v in served.items()}).items()}


@pytest.mark.parametrize("case", CASES)
def test_going_on_equals_never_stopping(case, data, groups, tmp_path):
    """With stop 0 there is no stop, but in one of the runs checkpoints on the way, which must not disturb it."""
    spec, stop = CASES[case]
    group = groups[len(seats(spec))]
    whole = group.run(train, spec, data, tmp_path / "whole", True)
    if stop:
        step = tmp_path / "whole/checkpoints" / name_of(stop)
        again = group.run(train, spec, data, tmp_path / "again", True, step)
    else:
        again = group.run(train, replace(spec, every_steps=0, evaluate_steps=2), data, tmp_path / "again", True)
    for rank, one, two in zip(range(spec.workers), whole, again, strict=False):  # servers come last, and hold no file
        left, did = (whole_state(tmp_path / name, rank) for name in ("whole", "again"))
        assert did == left, [name for name in left if left[name] != did.get(name)]
        assert two.of(Ready)[0].steps_before == stop
        steps = [step for step in one.of(Step) if step.step > stop], two.of(Step)
        for what in ("step", "loss", "accuracy"):
            assert [getattr(s, what) for s in steps[1]] == [getattr(s, what) for s in steps[0]]
        for what in ("sent_bytes", "received_bytes"):  # a step's fraction of a byte is counted with the next
            assert [getattr(s, what) for s in steps[1]] == pytest.approx([getattr(s, what) for s in steps[0]], abs=1)
        ends = [trained.of(Trained)[0] for trained in (one, two)]
        assert len({(end.distinct_samples, end.synchronisations) for end in ends}) == 1
        scores = [[replace(score, time=0, seconds=0) for score in trained.of(Evaluated)] for trained in (one, two)]
        assert scores[0] == scores[1]


@pytest.mark.parametrize("sync", ["single", "ddp", "local_sgd", "ps_sync"])
def test_a_score_on_the_way_is_that_of_a_run_which_ends_there(sync, data, groups, tmp_path):
    spec = spec_of(sync, every_steps=0, evaluate_steps=2, steps=5)
    scored = groups[len(seats(spec))].run(train, spec, data, tmp_path / "long", True)[0].of(Monitored)
    assert [score.step for score in scored] == [2, 4]
    for score in scored:
        short = replace(spec, steps=score.step, evaluate_steps=0)
        (last,) = groups[len(seats(spec))].run(train, short, data, tmp_path / f"to {score.step}", True)[0].of(Evaluated)
        assert (score.samples, score.accuracy) == (last.samples, last.accuracy)
        assert score.loss == pytest.approx(last.loss, rel=1e-6)


def test_ranks_that_hold_the_same_write_it_once(data, groups, tmp_path):
    spec = spec_of("ddp", model="vgg11", batch=6, steps=1)
    groups[len(seats(spec))].run(train, spec, data, tmp_path, True)
    files = read(tmp_path / "checkpoints/step-000001").files
    assert set(files) == {"model.pt", *(rank_file(rank) for rank in range(RANKS))}
    weights = 4 * 9_231_114
    assert weights < files["model.pt"]["bytes"] < 1.01 * weights
    assert weights < files["rank-0.pt"]["bytes"] < 1.01 * weights  # momentum; the weights are model.pt's
    assert files["rank-1.pt"]["bytes"] < 100_000  # its own batch-norm statistics and random state


def test_a_damaged_checkpoint_or_another_spec_is_bad_input_of_the_rank(data, groups, tmp_path):
    groups[1].run(train, spec_of("single"), data, tmp_path / "whole", True)
    folder = tmp_path / "whole/checkpoints" / name_of(STOP)
    copy = tmp_path / folder.name
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    os.truncate(copy / "model.pt", 1000)
    with Ranks(spec_of("single"), data, program=PROGRAM, SYNCBED_RESUME=str(copy)) as ranks:
        assert ranks[0].end() == 2
        (failed,) = ranks[0].of(Failed)
    assert failed.kind == "input"
    assert failed.message == f"RESUME: {copy}/model.pt: damaged, it is not what complete.json says"
    short = replace(spec_of("single"), steps=STOP)
    with Ranks(short, data, program=PROGRAM, SYNCBED_RESUME=str(folder)) as ranks:
        assert ranks[0].end() == 2
        assert f"is of step {STOP}, this run ends at {STOP}" in ranks[0].of(Failed)[0].message
