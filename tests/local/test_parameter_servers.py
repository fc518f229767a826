"""Parameter servers: the algebra, the bytes, how stale updates are, and what is left when a rank is lost."""

import signal

import numpy as np
import pytest
from cases import plain, train
from injected import PARAMETERS, PROGRAM
from ps_cases import slow_worker
from ranks import Ranks, write_prepared

from trainer.checkpoint_folder import name_of, read
from trainer.events import Evaluated, Failed, Finished, Monitored, Ready, Served, Step, Trained, Watched
from trainer.layout import SERVER, roles, seats
from trainer.spec import RunSpec
from trainer.wire.link import HEAD_BYTES

BATCH, STEPS, DEADLINE = 24, 5, 8
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_prepared(tmp_path_factory.mktemp("data"), train=50, test=13, augment=True)


def spec_of(sync: str, workers: int, servers: int = 1, colocated: int = 0, **changes) -> RunSpec:
    values = {"model": "tiny", "batch": BATCH, "steps": STEPS, "seed": 7, "lr": 0.05, "every_steps": 2} | changes
    nodes = workers if colocated else workers + servers
    return RunSpec(sync=sync, nodes=nodes, servers=servers, colocated=colocated, **values)


def run(spec, data, groups):
    """What the workers gave back, and what the other ranks did."""
    told = groups[len(seats(spec))].run(train, spec, data, None, True)
    return told[: spec.workers], told[spec.workers :]


def check_equal(ranks, expected) -> None:
    for name, array in expected.state.items():
        for rank in ranks:
            np.testing.assert_array_equal(rank.state[name], ranks[0].state[name], err_msg=f"{name} between ranks")
        np.testing.assert_allclose(ranks[0].state[name], array, err_msg=name, **TOLERANCE)


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_lock_step_is_sgd_on_the_joined_batch_and_staleness_0_is_lock_step(workers, servers, data, groups):
    expected = plain(RunSpec(sync="single", model="tiny", nodes=1, batch=BATCH, steps=STEPS, seed=7, lr=0.05), data)
    cases = [("ps_sync", {}), ("ps_async", {"staleness": 0})]
    if workers > 1:
        cases += [("ps_sync", {"colocated": 1}), ("ps_sync", {"shares": (2, 1, 1)[:workers]})]
    for sync, changes in cases:
        spec = spec_of(sync, workers, servers, **changes)
        ranks, others = run(spec, data, groups)
        check_equal(ranks, expected)
        assert all(step.staleness == 0 for rank in ranks for step in rank.of(Step))
        assert [rank.of(Trained)[0].synchronisations for rank in ranks] == [STEPS] * workers
        (score,) = ranks[0].of(Evaluated)
        assert (score.samples, score.loss) == (13, pytest.approx(expected.test_loss, abs=2e-5))
        check_bytes(spec, ranks, others)


def check_bytes(spec, ranks, others) -> None:
    """What was counted is what the formulas say."""
    size, n, heads = 4 * PARAMETERS, spec.workers, HEAD_BYTES * spec.servers
    for rank in ranks:
        assert rank.bytes == (STEPS * (size + heads),) * 2
        check_formula(rank)
    checkpoints = 3  # after 2, 4 and 5 steps: rank 0 asks for the momentum
    served = [event for other in others for event in other.of(Served)]
    assert len(served) == spec.servers
    assert sum(s.sent_bytes for s in served) == n * (STEPS + 1) * (size + heads) + checkpoints * size
    assert sum(s.received_bytes for s in served) == n * (STEPS * size + (STEPS + 2) * heads) + checkpoints * heads
    assert all(abs(s.sent_bytes - served[0].sent_bytes) / served[0].sent_bytes < 0.1 for s in served)


def check_formula(rank) -> None:
    (end,) = rank.of(Trained)
    counted = rank.bytes[0] + end.sent_bytes, rank.bytes[1] + end.received_bytes
    assert counted == pytest.approx([STEPS * each for each in rank.step_bytes])


@pytest.mark.parametrize("compress", ["bf16", "topk", "powersgd"])
def test_compressed_pushes(compress, data, groups):
    """With nothing left out the weights are plain SGD's; what is pushed is as large as the formula says."""
    expected = plain(RunSpec(sync="single", model="tiny", nodes=1, batch=BATCH, steps=STEPS, seed=7, lr=0.05), data)
    lossless = {"topk": {"ratio": 1.0}, "powersgd": {"compress_rank": 400}}.get(compress, {})
    ranks, _ = run(spec_of("ps_sync", 2, 2, compress=compress, **lossless), data, groups)
    loose = {"rtol": 0.02, "atol": 2e-3} if compress == "bf16" else TOLERANCE
    for name, array in expected.state.items():
        np.testing.assert_allclose(ranks[0].state[name], array, err_msg=name, **loose)
    for settings in ({}, {"topk": {"ratio": 0.03}, "powersgd": {"compress_rank": 2}}.get(compress, {})):
        ranks, _ = run(spec_of("ps_async", 2, 2, compress=compress, **settings), data, groups)
        for rank in ranks:
            check_formula(rank)
            assert rank.step_bytes[0] < 0.7 * 4 * PARAMETERS


def test_a_slow_worker_holds_the_others_back_at_the_bound(data, groups):
    """Worker 1 begins each step only when the others must be waiting for it."""
    bound, n = 2, 3
    spec = spec_of("ps_async", n, staleness=bound, steps=8)
    told = groups[n + 1].run(slow_worker, spec, data)
    staleness = [[step.staleness for step in rank.of(Step)] for rank in told[:n]]
    assert max(map(max, staleness)) <= (n - 1) * (2 * bound + 1)
    # At its first push the two others have had `bound` answers each, and may have pushed once more.
    assert (n - 1) * bound <= staleness[1][0] <= (n - 1) * (bound + 1)
    assert sum(staleness[1][:6]) >= (n - 1) * (bound + 6 - 2)  # in all, every push of theirs but the last two
    (served,) = told[n].of(Served)
    assert served.updates == n * 8


def test_the_evaluator_scores_the_servers_weights_while_they_are_trained(data, groups):
    spec = spec_of("ps_async", 2, 2, evaluator=1, model="tiny_bn")
    ranks, others = run(spec, data, groups)
    found = others[-1].of(Monitored)
    assert found
    assert all(event.samples == 13 for event in found)
    updates = [event.updates for event in found]
    assert updates == sorted(set(updates))
    assert updates[-1] <= 2 * STEPS
    assert all(0 <= event.step <= STEPS for event in found)
    assert ranks[0].of(Evaluated)[0].samples == 13
    (watched,) = others[-1].of(Watched)
    asked, over = divmod(watched.sent_bytes, HEAD_BYTES)
    assert asked >= 2 * len(found) + 1 and over == 0  # each server for each score, and until the last is done
    weights = watched.received_bytes - asked * HEAD_BYTES
    assert weights >= len(found) * ranks[0].of(Ready)[0].gradient_bytes


def endless(sync: str, **changes) -> RunSpec:
    return spec_of(sync, 3, every_steps=0, **{"batch": 12, "steps": 10**8, "deadline_seconds": DEADLINE} | changes)


@pytest.mark.parametrize(
    ("sync", "victim", "how"),
    [
        ("ps_sync", 1, signal.SIGKILL),
        ("ps_sync", 1, signal.SIGSTOP),
        ("ps_async", 0, signal.SIGKILL),
        ("ps_async", 0, signal.SIGSTOP),  # a server: test_trainer_failures.py
    ],
)
def test_a_lost_rank_that_is_needed_ends_the_run_and_is_named(sync, victim, how, data):
    with Ranks(endless(sync), data, program=PROGRAM) as ranks:
        for rank in ranks.all[:3]:
            rank.wait_for(Step, 2)
        ranks[victim].process.send_signal(how)
        for rank in (r for r in ranks if r.rank != victim):
            assert rank.end() == 1
            (failed,) = rank.of(Failed)
            assert failed.suspect_rank == victim, failed
            assert failed.kind in ("peer", "deadline")


@pytest.mark.parametrize(("staleness", "how"), [(0, signal.SIGSTOP), (3, signal.SIGKILL)])
def test_asynchronous_training_goes_on_without_a_lost_worker(staleness, how, data, tmp_path):
    spec = endless("ps_async", servers=2, evaluator=1, steps=120, staleness=staleness)
    signals = [f"8 {how.value}" if rank == 2 else "" for rank in range(len(seats(spec)))]
    with Ranks(spec, data, tmp_path, PROGRAM, INJECTED_SIGNAL=signals) as ranks:
        for rank in (r for r in ranks if r.rank != 2):
            assert rank.end() == 0, rank.of(Failed)
            assert rank.of(Finished)
    for rank in ranks.all[:2]:
        assert len(rank.of(Step)) == 120
        assert rank.of(Trained)[0].lost_workers == [2]
    assert len(ranks[2].of(Step)) < 120
    assert ranks[0].of(Evaluated)[0].samples == 13
    assert {r for r in roles(spec)[SERVER] if ranks[r].of(Served)} == {3, 4}
    saved = read(tmp_path / "checkpoints" / name_of(120))
    assert (saved.step, saved.world_size) == (120, 2)
