"""Comparisons as people and programs read them, and what cannot be compared."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from report_cases import write_document
from rich.console import Console
from test_figures import document, result

from monitor.errors import UserError
from monitor.experiments import compare_command, comparison
from monitor.experiments.grouping import Group
from monitor.results.result import Result
from monitor.results.table import text
from monitor.results.text import share
from monitor.run.progress import Progress
from trainer.events import Monitored

ARGS = SimpleNamespace(json=False)


def labelled(label: str, *runs: Result) -> Group:
    return Group(label, runs, (Path(),) * len(runs))


GROUPS = [
    labelled("one", result(1.0, 0.0, nodes=1, sync="single"), result(1.0, 0.0, nodes=1, sync="single")),
    labelled("four", result(0.5, 0.25, nodes=4), result(0.5, 0.25, nodes=4)),
    labelled("slow", result(4.0, 0.0, nodes=4)),
    Group("lost", (), (), failed=2),
]


def test_every_figure_of_a_row():
    one, four, slow, lost = comparison.rows(GROUPS)
    assert (four["label"], four["baseline"], four["runs"]) == ("four", "one", "2")
    assert four["step_seconds"].value == 0.5
    assert four["sync_seconds"].value == 0.25
    assert four["step_megabytes"].value == 4
    assert four["speed_up"].value == pytest.approx(2)
    assert four["efficiency"].value == pytest.approx(0.5)
    assert four["efficiency"].high == pytest.approx(0.5)
    assert four["speed_up_without_sync"].value == pytest.approx(4)
    assert four["node_seconds"].value == 8
    assert (slow["speed_up"].value, slow["speed_up"].known) == (pytest.approx(0.25), False)
    assert (one["speed_up"].value, one["speed_up"].known) == (1, False)
    assert lost == {name: None for name in lost} | {"label": "lost", "runs": "0, 2 failed"}


def test_no_run_on_one_node_is_no_speed_up():
    (row,) = comparison.rows([GROUPS[1]])
    assert (row["speed_up"], row["efficiency"], row["baseline"]) == (None, None, None)
    assert any(note.startswith("no speed-up:") for note in comparison.footnotes([row]))


def test_the_table_shows_intervals_where_there_are_some():
    column = next(c for c in comparison.step_columns() if c.name == "step_seconds")
    (row,) = comparison.rows([labelled("x", result(1.0), result(1.1))])
    shown = comparison.table_value(row["step_seconds"], column)
    assert text(shown, column.places) == "1.050 [0.415, 1.685]"  # t(0.975, 1) = 12.706
    (row,) = comparison.rows([labelled("x", result(1.0))])
    assert text(comparison.table_value(row["step_seconds"], column), column.places) == "1.000"
    assert text(comparison.table_value(None, column), column.places) == "-"


def test_an_accuracy_is_told_in_one_way_everywhere():
    (column,) = [column for column in comparison.outcome_columns() if column.name == "test_accuracy"]
    for group in (labelled("x", result(test_accuracy=0.9555)), labelled("x", *[result(test_accuracy=0.9555)] * 2)):
        (row,) = comparison.rows([group])
        shown = comparison.table_value(row["test_accuracy"], column)
        assert shown == 0.9555 and text(shown, column.places) == share(0.9555) == "95.5 %"
    assert text(None, column.places) == "-"
    say = Console(record=True, width=200)
    Progress(say, ["a"], 1).take(Monitored(rank=0, step=2, updates=None, samples=4, loss=1.0, accuracy=0.9555))
    assert say.export_text() == "evaluation at step 2: loss 1.000, accuracy 95.5 %\n"


def test_every_report_has_its_columns():
    headings = {c.heading for part in comparison.columns(0.8).values() for c in part}
    assert {"s/step", "training s", "train loss", "test loss", "accuracy", "sync", "s to 0.8", "MB to 0.8"} <= headings


def test_a_goal_that_was_not_reached_says_so(tmp_path):
    (tmp_path / "events.jsonl").write_text("")
    low = Group("low", (result(test_accuracy=0.5),), (tmp_path,))
    assert [low_row["goal_seconds"] for low_row in comparison.rows([low], goal=0.8)] == ["not reached"]
    assert comparison.rows([low], goal=0.4)[0]["goal_seconds"].value == 0


def test_a_goal_of_a_run_that_went_on_is_not_told(tmp_path):
    (tmp_path / "events.jsonl").write_text("")
    run = Group("x", (result(resumed_from={"run": "y", "step": 2}),), (tmp_path,))
    row = comparison.rows([run], goal=0.4)[0]
    assert (row["goal_seconds"], row["goal_bytes"]) == ("resumed", "resumed")
    assert any("resumed: " in note for note in comparison.footnotes([row]))


def test_programs_get_value_low_high_and_repeats():
    four = json.loads(json.dumps(comparison.records(GROUPS)))[1]
    assert four["step_seconds"] == {"value": 0.5, "low": 0.5, "high": 0.5, "repeats": 2}


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, more in (("a", {"nodes": 1}), ("b", {"nodes": 2}), ("c", {"status": "failed"})):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        made = document(id=name, **more)
        write_document(folder, made)
    for name, odd in (
        ("half", {"schema": 1, "status": "finished"}),
        ("odd", made | {"status": "finished", "ranks": [1]}),
    ):
        write_document(tmp_path / "runs" / name, odd)
    return tmp_path


def test_runs_are_named_by_spaces_or_commas(runs, capsys):
    assert compare_command.command({"RUNS": "a, b"}, ARGS) == 0
    out = capsys.readouterr().out
    assert "NODES=1" in out
    assert "NODES=2" in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({}, "RUNS= or SWEEP=: give one of them"),
        ({"RUNS": "a", "SWEEP": "s"}, "RUNS= or SWEEP=: give one of them"),
        ({"RUNS": " "}, "RUNS=: an empty list"),
        ({"RUNS": "a nobody"}, "run nobody: not found in runs"),
        ({"RUNS": "a c"}, "RUNS=c: it is failed, only finished runs can be compared"),
        ({"RUNS": "a", "GOAL": "80"}, "GOAL=80: an accuracy from 0 to 1"),
        ({"RUNS": "a", "GOAL": "high"}, "GOAL=high: an accuracy from 0 to 1"),
        ({"SWEEP": "s"}, "sweeps/s: no sweep there"),
        ({"RUNS": "a b a"}, "RUNS=a b a: a stands there twice"),
        ({"RUNS": "a ../runs/a"}, "RUNS=a ../runs/a: ../runs/a stands there twice"),
        ({"RUNS": "a b", "GOAL": "0.5"}, "run a: events.jsonl cannot be read"),
        ({"RUNS": "a half"}, "run half: its result.json is not one that syncbed wrote"),
        ({"RUNS": "a odd"}, "run odd: its result.json is not one that syncbed wrote"),
        ({"RUN": "a"}, "RUN=a: no such setting; did you mean RUNS?"),
    ],
)
def test_what_cannot_be_compared_is_one_line(runs, words, says):
    with pytest.raises(UserError) as error:
        compare_command.command(words, ARGS)
    assert str(error.value).startswith(says)
    assert "\n" not in str(error.value)
