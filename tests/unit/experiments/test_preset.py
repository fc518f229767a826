"""Presets: ours are whole at both scales, and what is wrong with one is found before anything runs."""

import pytest
from scripted import runtime_of

from monitor import console
from monitor.errors import UserError
from monitor.experiments import preset, reproduce
from monitor.run import request
from monitor.runtime import choice
from trainer.registry import SYNCS
from trainer.spec import RunSpec

GOOD = """
title = "t"
about = "a"
[words]
MODEL = "cnn3"
[scale.quick]
note = "n"
words = { STEPS = "3" }
repeats = 2
[[runs]]
name = "one"
words = { SYNC = "single" }
[[runs]]
name = "some"
words = { SYNC = "ddp,ring", NODES = "2" }
quick = { BATCH = "64" }
repeats = 1
[[claims]]
text = "c"
test = "faster"
of = ["some | SYNC=ddp", "one"]
"""
LOCAL = runtime_of("local")


@pytest.fixture
def planned(tmp_path, monkeypatch):
    """Plans the sweep of a preset, with data that is always there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(choice, "choose", lambda words: LOCAL)
    monkeypatch.setattr(reproduce, "available", lambda name, *_: {"DATA": name})

    def plan(name="p.toml", scale="quick", **words):
        wanted = preset.read(name, scale)
        job = reproduce.plan(wanted, tmp_path / "x", {}, words, console.console())
        reproduce.judge(wanted, job)
        return job

    return plan


@pytest.mark.parametrize("scale", ["quick", "full"])
@pytest.mark.parametrize("name", ["r1", "r2", "r3", "r4", "r5"])
def test_ours_can_be_run(planned, name, scale):
    job = planned(name, scale)
    assert job.notes[0].startswith(f"SCALE={scale}: ")
    left_out = [note for note in job.notes[1:] if "CPUS=" not in note]  # limits are of clusters only
    assert left_out == []
    specs = [
        RunSpec.from_settings({n: v for n, v in c.words.items() if n not in request.NOT_IN_SPEC}) for c in job.cells
    ]
    assert len(set(specs)) == len(specs)
    assert {spec.sync for spec in specs} <= set(SYNCS)


def test_the_reports_settings_are_those_of_the_report(planned):
    ddp = next(cell for cell in planned("r1", "full").cells if cell.group == "DDP")
    spec = RunSpec.from_settings({n: v for n, v in ddp.words.items() if n != "RUNTIME"})
    assert (spec.model, spec.nodes, spec.batch, spec.steps, spec.seed) == ("vgg11", 4, 256, 40, 42)
    competition = next(cell for cell in planned("r3", "full").cells if cell.group == "competition")
    assert competition.words["STEPS"] == "14500"
    assert "EPOCHS" not in competition.words
    table = {(c.words["NODES"], c.words["BATCH"]) for c in planned("r4", "full").cells if c.group == "AlexNet"}
    assert table == {(n, b) for n in ("1", "2", "4") for b in ("32", "64", "128", "256")}
    workers = [c.words.get("NPROC", c.words["NODES"]) for c in planned("r5", "full").cells]
    assert workers == ["1", "2", "3", "4", "5"] * 2


def test_lists_scales_and_repeats(planned, tmp_path):
    (tmp_path / "p.toml").write_text(GOOD)
    cells = planned().cells
    assert [(c.group, c.words["SYNC"], c.words.get("BATCH"), c.words["STEPS"], c.repeats) for c in cells] == [
        ("one", "single", None, "3", 2),
        ("some", "ddp", "64", "3", 1),
        ("some", "ring", "64", "3", 1),
    ]
    assert [c.repeats for c in planned(REPEATS="5").cells] == [5, 1, 1]
    assert {c.words["STEPS"] for c in planned(STEPS="9").cells} == {"9"}


def test_a_cluster_that_is_too_small_is_refused_with_what_would_do(planned, monkeypatch):
    monkeypatch.setattr(choice, "choose", lambda words: runtime_of("docker"))
    with pytest.raises(UserError, match=r"REPORT=r5: it needs NODES=5, the cluster has 4; `make cluster-up NODES=5`"):
        planned("r5")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("title", "titel"), "preset p: title: field required"),
        (('about = "a"', 'about = "a"\nmore = 1'), "preset p: more = 1: extra inputs"),
        (('about = "a"', ""), "preset p: about: field required"),
        (('name = "some"', 'name = "one"'), "preset p: two runs are called one"),
        (('SYNC = "single"', "SYNC = 1"), "preset p: runs[0].words.SYNC = 1: input should be a valid string"),
        (('SYNC = "single"', 'SYNC = "singel"'), "SYNC=singel: one of: single"),
        (('test = "faster"', 'test = "fastest"'), "preset p: claims[0]: input tag 'fastest' found using 'test' does"),
        (('of = ["some | SYNC=ddp", "one"]', ""), "preset p: claims[0].faster.of: field required"),
        (("some | SYNC=ddp", "some | SYNC=gossip"), "claim 'c': no runs are called 'some | SYNC=gossip'"),
        (("some | SYNC=ddp", "some"), "claim 'c': 2 runs are called 'some'"),
        (('title = "t"', "title = "), "REPORT=p.toml: cannot be read: Invalid value"),
        (("[[claims]]", '[[tables]]\nkind = "pie"\n[[claims]]'), "preset p: tables[0]: input tag 'pie' found using"),
        (("[[claims]]", '[[tables]]\nkind = "nodes"\nruns = ["x"]\n[[claims]]'), "preset p: table nodes: no runs are"),
        (
            ("[[claims]]", '[[tables]]\nkind = "losses"\nevery = 0\n[[claims]]'),
            "preset p: tables[0].losses.every = 0: ",
        ),
        (("[[claims]]", '[[tables]]\nkind = "nodes"\nevery = 2\n[[claims]]'), "preset p: tables[0].nodes.every = 2: "),
        (("repeats = 2", 'repeats = "2"'), "preset p: scale.quick.repeats = '2': input should be a valid integer"),
        (("repeats = 2", "repeats = 0"), "preset p: scale.quick.repeats = 0: input should be greater than 0"),
        (("repeats = 1", "repeats = 0"), "preset p: runs[1].repeats = 0: input should be greater than 0"),
        (("quick = { BATCH", "quikc = { BATCH"), "preset p: runs some: quikc: no such key, and no scale of that name"),
        (("quick = { BATCH", "quick = 3 #"), "preset p: runs[1].quick = 3: input should be a valid dictionary"),
        (("[[claims]]", '[published]\nwhat = "step"\n[[claims]]'), "preset p: published.values: field required"),
        (
            ("[[claims]]", '[published]\nwhat = "step"\nvalues = { one = "1" }\n[[claims]]'),
            "preset p: published.values.one = '1': input should be a valid number",
        ),
        (
            ("[[claims]]", '[published]\nwhat = "step"\nvalues = { two = 1.0 }\n[[claims]]'),
            "preset p: published: no runs are called two; there are: one, some",
        ),
    ],
)
def test_what_is_wrong_with_a_preset_is_one_line(planned, tmp_path, change, says):
    assert change[0] in GOOD
    (tmp_path / "p.toml").write_text(GOOD.replace(*change, 1))
    with pytest.raises(Exception) as error:
        planned()
    assert str(error.value).startswith(says)
    assert "\n" not in str(error.value)


def test_reports_and_scales_that_do_not_exist():
    with pytest.raises(UserError, match=r"REPORT=r9: one of: r1, r2, r3, r4, r5; or the path"):
        preset.read("r9", "quick")
    with pytest.raises(UserError, match=r"SCALE=huge: one of: quick, full"):
        preset.read("r1", "huge")
    with pytest.raises(UserError, match=r"REPORT=../r1: one of"):
        preset.read("../r1", "quick")


def test_a_preset_whose_runs_were_edited_does_not_go_on_with_the_old_ones(tmp_path):
    def digest(text: str) -> str:
        (tmp_path / "p.toml").write_text(text)
        return preset.read(str(tmp_path / "p.toml"), "quick").digest

    same = GOOD.replace('text = "c"', 'text = "d"').replace('note = "n"', 'note = "m"')
    assert digest(same) == digest(GOOD)
    for change in (
        ('STEPS = "3"', 'STEPS = "4"'),
        ("repeats = 2", "repeats = 3"),
        ('"64"', '"32"'),
        ('"one"', '"won"'),
    ):
        assert digest(GOOD.replace(*change)) != digest(GOOD), change


UNEQUAL = """
[[runs]]
name = "unequal"
words = { SYNC = "ddp", NODES = "2", CPUS = "0.5,0.2" }
[[claims]]
text = "unequal nodes are slower"
test = "faster"
of = ["one", "unequal"]
"""


def test_what_only_a_cluster_can_do_is_left_out_and_its_claims_stay_open(planned, tmp_path):
    (tmp_path / "p.toml").write_text(GOOD + UNEQUAL)
    job = planned()
    assert "unequal" not in {cell.group for cell in job.cells}
    assert job.notes[1:] == [
        "left out: unequal (CPUS=0.5,0.2: processes of this machine have no limits and links of their own; "
        "RUNTIME=docker would do)"
    ]
    verdict = reproduce.judge(preset.read("p.toml", "quick"), job).verdicts[-1]
    assert (verdict.verdict, verdict.reason) == ("cannot be told here", "no run of unequal finished")


def test_a_preset_of_which_nothing_can_be_run_says_why(planned, tmp_path):
    text = GOOD.replace('MODEL = "cnn3"', 'MODEL = "cnn3"\nCPUS = "0.5"')
    (tmp_path / "p.toml").write_text(text)
    with pytest.raises(UserError, match=r"REPORT=p: nothing of it can be run here: one \(CPUS=0.5: processes"):
        planned()


def test_a_cluster_does_it(planned, tmp_path, monkeypatch):
    monkeypatch.setattr(choice, "choose", lambda words: runtime_of("docker"))
    (tmp_path / "p.toml").write_text(GOOD + UNEQUAL)
    assert [cell.words["CPUS"] for cell in planned().cells if cell.group == "unequal"] == ["0.5,0.2"]


def test_settings_in_place_of_the_presets_own_are_said(planned, tmp_path):
    (tmp_path / "p.toml").write_text(GOOD)
    assert planned(MODEL="logistic", REPEATS="1").notes[1] == (
        "MODEL=logistic in place of the preset's own: what it says of sizes and published figures does not hold"
    )


def test_a_preset_that_is_not_there_is_said():
    with pytest.raises(UserError, match=r"REPORT=mine.toml: no such file; one of: r1, "):
        preset.read("mine.toml", "quick")
