"""Sweeps: which combinations, in which order, what is skipped and tried again. Runs are scripted; nothing trains."""

import errno
import json
import os
import signal
from dataclasses import asdict
from types import SimpleNamespace

import pytest
from report_cases import ended, write_document
from scripted import runtime_of
from test_figures import rank_of

from monitor import console
from monitor.errors import Busy, RunFailed, UserError
from monitor.experiments import carry_out, publishing, sweep, sweep_command
from monitor.interrupt import SIGNALS
from monitor.results import store, text
from monitor.run import launch
from monitor.runtime import choice
from trainer.spec import RunSpec, SpecError

ARGS = SimpleNamespace(json=False)


class Runs:
    """Stands in for `run.run`: notes what it was asked, leaves a result; `fails` maps words to what happens."""

    def __init__(self):
        self.asked, self.fails, self.count = [], {}, 0

    def __call__(self, request, say, began, stop):
        folder, words = request.runs, {"RUNTIME": request.place.runtime, **request.spec, **request.conditions}
        self.asked.append(words)
        self.count += 1
        failure = next((what for word, what in self.fails.items() if word in map("=".join, words.items())), None)
        if isinstance(failure, BaseException):
            raise failure
        stop.is_requested = failure == "interrupted"
        spec = RunSpec.from_settings(request.spec)
        name = f"run-{self.count}"
        scores = {"train_loss": 2.0, "test_loss": 2.1, "test_accuracy": 0.5}
        document = ended(name, runtime="local", spec=asdict(spec), steps=3, seconds={"training": 2.0}, **scores)
        document |= {
            "status": "failed" if failure else "finished",
            "error": {"kind": failure, "message": f"it was {failure}"} if failure else None,
            "ranks": [rank_of(rank, 3, 0.5, 0.1) for rank in range(spec.workers)],
        }
        path = sweep_command.Path(folder) / name
        write_document(path, document)
        (path / "events.jsonl").write_text("")
        return store.load(name, path.parent)


@pytest.fixture
def runs(monkeypatch, tmp_path):
    made = Runs()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "run", made)
    monkeypatch.setattr(publishing, "publish", lambda *_: None)  # pages have tests of their own
    listen = carry_out.Stop.listen
    monkeypatch.setattr(carry_out.Stop, "listen", lambda stop: stop)
    made.listens = lambda: monkeypatch.setattr(carry_out.Stop, "listen", listen)
    monkeypatch.setattr(choice, "choose", lambda words: runtime_of("local"))
    return made


def start(**words) -> int:
    return sweep_command.command(words, ARGS)


def kept(name: str) -> sweep.Sweep:
    return sweep.load(sweep_command.Path("sweeps") / name)


def test_the_product_of_all_lists_there_and_back(runs, capsys):
    assert start(SYNC="ddp,ring", NODES="1,2", STEPS="3", REPEATS="2", NAME="s") == 0
    there = [("ddp", "1"), ("ddp", "2"), ("ring", "1"), ("ring", "2")]
    assert [(words["SYNC"], words["NODES"]) for words in runs.asked] == there + there[::-1]
    assert {(words["STEPS"], words["RUNTIME"]) for words in runs.asked} == {("3", "local")}
    out = capsys.readouterr().out
    assert "[1/8] SYNC=ddp NODES=1  repeat 1 of 2\n" in out
    assert "[8/8] SYNC=ddp NODES=1  repeat 2 of 2  0 s left" in out


def test_the_same_command_skips_what_is_finished_and_tries_again_what_failed(runs, capsys):
    words = {"SYNC": "ddp,ring", "NODES": "2", "NAME": "s"}
    runs.fails = {"SYNC=ring": "killed"}
    assert start(**words) == 1
    assert "failed: it was killed" in capsys.readouterr().out
    assert [t.error for t in kept("s").failures()] == ["it was killed"]
    runs.fails, runs.asked = {}, []
    assert start(**words) == 0
    assert [asked["SYNC"] for asked in runs.asked] == ["ring"]
    assert kept("s").failures() == []
    runs.asked = []
    assert start(**words) == 0
    assert runs.asked == []
    assert "2 of 2 runs are finished already" in capsys.readouterr().out


def test_a_run_that_was_removed_is_run_again(runs):
    start(SYNC="ddp,ring", NODES="2", NAME="s")
    (sweep_command.Path("sweeps/s/run-1/result.json")).unlink()
    runs.asked = []
    start(SYNC="ddp,ring", NODES="2", NAME="s")
    assert [asked["SYNC"] for asked in runs.asked] == ["ddp"]


@pytest.mark.parametrize("error", [RunFailed("the engine went away"), SpecError("BATCH", 9, "too large")])
def test_a_cell_that_comes_to_no_run_is_recorded_and_the_rest_goes_on(runs, error):
    runs.fails = {"SYNC=ddp": error}
    assert start(SYNC="ddp,ring", NODES="2", NAME="s") == 1
    assert [(t.run, t.error) for t in kept("s").tries] == [(None, str(error)), ("run-2", None)]


def test_a_signal_stops_it_and_the_cell_is_not_done(runs, capsys):
    runs.fails = {"SYNC=ddp": "interrupted"}
    assert start(SYNC="ddp,ring", NODES="2", NAME="s") == 1
    assert len(runs.asked) == 1
    assert "the same command goes on from here" in capsys.readouterr().out
    assert kept("s").tries == []


def test_a_signal_stops_it_in_any_of_its_runs(runs):
    class Signalled(Runs):
        def __call__(self, words, say, began, stop):
            stop.running()
            if len(self.asked) == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().__call__(words, say, began, SimpleNamespace())

    runs.__class__ = Signalled
    runs.listens()
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        assert start(SYNC="ddp,ring,gossip", NODES="2", NAME="s") == 1
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert [asked["SYNC"] for asked in runs.asked] == ["ddp", "ring"]


def test_nodes_that_another_run_holds_end_it(runs):
    runs.fails = {"SYNC=ddp": Busy("2026-x")}
    with pytest.raises(Busy):
        start(SYNC="ddp,ring", NODES="2")


def test_combinations_that_cannot_be_are_left_out_and_said(runs, capsys):
    assert start(SYNC="single,ddp", NODES="1,2", NAME="s") == 0
    assert [(asked["SYNC"], asked["NODES"]) for asked in runs.asked] == [("single", "1"), ("ddp", "1"), ("ddp", "2")]
    out = capsys.readouterr().out
    assert "left out: SYNC=single NODES=2 (NODES=2: SYNC=single is one replica; leave NODES out or give 1)" in out


def test_the_clusters_nodes_are_the_default_where_a_strategy_has_several(runs):
    start(SYNC="single,ddp", NAME="s")
    assert [asked.get("NODES") for asked in runs.asked] == [None, "4"]


def test_shares_are_lists_themselves(runs):
    start(SHARES="2,1,1/1,1,1", NODES="3", BATCH="12", NAME="s")
    assert [asked["SHARES"] for asked in runs.asked] == ["2,1,1", "1,1,1"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"SYNC": "ddp,"}, "SYNC=ddp,: a list with an empty value"),
        ({"SYNC": ""}, "SYNC=: a list with an empty value"),
        ({"SYNC": "ddp,ddp"}, "SYNC=ddp,ddp: ddp stands there twice"),
        ({"SYNC": "ddp,dpp"}, "SYNC=dpp: one of: single, ddp"),
        ({"NODES": "2,64"}, "NODES=64: a whole number from 1 to 16"),
        ({"SYNC": "ring", "H": "4,8"}, "H=4: SYNC=ring does not take it"),
        ({"KEEP": "yes"}, "KEEP=yes: 0 or 1"),
        ({"REPEATS": "0"}, "REPEATS=0: a whole number from 1 to 100"),
        ({"REPEATS": "1,2"}, "REPEATS=1,2: a whole number"),
        ({"NAME": "../x"}, "NAME=../x: letters, digits"),
        ({"RESUME": "latest"}, "RESUME=latest: goes with a single run"),
        ({"SEED": ",".join(map(str, range(40))), "H": ",".join(map(str, range(1, 40)))}, "1,560 combinations: a sweep"),
        ({"SWEEPS_DIR": "~nobody99/x"}, "SWEEPS_DIR=~nobody99/x: "),
        ({"SYNK": "ddp"}, "SYNK=ddp: no such setting; did you mean SYNC?"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_written(runs, words, says, tmp_path):
    with pytest.raises((UserError, SpecError)) as error:
        start(**words)
    assert str(error.value).startswith(says)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_another_sweep_is_refused(runs):
    start(SYNC="ddp", NODES="2", NAME="s")
    with pytest.raises(UserError, match=r"sweeps/s: is a sweep with NODES=2, this is one with NODES=2,4; .* NAME="):
        start(SYNC="ddp", NODES="2,4", NAME="s")
    with pytest.raises(UserError, match=r"is a sweep with no STEPS, this is one with STEPS=9"):
        start(SYNC="ddp", NODES="2", STEPS="9", NAME="s")


def test_other_settings_have_another_folder(runs):
    start(SYNC="ddp", NODES="2")
    start(SYNC="ring", NODES="2")
    start(NODES="2", SYNC="ring")
    assert len(list(sweep_command.Path("sweeps").iterdir())) == 2


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 9}', '{"schema": 1}', '{"schema": "x"}'])
def test_a_half_written_sweep_is_one_line(text, tmp_path):
    (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(UserError) as error:
        sweep.load(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("words", "left"), [({}, False), ({"KEEP": "0"}, False), ({"KEEP": "1"}, True)])
def test_checkpoints_go_unless_they_are_wanted(runs, words, left):
    class Leaves(Runs):
        def __call__(self, words, say, began, stop):
            result = super().__call__(words, say, began, stop)
            (sweep_command.Path("sweeps/s") / result.id / "checkpoints" / "step-000003").mkdir(parents=True)
            return result

    runs.__class__ = Leaves
    assert start(SYNC="ddp", NODES="2", NAME="s", **words) == 0
    assert sweep_command.Path("sweeps/s/run-1/checkpoints").exists() == left
    assert sweep_command.Path("sweeps/s/run-1/result.json").exists()


def test_two_at_once_are_refused(runs):
    start(SYNC="ddp", NODES="2", NAME="s")
    with (
        carry_out.alone(sweep_command.Path("sweeps/s")),
        pytest.raises(UserError, match="another sweep works in it now"),
    ):
        start(SYNC="ddp", NODES="2", NAME="s")


def test_one_that_is_refused_leaves_the_others_tries_alone(runs, monkeypatch):
    start(SYNC="ddp,ring", NODES="2", NAME="s")
    looked = kept("s")  # read by a second one before the first had written its last try
    looked.tries.clear()
    monkeypatch.setattr(sweep, "load_matching", lambda folder, settings: looked)
    with (
        carry_out.alone(sweep_command.Path("sweeps/s")),
        pytest.raises(UserError, match="another sweep works in it now"),
    ):
        start(SYNC="ddp,ring", NODES="2", NAME="s")
    assert len(kept("s").tries) == 2


@pytest.mark.parametrize("begun", [True, False])
def test_what_another_one_did_since_it_was_looked_at_counts(runs, begun):
    words = {"SYNC": "ddp,ring", "NODES": "2"}
    folder = sweep_command.Path("sweeps/s")
    mine = sweep_command.plan(folder, words)
    if begun:
        folder.mkdir(parents=True)
        mine.save()
    start(**words, NAME="s")
    runs.asked = []
    assert carry_out.carry_out(mine, console.console()) == 0
    assert runs.asked == []
    assert len(mine.tries) == len(kept("s").tries) == 2


def test_another_sweep_of_that_name_that_began_meanwhile_is_left_alone(runs):
    mine = sweep_command.plan(sweep_command.Path("sweeps/s"), {"SYNC": "gossip", "NODES": "2"})
    start(SYNC="ddp,ring", NODES="2", NAME="s")
    with pytest.raises(UserError, match="is a sweep with SYNC=ddp,ring, this is one with SYNC=gossip"):
        carry_out.carry_out(mine, console.console())
    assert kept("s").settings["SYNC"] == "ddp,ring"


HOLLOW = {key: {} for key in ended("x")} | {"schema": 1, "status": "finished", "ranks": [{"rank": 0}]}


@pytest.mark.parametrize("damage", ["{", '{"schema": 1, "status": "finished"}', json.dumps(HOLLOW), None, "failed"])
def test_a_result_that_is_no_more_one_of_a_finished_run_is_made_again(runs, damage):
    start(SYNC="ddp,ring", NODES="2", NAME="s")
    path = sweep_command.Path("sweeps/s/run-1/result.json")
    if damage == "failed":
        damage = json.dumps(json.loads(path.read_text()) | {"status": "failed"})
    path.write_text(damage) if damage else path.unlink()
    assert [len(kept("s").results(cell)) for cell in (0, 1)] == [0, 1]
    runs.asked = []
    assert start(SYNC="ddp,ring", NODES="2", NAME="s") == 0
    assert [asked["SYNC"] for asked in runs.asked] == ["ddp"]


@pytest.mark.parametrize("name", ["sweep.json", ".lock"])
def test_a_folder_that_cannot_be_written_is_one_line(runs, name):
    (sweep_command.Path("sweeps/s") / name).mkdir(parents=True)
    with pytest.raises(UserError) as error:
        start(SYNC="ddp", NODES="2", NAME="s")
    assert str(error.value).startswith("sweeps/s: ")
    assert runs.asked == []


def test_a_disk_that_is_full_leaves_the_sweep_as_it_was(runs, monkeypatch):
    start(SYNC="ddp", NODES="2", NAME="s")
    job, before = kept("s"), sweep_command.Path("sweeps/s/sweep.json").read_text()

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left on device"):
        job.save()
    assert sweep_command.Path("sweeps/s/sweep.json").read_text() == before
    assert not list(sweep_command.Path("sweeps/s").glob("*.part"))


def test_what_is_left_is_told_from_what_cells_took():
    cells = [sweep.Cell({"SYNC": name}, 2) for name in ("ddp", "ring", "gossip")]
    job = sweep.Sweep(sweep_command.Path("x"), {}, cells)
    assert job.seconds_left() is None
    job.tries = [sweep.Try(0, 1, "a", 10.0), sweep.Try(1, 1, "b", 30.0), sweep.Try(2, 1, "c", 90.0, "killed")]
    # no result of any is there, so all six are open: 2 of 10 s, 2 of 30 s, 2 of the mean, 20 s
    assert job.seconds_left() == pytest.approx(120)
    assert [text.duration(s) for s in (40, 720, 12600)] == ["40 s", "12 min", "3.5 h"]


def test_its_end_is_a_table_of_all_cells(runs, capsys, monkeypatch):
    told = []
    monkeypatch.setattr(publishing, "report_sweep", lambda done, say, as_json: told.append(done))
    start(SYNC="ddp,ring", NODES="2", NAME="s")
    assert [len(told[0].results(cell)) for cell in (0, 1)] == [1, 1]
    assert json.loads(sweep_command.Path("sweeps/s/sweep.json").read_text())["schema"] == sweep.SCHEMA
    assert text.mean(t.seconds for t in told[0].tries) >= 0
