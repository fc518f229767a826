"""Results of older versions are read, shown, reported and compared; what is no result is one line.

fixtures/results/schema-1 is a run of the last version that wrote schema 1, oldest is in the form of the first one, with
a strategy and a setting that no longer exist.
"""

import json
import shutil
from pathlib import Path

import pytest
from report_cases import begun, ended, write_document

from monitor import cli
from monitor.errors import UserError
from monitor.results import store
from monitor.results.parts import PhaseSeconds
from monitor.results.result import Result
from monitor.results.upgrade import upgrade
from trainer.events import PHASES
from trainer.spec import RunSpec

RUNS = Path(__file__).parents[2] / "fixtures" / "results"
OLD = ["schema-1", "oldest"]


@pytest.fixture
def runs(tmp_path) -> Path:
    return Path(shutil.copytree(RUNS, tmp_path / "runs"))


def test_what_is_written_is_as_it_was_but_for_the_schema():
    text = (RUNS / "schema-1" / "result.json").read_text()
    document = store.load("schema-1", RUNS).document()
    assert document["schema"] == 2
    assert json.dumps(document | {"schema": 1}, indent=1) + "\n" == text


def test_what_the_oldest_lack_is_there():
    result = store.load("oldest", RUNS)
    assert (result.limits, result.links, result.faults, result.evaluations, result.restarts) == ([], [], [], [], [])
    assert (result.resumed_from, result.data.key, result.ranks[0].role) == (None, "cifar10", "worker")
    assert (result.spec.nproc, result.spec.shares, result.spec.precision) == (1, None, "fp32")
    assert result.spec.values()["fan_in"] == 4


@pytest.mark.parametrize("run", OLD)
def test_it_is_shown_and_reported(runs, run, capsys):
    assert cli.main(["show", run, f"RUNS_DIR={runs}"]) == 0
    assert "finished" in capsys.readouterr().out
    assert cli.main(["show", "--json", run, f"RUNS_DIR={runs}"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((runs / run / "result.json").read_text())
    assert cli.main(["report", run, f"RUNS_DIR={runs}"]) == 0
    assert "Classification report" in (runs / run / "report.html").read_text()


def test_they_are_listed_and_compared(runs, capsys):
    assert cli.main(["runs", f"RUNS_DIR={runs}"]) == 0
    lines = [line.split()[:4] for line in capsys.readouterr().out.splitlines()]
    assert lines[1:] == [["schema-1", "finished", "local", "ddp"], ["oldest", "finished", "docker", "tree"]]
    assert cli.main(["compare", f"RUNS={' '.join(OLD)}", f"RUNS_DIR={runs}"]) == 0
    assert "SYNC=tree" in capsys.readouterr().out


def test_fields_that_are_not_known_are_passed_over(tmp_path):
    write_document(tmp_path / "x", ended("x", weather="fine", seconds={"training": 2.0, "lunch": 1.0}))
    assert store.load("x", tmp_path).seconds.training == 2.0


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"steps": "4"}, "steps = '4': input should be a valid integer"),
        ({"train_loss": "high"}, "train_loss = 'high': input should be a number"),
        ({"train_loss": float("nan")}, "train_loss = nan: input should be a number"),
        ({"ranks": [1]}, "ranks[0] = 1: input should be a valid dictionary"),
        ({"status": "done"}, "status = 'done': input should be 'running', 'finished' or 'failed'"),
        ({"host": None}, "host = None: input should be a valid dictionary"),
        ({"spec": {"model": "vgg11"}}, "spec.sync: field required"),
        (
            {"classes": ["a"], "per_class": [], "confusion_matrix": [[1], [2]]},
            "per_class and confusion_matrix have a row",
        ),
    ],
)
def test_a_damaged_one_is_one_line_that_names_the_field(tmp_path, changes, says):
    write_document(tmp_path / "x", ended("x") | changes)
    with pytest.raises(UserError) as error:
        store.load("x", tmp_path)
    assert str(error.value).startswith(f"run x: its result.json is not one that syncbed wrote ({says}")
    assert "\n" not in str(error.value)


def test_a_finished_run_has_what_figures_need(tmp_path):
    write_document(tmp_path / "x", begun("x", "finished"))
    with pytest.raises(UserError, match="a finished run has steps"):
        store.load("x", tmp_path)


def test_halves_of_letters_are_replaced():
    result = Result.model_validate(ended("x", warnings=["a\ud800b"], classes=["\udfff"]))
    assert (result.warnings, result.classes) == (["a\ufffdb"], ["\ufffd"])


def test_a_document_is_not_changed_by_its_upgrade():
    document = json.loads((RUNS / "oldest" / "result.json").read_text())
    before = json.dumps(document)
    upgrade(document)
    assert json.dumps(document) == before


def test_settings_keep_the_order_of_the_spec_and_phases_that_of_a_step():
    spec = Result.model_validate(begun("x")).spec
    assert list(spec.values()) == list(RunSpec.setting_names())
    assert tuple(PhaseSeconds.model_fields) == PHASES
