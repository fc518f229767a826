"""Figures side by side: known inputs with known answers, the awkward ones too."""

import json
from pathlib import Path

import pytest
from report_cases import ended

from monitor.errors import UserError
from monitor.experiments import figures, grouping
from monitor.experiments.grouping import Group
from monitor.results.result import Result
from trainer import events
from trainer.events import PHASES

SPEC = {"sync": "ddp", "model": "cnn3", "data": "synthetic", "nodes": 2, "nproc": 1, "batch": 12, "shares": None}
SPEC |= {"precision": "fp32"}


def result(*step, **changes) -> Result:
    """A result of one rank per node, as `document` says."""
    return Result.model_validate(document(*step, **changes))


def document(step=0.5, exposed=0.1, steps=4, **changes) -> dict:
    """The document of one rank per node; `step` may be a list, one for each worker."""
    spec = SPEC | {k: v for k, v in changes.items() if k in SPEC and k != "data"}
    times = step if isinstance(step, list) else [step] * (spec["nodes"] * spec["nproc"])
    rest = ended("x", runtime="local", steps=steps, samples_seen=48, seconds={"training": 2.0}, spec=spec)
    rest |= {"train_loss": 1.5, "test_loss": 1.25, "test_accuracy": 0.9, "evaluations": []}
    ranks = [rank_of(rank, steps, seconds, exposed) for rank, seconds in enumerate(times)]
    changes = {k: v for k, v in changes.items() if k not in SPEC or k == "data"}
    if "data" in changes:
        changes["data"] = {"label": "images", **changes["data"]}
    return rest | {"ranks": ranks} | changes


def rank_of(rank: int, steps: int, seconds: float | None, exposed: float | None, **changes) -> dict:
    return {
        **{"rank": rank, "node": f"local-{rank}", "role": "worker", "steps": steps, "received_bytes": 0},
        **{"sent_bytes": 1_000_000 * steps, "step_seconds": {"mean": seconds, "median": seconds, "p95": seconds}},
        **{"phase_seconds": dict.fromkeys(PHASES, 0.0) | {"sync": exposed}},
        **changes,
    }


def score(step: int, accuracy: float) -> dict:
    return {"step": step, "updates": None, "loss": 1.0, "accuracy": accuracy, "seconds": 1.0}


def group(*runs: Result) -> Group:
    return Group("", runs, (Path(),) * len(runs))


def test_speed_up_of_known_times():
    one = group(result(1.0, 0.0, sync="single", nodes=1), result(1.1, 0.0, sync="single", nodes=1))
    four = group(result(0.5, 0.25, nodes=4), result(0.55, 0.25, nodes=4))
    found = figures.speed_up(four, one)
    assert found.value == pytest.approx(2)
    assert found.low < 2 < found.high
    # 1 / (0.5 - 0.25) and 1.1 / (0.55 - 0.25), as geometric means
    assert figures.speed_up(four, one, "without_sync").value == pytest.approx((4 * (1.1 / 0.3)) ** 0.5)


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
    server = rank_of(2, 0, None, None, role="server", sent_bytes=6_000_000, phase_seconds=dict.fromkeys(PHASES))
    run = result(ranks=[*document()["ranks"], server])
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


def step(rank: int, number: int, seconds: float, received: int = 0) -> events.Step:
    return events.Step(
        **{"rank": rank, "step": number, "epoch": 1, "loss": 1.0, "accuracy": 0.5, "samples": 6, "time": 100 + number},
        **{"seconds": dict.fromkeys(PHASES, 0.0), "step_seconds": seconds},
        **{"sent_bytes": 10, "received_bytes": received},
    )


def trained(rank: int, at: float, sent: int = 0, received: int = 0) -> events.Trained:
    return events.Trained(
        **{"rank": rank, "time": at, "seconds": 9.0, "distinct_samples": 48, "synchronisations": 1},
        **{"interface_sent_bytes": 0, "interface_received_bytes": 0, "sent_bytes": sent, "received_bytes": received},
    )


def recorded(folder: Path, *said: events.Event) -> Path:
    (folder / "events.jsonl").write_text("".join(events.to_line(event) + "\n" for event in said) + '{"event": "st')
    return folder


class TestReached:
    def test_time_and_bytes_to_an_accuracy(self, tmp_path):
        recorded(tmp_path, *(step(rank, n, n * (1.0 + rank)) for rank in range(2) for n in range(1, 5)))
        run = result(evaluations=[score(2, 0.6), score(3, 0.8)])
        found = figures.reached(run, tmp_path, 0.8)
        # steps 1..3: rank 0 took 1 + 2 + 3 s, rank 1, which the score waited for, twice that; 10 bytes each
        assert (found.step, found.accuracy, found.seconds, found.sent_bytes) == (3, 0.8, pytest.approx(12), 60)
        assert figures.reached(run, tmp_path, 0.85).step == 4
        assert figures.reached(run, tmp_path, 0.95) is None

    def test_what_is_merge_states_at_the_end_belongs_to_the_last_score(self, tmp_path):
        steps = [step(rank, n, 1.0) for rank in range(2) for n in range(1, 5)]
        recorded(tmp_path, *steps, trained(0, 104.5, sent=1000), trained(1, 104.75, sent=1000))
        run = result(evaluations=[score(2, 0.6)])
        last = figures.reached(run, tmp_path, 0.9)
        assert (last.sent_bytes, last.seconds) == (80 + 2000, pytest.approx(4.75))
        before = figures.reached(run, tmp_path, 0.6)
        assert (before.sent_bytes, before.seconds) == (40, pytest.approx(2))

    def test_what_servers_send_counts_too(self, tmp_path):
        steps = [step(rank, n, 1.0, received=7) for rank in range(2) for n in range(1, 5)]
        recorded(tmp_path, *steps, trained(0, 104, received=50), trained(1, 104, received=50))
        run = result(evaluations=[score(2, 0.6)])
        assert figures.reached(run, tmp_path, 0.6).sent_bytes == 4 * 10  # no server: received is what others sent
        server = rank_of(2, 0, None, None, role="server", sent_bytes=156)
        run = result(evaluations=[score(2, 0.6)], ranks=[*document()["ranks"], server])
        assert figures.reached(run, tmp_path, 0.6).sent_bytes == 4 * (10 + 7)
        assert figures.reached(run, tmp_path, 0.9).sent_bytes == 8 * (10 + 7) + 100

    def test_a_worker_that_was_lost_does_not_make_it_quicker(self, tmp_path):
        recorded(tmp_path, *(step(0, n, 1.0) for n in range(1, 5)), step(1, 1, 1.0))
        assert figures.reached(result(), tmp_path, 0.9).seconds == pytest.approx(4)

    @pytest.mark.parametrize("content", [None, b"\xff\xfe"])
    def test_events_that_cannot_be_read_are_one_line(self, tmp_path, content):
        if content:
            (tmp_path / "events.jsonl").write_bytes(content)
        with pytest.raises(UserError, match=rf"^run {tmp_path.name}: events.jsonl cannot be read \("):
            figures.reached(result(), tmp_path, 0.9)


def test_a_worker_that_was_lost_counts_for_the_steps_it_did():
    whole = rank_of(0, 100, 0.5, 0.1)
    lost = rank_of(1, 10, 0.5, 0.1)
    assert figures.samples_per_second(result(ranks=[whole, lost])) == pytest.approx(12 + 1.2)
    lost = rank_of(1, 0, None, 0.1)  # after a resume it may have done none
    assert figures.samples_per_second(result(ranks=[whole, lost])) == pytest.approx(12)


def test_speed_up_of_whole_trainings():
    one = group(result(1.0, 0.0, nodes=1, samples_seen=48, seconds={"training": 6.0}))
    two = group(result(0.5, 0.0, samples_seen=96, seconds={"training": 6.0}))
    assert figures.speed_up(two, one, "training").value == pytest.approx(2)
    assert figures.speed_up(two, one).value == pytest.approx(2)
    assert figures.speed_up(group(result(seconds={"training": None})), one, "training") is None


def test_a_run_that_went_on_from_a_checkpoint_is_no_repeat_of_a_whole_one():
    runs = [(result(), Path("a")), (result(resumed_from={"run": "x", "step": 2}), Path("b")), (result(), Path("c"))]
    whole, resumed = grouping.grouped(runs)
    assert (len(whole.results), len(resumed.results)) == (2, 1)
    assert (whole.label, resumed.label) == ("FROM_STEP=0", "FROM_STEP=2")


def test_runs_of_one_spec_are_repeats():
    runs = [(result(nodes=1), Path("a")), (result(nodes=2), Path("b")), (result(nodes=1, status="failed"), Path("c"))]
    runs.append((result(0.7, nodes=1), Path("d")))
    one, two = grouping.grouped(runs)
    assert (one.label, two.label) == ("NODES=1", "NODES=2")
    assert (len(one.results), one.failed, one.folders) == (2, 1, (Path("a"), Path("d")))
    assert one.estimate(figures.step_seconds).value == pytest.approx(0.6)


def test_a_group_whose_runs_all_failed_stays_visible():
    (lost,) = grouping.grouped([(result(status="failed"), Path("a"))])
    assert (lost.results, lost.failed) == ((), 1)
    assert lost.label == "SYNC=ddp MODEL=cnn3 NODES=2 BATCH=12"


def test_cost_in_node_seconds():
    assert figures.node_seconds(result(nodes=4)) == 8
    assert json.dumps(figures.phase_seconds(result()))


def limited(cpus, memory=2**30) -> dict:
    return {"limits": [{"cpus": cpus, "memory_bytes": memory}] * 2}


def test_runs_under_other_limits_are_no_repeats_and_no_baseline():
    runs = [result(nodes=2, **limited(0.5)), result(nodes=2, **limited(1.0)), result(nodes=2, **limited(0.5, 2**31))]
    again = result(nodes=2, **limited(0.5))
    groups = grouping.grouped([(run, Path()) for run in (*runs, again)])
    assert [len(g.results) for g in groups] == [2, 1, 1]
    assert [g.label for g in groups] == ["CPUS=0.5 MEMORY=1024m", "CPUS=1 MEMORY=1024m", "CPUS=0.5 MEMORY=2048m"]
    alone = [Group(str(cpus), (result(nodes=1, **limited(cpus)),), (Path(),)) for cpus in (1.0, 0.5)]
    assert figures.baseline(groups[0], alone) is alone[1]
    assert figures.baseline(groups[2], alone) is None
