"""Figures side by side: known inputs with known answers, the awkward ones too."""

import json
from pathlib import Path

import pytest

from monitor import figures
from monitor.figures import Group
from trainer import events
from trainer.events import PHASES

SPEC = {"sync": "ddp", "model": "cnn3", "data": "synthetic", "nodes": 2, "nproc": 1, "batch": 12, "shares": None}
SPEC |= {"precision": "fp32"}


def result(step=0.5, exposed=0.1, steps=4, **changes) -> dict:
    """A result of one rank per node; `step` may be a list, one for each worker."""
    spec = SPEC | {k: v for k, v in changes.items() if k in SPEC and k != "data"}
    times = step if isinstance(step, list) else [step] * (spec["nodes"] * spec["nproc"])
    rest = {
        **{"status": "finished", "runtime": "local", "data": {"key": "k"}, "steps": steps, "evaluations": []},
        **{"test_accuracy": 0.9, "seconds": {"training": 2.0}},
    }
    ranks = [
        {
            **{"role": "worker", "steps": steps, "sent_bytes": 1_000_000 * steps, "step_seconds": {"mean": seconds}},
            "phase_seconds": dict.fromkeys(PHASES, 0.0) | {"sync": exposed},
        }
        for seconds in times
    ]
    return rest | {"spec": spec, "ranks": ranks} | {k: v for k, v in changes.items() if k not in SPEC or k == "data"}


def group(*runs: dict) -> Group:
    return Group("", runs, (Path(),) * len(runs))


def test_speed_up_of_known_times():
    one = group(result(1.0, 0.0, sync="single", nodes=1), result(1.1, 0.0, sync="single", nodes=1))
    four = group(result(0.5, 0.25, nodes=4), result(0.55, 0.25, nodes=4))
    found = figures.speed_up(four, one)
    assert found.value == pytest.approx(2)
    assert found.low < 2 < found.high
    # 1 / (0.5 - 0.25) and 1.1 / (0.55 - 0.25), as geometric means
    assert figures.speed_up(four, one, without_sync=True).value == pytest.approx((4 * (1.1 / 0.3)) ** 0.5)


def test_a_cluster_that_is_slower_than_one_node():
    found = figures.speed_up(group(result(2.0, nodes=4)), group(result(1.0, nodes=1)))
    assert (found.value, found.known) == (pytest.approx(0.5), False)


def test_larger_batches_count_by_samples():
    found = figures.speed_up(group(result(1.0, nodes=2, batch=24)), group(result(1.0, nodes=1, batch=12)))
    assert found.value == pytest.approx(2)


def test_workers_at_their_own_pace_add_up():
    # 6 samples in 0.5 s and 6 in 1.5 s
    assert figures.samples_per_second(result([0.5, 1.5])) == pytest.approx(12 + 4)
    shared = result([1.0, 1.0], shares=[2, 1])
    assert figures.samples_per_second(shared) == pytest.approx(12)
    assert figures.samples_per_second(result([0.5, 1.0], shares=[2, 1])) == pytest.approx(16 + 4)


def test_a_run_of_one_step_has_no_step_time():
    short = result([None, None], steps=1)
    assert figures.step_seconds(short) is None
    assert figures.samples_per_second(short) is None
    assert figures.speed_up(group(short), group(result(nodes=1))) is None
    assert group(short).estimate(figures.step_seconds) is None


def test_servers_and_evaluators_are_no_workers():
    run = result()
    server = {"role": "server", "steps": 0, "sent_bytes": 6_000_000, "step_seconds": {"mean": None}}
    run["ranks"].append(server | {"phase_seconds": dict.fromkeys(PHASES)})
    assert figures.step_seconds(run) == 0.5
    assert figures.step_megabytes(run) == pytest.approx((4 + 4 + 6) / 4)


def test_the_baseline_is_one_node_of_the_same_kind():
    single, own = group(result(nodes=1, sync="single")), group(result(nodes=1, sync="ddp"))
    other_batch = group(result(nodes=1, sync="single", batch=6))
    others = [group(result(nodes=1, model="vgg11")), group(result(nodes=1, runtime="docker"))]
    others += [group(result(nodes=1, data={"key": "x"})), group(result(nodes=1, nproc=2)), Group("failed", (), (), 2)]
    wanted = group(result(nodes=4))
    assert figures.baseline(wanted, [*others, other_batch, own, single]) is single
    assert figures.baseline(wanted, [*others, other_batch, own]) is own
    assert figures.baseline(wanted, [*others, other_batch]) is other_batch
    assert figures.baseline(wanted, others) is None


def test_time_and_bytes_to_an_accuracy(tmp_path):
    steps = [
        events.Step(
            **{"rank": rank, "step": step, "epoch": 1, "loss": 1.0, "accuracy": 0.5, "samples": 6},
            **{"seconds": dict.fromkeys(PHASES, 0.0), "step_seconds": step * (1.0 + rank)},
            **{"sent_bytes": 10, "received_bytes": 0},
        )
        for rank in range(2)
        for step in range(1, 5)
    ]
    (tmp_path / "events.jsonl").write_text("".join(events.to_line(step) + "\n" for step in steps) + '{"event": "st')
    run = result(evaluations=[{"step": 2, "accuracy": 0.6}, {"step": 3, "accuracy": 0.8}])
    found = figures.reached(run, tmp_path, 0.8)
    # steps 1..3: rank 0 took 1 + 2 + 3 s, rank 1 twice that; 3 steps of two ranks sent 10 bytes each
    assert (found.step, found.accuracy, found.seconds, found.sent_bytes) == (3, 0.8, pytest.approx(9), 60)
    assert figures.reached(run, tmp_path, 0.85).step == 4
    assert figures.reached(run, tmp_path, 0.95) is None


def test_runs_of_one_spec_are_repeats():
    runs = [(result(nodes=1), Path("a")), (result(nodes=2), Path("b")), (result(nodes=1, status="failed"), Path("c"))]
    runs.append((result(0.7, nodes=1), Path("d")))
    one, two = figures.grouped(runs)
    assert (one.label, two.label) == ("NODES=1", "NODES=2")
    assert (len(one.results), one.failed, one.folders) == (2, 1, (Path("a"), Path("d")))
    assert one.estimate(figures.step_seconds).value == pytest.approx(0.6)


def test_a_group_whose_runs_all_failed_stays_visible():
    (lost,) = figures.grouped([(result(status="failed"), Path("a"))])
    assert (lost.results, lost.failed) == ((), 1)
    assert lost.label == "SYNC=ddp MODEL=cnn3 NODES=2 BATCH=12"


def test_cost_in_node_seconds():
    assert figures.node_seconds(result(nodes=4)) == 8
    assert json.dumps(figures.phase_seconds(result()))
