"""A rank that dies, freezes or disagrees: every other rank ends by itself, and names it."""

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from injected import ODD, PROGRAM, REAL_STRATEGIES
from ranks import Ranks, write_prepared

from trainer.events import Failed, Step
from trainer.registry import SYNCS
from trainer.spec import RunSpec

DEADLINE = 6
AT_MOST = 2 * DEADLINE  # from a loss to its being told; on a busy machine some of it is waiting for a core


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_prepared(tmp_path_factory.mktemp("data"))


def endless(**changes) -> RunSpec:
    values = {"model": "tiny", "nodes": 3, "batch": 12, "steps": 10**8, "deadline_seconds": DEADLINE}
    return RunSpec(**values | changes)


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_killed_or_frozen_rank_is_named_by_all_others(how, victim, data):
    with Ranks(endless(), data, program=PROGRAM) as ranks:
        for rank in ranks:
            rank.wait_for(Step, 2)
        ranks[victim].process.send_signal(how)
        for rank in (r for r in ranks if r.rank != victim):
            assert rank.end() == 1
            (failed,) = rank.of(Failed)
            assert failed.suspect_rank == victim, failed
            assert failed.kind in ("peer", "deadline")
            assert "\n" not in failed.message
            assert str(victim) in failed.message
            last = rank.of(Step)[-1].time
            assert failed.time - last < AT_MOST  # both times are the rank's own: how long it waited


LOST = [
    (sync, how)
    for sync, strategy in REAL_STRATEGIES.items()
    if strategy.distributed and (strategy.servers or not strategy.survives_lost_workers)
    for how in (signal.SIGKILL, signal.SIGSTOP)
]


@pytest.fixture(scope="module")
def endings(data, request):
    """How rank 0 of each wanted case ended. Most of it is waiting for imports and deadlines: several run at once."""
    items = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    wanted = {(item.callspec.params.get("sync"), item.callspec.params.get("how")) for item in items}
    pool = ThreadPoolExecutor(3)
    yield {case: pool.submit(lose_rank_1, *case, data) for case in LOST if case in wanted}
    pool.shutdown(cancel_futures=True)


def lose_rank_1(sync: str, how: signal.Signals, data) -> tuple[int, list[Failed], float]:
    """Rank 0's exit code, its last words, and when rank 1 was lost: where there are servers, that is one."""
    two = {"nodes": 1, "nproc": 2} if SYNCS[sync].one_node else {"nodes": 2}
    with Ranks(endless(sync=sync, **two), data, program=PROGRAM) as ranks:
        ranks[0].wait_for(Step, 2)
        lost = time.time()
        ranks[1].process.send_signal(how)
        return ranks[0].end(), ranks[0].of(Failed), lost


# A worker that can be gone on without has tests of its own, in test_parameter_servers.py and test_gossip_survivors.py.
@pytest.mark.parametrize(("sync", "how"), LOST)
def test_whatever_the_strategy_a_killed_or_frozen_rank_ends_it_and_is_named(sync, how, endings):
    code, (failed,), lost = endings[sync, how].result()
    assert code == 1
    assert failed.suspect_rank == 1, failed
    assert failed.kind in ("peer", "deadline")
    assert failed.time - lost < AT_MOST


def test_sigterm_ends_a_rank_that_waits_in_a_collective(data):
    with Ranks(endless(nodes=2, deadline_seconds=60), data, program=PROGRAM) as ranks:
        ranks[0].wait_for(Step, 2)
        ranks[1].process.send_signal(signal.SIGSTOP)
        ranks[0].process.send_signal(signal.SIGTERM)
        assert ranks[0].end(50) == 1
    (failed,) = ranks[0].of(Failed)
    assert (failed.kind, failed.message) == ("own", "stopped by SIGTERM")


def test_ranks_with_different_specs_are_a_mismatch(data):
    specs = [endless(nodes=2, seed=seed).to_json() for seed in (1, 2)]
    with Ranks(endless(nodes=2), data, program=PROGRAM, SYNCBED_SPEC=specs) as ranks:
        for rank in ranks:
            assert rank.end() == 1
            (failed,) = rank.of(Failed)
            assert (failed.kind, failed.suspect_rank) == ("mismatch", 1)
            assert failed.message == "rank 1 differs from rank 0 in the run: seed=2 (rank 0: seed=1)"


def test_collectives_of_different_sizes_are_a_mismatch(data, monkeypatch):
    monkeypatch.setitem(SYNCS, "odd", ODD)
    with Ranks(endless(nodes=2, sync="odd"), data, program=PROGRAM) as ranks:
        assert ranks[0].end() == 1  # Gloo aborts rank 1, which receives more than it expects
        (failed,) = ranks[0].of(Failed)
    assert (failed.kind, failed.suspect_rank) == ("mismatch", 1)
    assert "rank 1 began all_reduce of 1000 float32, others all_reduce of 2000 float32 (#2)" in failed.message


def test_bad_data_on_one_rank_is_its_input_error_and_the_others_name_it(data, tmp_path):
    broken = write_prepared(tmp_path / "broken")
    images = broken / "train_images.npy"
    os.truncate(images, images.stat().st_size // 2)
    with Ranks(endless(nodes=2), data, program=PROGRAM, SYNCBED_DATA=[str(data), str(broken)]) as ranks:
        assert [rank.end() for rank in ranks] == [1, 2]
        (own,), (other,) = ranks[1].of(Failed), ranks[0].of(Failed)
    assert own.kind == "input"
    assert "train_images.npy: truncated" in own.message
    assert (other.kind, other.suspect_rank) == ("peer", 1)
    assert "train_images.npy: truncated" in other.message


def test_a_bad_spec_or_place_is_bad_input_before_torch_is_imported(data):
    good = endless(nodes=1, model="vgg11")
    bad = json.loads(good.to_json()) | {"batch": 0}
    for env, text in (
        ({"SYNCBED_SPEC": json.dumps(bad)}, "BATCH=0"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE=2: the spec asks for 1 ranks"),
        ({"MASTER_ADDR": "no-such-host.invalid"}, "MASTER_ADDR=no-such-host.invalid: no route to it"),
    ):
        with Ranks(good, data, **env) as ranks:
            assert ranks[0].end() == 2
            (failed,) = ranks[0].of(Failed)
        assert failed.kind == "input"
        assert text in failed.message
