"""Gossip goes on without a lost worker: what is left averages, is brought together, saved and scored."""

import signal

import pytest
from injected import PROGRAM
from ranks import Ranks, write_prepared

from trainer.checkpoint_folder import complete_ones, read
from trainer.events import Evaluated, Failed, Finished, Monitored, Step, Trained
from trainer.spec import RunSpec

STEPS, DEADLINE = 90, 6


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_prepared(tmp_path_factory.mktemp("data"))


def spec_of(**changes) -> RunSpec:
    values = {"sync": "gossip", "model": "tiny", "nodes": 4, "batch": 16, "steps": STEPS, "deadline_seconds": DEADLINE}
    return RunSpec(**values | changes)


@pytest.mark.parametrize(
    ("changes", "how"),
    [
        ({"topology": "ring", "every_steps": 30, "evaluate_steps": 45}, signal.SIGKILL),
        ({"topology": "ring"}, signal.SIGSTOP),
        ({"topology": "random", "nodes": 3, "batch": 12}, signal.SIGKILL),
        ({"nodes": 2, "batch": 8, "every_steps": 30}, signal.SIGKILL),  # rank 0 is left alone
    ],
)
def test_a_lost_worker_is_gone_on_without(changes, how, data, tmp_path):
    spec = spec_of(**changes)
    victim = spec.nodes - 1
    signals = [f"8 {how.value}" if rank == victim else "" for rank in range(spec.nodes)]
    with Ranks(spec, data, tmp_path, PROGRAM, INJECTED_SIGNAL=signals) as ranks:
        for rank in ranks.all[:victim]:
            assert rank.end() == 0, rank.of(Failed)
            assert rank.of(Finished)
    for rank in ranks.all[:victim]:
        assert len(rank.of(Step)) == STEPS
        assert rank.of(Trained)[0].lost_workers == [victim]
    assert len(ranks[victim].of(Step)) < STEPS
    assert ranks[0].of(Evaluated)[0].samples == 13
    saved = [read(folder) for folder in complete_ones(tmp_path / "checkpoints")]
    assert [said.step for said in saved] == ([30, 60, STEPS] if spec.every_steps else [STEPS])
    assert {said.world_size for said in saved} == {victim}
    assert [e.step for e in ranks[0].of(Monitored)] == ([45] if spec.evaluate_steps else [])


def test_rank_0_is_needed(data):
    with Ranks(spec_of(nodes=3, batch=12, steps=10**8), data, program=PROGRAM) as ranks:
        for rank in ranks:
            rank.wait_for(Step, 2)
        ranks[0].process.send_signal(signal.SIGKILL)
        for rank in ranks.all[1:]:
            assert rank.end() == 1
            assert rank.of(Failed)[0].suspect_rank == 0
