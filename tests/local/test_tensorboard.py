"""TENSORBOARD=1: TensorBoard's own reader finds in the event files what events.jsonl says."""

import sys
from pathlib import Path

import pytest
from orchestrator import Orchestrator

from trainer.data.prepared import InputError
from trainer.events import PHASES, Step
from trainer.run.tensorboard import Board


def test_scalars_are_the_events_and_the_graph_is_there(tmp_path):
    accumulators = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="no tensorboard"
    )
    run = Orchestrator(tmp_path, RUNTIME="local", NODES=2, TENSORBOARD=1)
    code, out = run.finish()
    assert code == 0, out
    assert run.warnings() == []
    for rank in (0, 1):
        read = accumulators.EventAccumulator(str(run.run / f"tensorboard/rank-{rank}"))
        read.Reload()
        steps = run.events("step", rank)
        expected = {name: [s[name] for s in steps] for name in ("loss", "accuracy", "sent_bytes", "received_bytes")}
        expected |= {f"seconds/{phase}": [s["seconds"][phase] for s in steps] for phase in PHASES}
        expected["step_seconds"] = [s["step_seconds"] for s in steps]
        assert set(read.Tags()["scalars"]) == set(expected)
        for name, values in expected.items():
            scalars = read.Scalars(name)
            assert [s.step for s in scalars] == [1, 2, 3]
            assert [s.value for s in scalars] == pytest.approx(values, rel=1e-6)  # they are float32 there
            assert [s.wall_time for s in scalars] == [s["time"] for s in steps]
        assert read.Tags()["graph"] == (rank == 0)
    nodes = "\n".join(node.name for node in read_graph(accumulators, run.run / "tensorboard/rank-0"))
    assert "Conv2d" in nodes
    assert "Linear" in nodes


def test_what_a_restart_lost_is_not_shown(tmp_path):
    accumulators = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="no tensorboard"
    )
    for first, losses in ((1, [4.0, 3.0, 9.0]), (3, [2.0, 1.0])):
        board = Board(tmp_path, 0, first)
        for number, loss in enumerate(losses, first):
            figures = {"epoch": 1, "accuracy": 0.5, "samples": 4, "seconds": dict.fromkeys(PHASES, 0.1)}
            figures |= {"step_seconds": 0.5, "sent_bytes": 1, "received_bytes": 1, "time": 10.0 * first + number}
            board.step(Step(rank=0, step=number, loss=loss, **figures))
        board.close()
    read = accumulators.EventAccumulator(str(tmp_path / "tensorboard/rank-0"))
    read.Reload()
    assert [(s.step, s.value) for s in read.Scalars("loss")] == [(1, 4.0), (2, 3.0), (3, 2.0), (4, 1.0)]


def read_graph(accumulators, folder: Path):
    read = accumulators.EventAccumulator(str(folder))
    read.Reload()
    return read.Graph().node


def test_without_the_package_it_is_said_what_would_do(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)  # an import of it fails
    with pytest.raises(InputError, match=r"^TENSORBOARD=1: .*; `make run TENSORBOARD=1` installs it"):
        Board(tmp_path, 0)
