"""Verdicts on claims from runs whose figures are known; a claim that cannot be told is never told."""

from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError
from test_figures import result

from monitor.errors import UserError
from monitor.experiments.claims import FAILS, HOLDS, UNKNOWN, Claim, judge
from monitor.experiments.grouping import Group
from monitor.results.problem import first_problem
from monitor.results.result import Result
from trainer import events
from trainer.events import PHASES


def group(*runs: Result, folder: Path = Path()) -> Group:
    return Group("", runs, (folder,) * len(runs))


def timed(*seconds: float, **more) -> Group:
    return group(*(result(s, 0.0, **more) for s in seconds))


def claim(**said) -> Claim:
    return TypeAdapter(Claim).validate_python({"text": "a claim", **said})


def verdict(test: str, groups: dict, **needs) -> tuple[str, str]:
    found = judge(claim(test=test, **needs), groups)
    assert found.claim == "a claim"
    assert found.reason
    return found.verdict, found.figures


def lossy(*losses, distinct=48, seen=48) -> Group:
    data = {"key": "k", "train_samples": 1000}
    return group(*(result(train_loss=x, distinct_samples=distinct, samples_seen=seen, data=data) for x in losses))


class TestFaster:
    @pytest.mark.parametrize(
        ("slow", "says"),
        [
            ((2.0, 2.01, 1.99), HOLDS),
            ((1.0, 1.01, 0.99), UNKNOWN),  # the interval holds 1
            ((0.5, 0.51, 0.49), FAILS),
            ((2.0,), UNKNOWN),  # twice as slow, but measured once
            ((2.0, 2.0, 2.0), HOLDS),  # no variance
        ],
    )
    def test_the_whole_interval_decides(self, slow, says):
        found, told = verdict("faster", {"fast": timed(1.0, 1.02, 0.98), "slow": timed(*slow)}, of=["fast", "slow"])
        assert found == says
        assert told.startswith("slow takes ")

    def test_one_wrong_pair_of_a_chain_fails_it(self):
        groups = {"a": timed(1.0, 1.01), "b": timed(2.0, 2.01), "c": timed(1.5, 1.51)}
        assert verdict("faster", groups, of=["a", "b", "c"])[0] == FAILS
        assert verdict("faster", groups, of=["a", "c", "b"])[0] == HOLDS

    def test_no_steps_to_time(self):
        groups = {"a": timed(1.0, 1.0), "b": group(result([None, None], steps=1))}
        assert verdict("faster", groups, of=["a", "b"]) == (UNKNOWN, "")


class TestSpeedUp:
    @pytest.mark.parametrize(
        ("times", "says"),
        [
            ((0.5, 0.51, 0.49), HOLDS),
            ((2.0, 2.1, 1.9), FAILS),
            ((0.2, 0.2), FAILS),
            ((0.5,), UNKNOWN),
            ((0.9, 1.1), UNKNOWN),
        ],
    )
    def test_between_one_and_perfect(self, times, says):
        groups = {"one": timed(1.0, 1.01, 0.99, nodes=1), "four": timed(*times, nodes=4)}
        found, told = verdict("speed_up", groups, of="four", over="one", below=4, published=1.56)
        assert found == says
        assert told.endswith("(published: 1.56)")


class TestSameLoss:
    def test_within_the_tolerance(self):
        groups = {"a": lossy(2.0), "b": lossy(2.01), "c": lossy(2.5)}
        assert verdict("same_loss", groups, of=["a", "b"], tolerance=0.01)[0] == HOLDS
        assert verdict("same_loss", groups, of=["a", "b"], tolerance=0.001)[0] == FAILS
        assert verdict("same_loss", groups, of=["a", "b", "c"])[0] == FAILS

    def test_every_repeat_counts(self):
        assert verdict("same_loss", {"a": lossy(2.0), "b": lossy(2.0, 3.0)}, of=["a", "b"])[0] == FAILS

    def test_it_is_judged_on_sharded_data_only(self):
        same = {"a": lossy(2.0), "b": lossy(2.0, distinct=12)}
        assert verdict("same_loss", same, of=["a", "b"])[0] == UNKNOWN
        whole = {"a": lossy(2.0, distinct=996, seen=1500), "b": lossy(2.0, distinct=1000, seen=1500)}
        assert verdict("same_loss", whole, of=["a", "b"])[0] == HOLDS

    def test_ranks_that_saw_everything_may_have_shared_it(self):
        two = lossy(2.0, distinct=1000, seen=4000)
        assert len(two.results[0].ranks) > 1
        assert verdict("same_loss", {"a": two, "b": two}, of=["a", "b"])[0] == UNKNOWN

    def test_losses_of_nothing(self):
        assert verdict("same_loss", {"a": lossy(0.0), "b": lossy(0.0)}, of=["a", "b"])[0] == HOLDS

    def test_a_loss_that_is_not_finite(self):
        assert verdict("same_loss", {"a": lossy(2.0), "b": lossy(None)}, of=["a", "b"]) == (UNKNOWN, "")


class TestApartWithout:
    def first_losses(self, tmp_path, **losses) -> dict:
        groups = {}
        for name, loss in losses.items():
            (tmp_path / name).mkdir()
            step = events.Step(
                **{"rank": 0, "step": 1, "epoch": 1, "loss": loss, "accuracy": 0.1, "samples": 6, "sent_bytes": 0},
                **{"seconds": dict.fromkeys(PHASES, 0.0), "step_seconds": 1.0, "received_bytes": 0},
            )
            later = events.parse(events.to_line(step).replace('"step": 1', '"step": 2').replace(str(loss), "9.0"))
            (tmp_path / name / "events.jsonl").write_text("\n".join(map(events.to_line, (step, later))) + "\n")
            groups[name] = group(result(), folder=tmp_path / name)
        return groups

    @pytest.mark.parametrize(
        ("bare", "synced", "says"), [(2.4, 2.3001, HOLDS), (2.3001, 2.3001, FAILS), (2.4, 2.35, UNKNOWN)]
    )
    def test_the_first_loss_decides(self, tmp_path, bare, synced, says):
        groups = self.first_losses(tmp_path, one=2.3, bare=bare, synced=synced)
        assert verdict("apart_without", groups, alone="one", without="bare", with_it="synced")[0] == says


def test_bytes_are_counted():
    groups = {"few": group(result(nodes=1)), "many": group(result(nodes=4))}  # 1 and 4 MB a step
    assert verdict("fewer_bytes", groups, of="few", than="many", factor=3.5)[0] == HOLDS
    assert verdict("fewer_bytes", groups, of="few", than="many", factor=4.5)[0] == FAILS


@pytest.mark.parametrize(
    ("seconds", "says"), [((10.1, 10.2), HOLDS), ((12.0, 12.1), FAILS), ((10.0, 11.0), UNKNOWN), ((10.1,), UNKNOWN)]
)
def test_a_cost_within_bounds(seconds, says):
    groups = {"with": group(*(result(seconds={"training": s}) for s in seconds))}
    groups["without"] = group(*(result(seconds={"training": s}) for s in (10.0, 10.05)))
    assert verdict("costs_little", groups, of="with", over="without", most=1.05)[0] == says


def test_a_run_that_failed_leaves_the_claim_open():
    found = judge(claim(test="faster", of=["a", "b"]), {"a": timed(1.0, 1.0), "b": Group("", (), (), failed=2)})
    assert (found.verdict, found.reason) == (UNKNOWN, "no run of b finished")


def test_what_cannot_be_told_says_why():
    found = judge(claim(test="cannot_be_told", reason="it needs nodes of unequal speed"), {})
    assert (found.verdict, found.reason) == (UNKNOWN, "it needs nodes of unequal speed")


@pytest.mark.parametrize(
    ("said", "told_of"),
    [
        ({"test": "fastest"}, "'fastest'"),
        ({}, "test"),
        ({"test": "faster", "of": ["a", "b"], "runs": ["a"]}, "faster.runs: extra"),
        ({"test": "faster", "of": ["a"]}, "faster.of: list should have at least 2"),
        ({"test": "faster", "of": "ab"}, "faster.of = 'ab': input should be a valid list"),
        ({"test": "same_loss", "of": ["a", 2]}, "same_loss.of[1] = 2: input should be a valid string"),
        ({"test": "same_loss", "of": ["a", "b"], "tolerance": "0.1"}, "same_loss.tolerance = '0.1'"),
        ({"test": "same_loss", "of": ["a", "b"], "tolerance": -1}, "same_loss.tolerance = -1"),
        ({"test": "costs_little", "of": "a", "over": "b", "what": "foo"}, "costs_little.what = 'foo': input should be"),
        ({"test": "speed_up", "of": "a", "over": "b"}, "speed_up.below: field required"),
        ({"test": "speed_up", "of": "a", "over": "b", "below": 4, "published": "1.5"}, "speed_up.published = '1.5'"),
        ({"test": "speed_up", "of": "a", "over": "b", "below": True}, "speed_up.below = True"),
        ({"test": "cannot_be_told", "reason": 3}, "cannot_be_told.reason = 3"),
        ({"test": "cannot_be_told", "reason": "y", "text": 5}, "cannot_be_told.text = 5"),
    ],
)
def test_a_claim_that_is_no_claim_is_one_line(said, told_of):
    with pytest.raises(ValidationError) as error:
        claim(**said)
    assert told_of in first_problem(error.value)
    assert "\n" not in first_problem(error.value)


@pytest.mark.parametrize("of", [["a", "nobody"], ["a", "b | NODES=3"], ["a", "b"]])
def test_a_claim_of_runs_that_do_not_exist(of):
    with pytest.raises(UserError, match=r"claim 'a claim': (no|2) runs are called "):
        judge(claim(test="faster", of=of), {"a": timed(1.0), "b NODES=1": timed(1.0), "b NODES=2": timed(1.0)})


def test_one_of_several_cells_is_named_by_its_words():
    groups = {"psgd NODES=1 BATCH=8": timed(1.0, 1.0), "psgd NODES=2 BATCH=16": timed(3.0, 3.0)}
    groups["psgd with more NODES=2 BATCH=16"] = timed(9.0)
    found, told = verdict("faster", groups, of=["psgd | NODES=1", "psgd | BATCH=16 NODES=2"])
    assert found == HOLDS
    assert "takes 3.000" in told
