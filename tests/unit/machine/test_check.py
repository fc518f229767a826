"""`syncbed check`: a line for each thing that is wrong with a received folder."""

import json
import os
import socket

import pytest
from ports import free_port
from report_cases import write_run

from monitor import cli
from monitor.results import tensorboard


@pytest.fixture(autouse=True)
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_run(tmp_path / "runs" / "r")


def check(word, capsys):
    code = cli.main(["check", f"RUN={word}", "--json"])
    return code, json.loads(capsys.readouterr().out)["problems"]


def test_a_whole_run_has_nothing_wrong(run, capsys):
    assert check("runs/r", capsys) == check("r", capsys) == (0, [])


@pytest.mark.parametrize("name", ["result.json", "events.jsonl", "metrics.csv", "report"])
def test_a_part_that_is_a_link_is_named(run, capsys, name):
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to("/dev/zero")
    code, lines = check("r", capsys)
    assert code == 1 and any(f"{name} is a symbolic link" in line for line in lines)


@pytest.mark.parametrize("name", ["sweep.json", "model.json", "manifest.json"])
@pytest.mark.parametrize("content", ["[" * 100_000, "{}", "[]", '{"schema": 1, "sha256": 7}', None])
def test_what_cannot_be_read_is_one_line(tmp_path, capsys, name, content):
    (tmp_path / "got").mkdir()
    if content is None:
        os.mkfifo(tmp_path / "got" / name)
    else:
        (tmp_path / "got" / name).write_text(content)
    code, lines = check("got", capsys)
    assert code == 1 and lines and all("\n" not in line and len(line) < 400 for line in lines)


def test_a_folder_of_nothing_and_no_folder(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    assert check("empty", capsys)[0] == check("link", capsys)[0] == 1
    assert cli.main(["check", "RUN=nothing"]) == cli.main(["check"]) == 2


TRY = {"cell": 0, "repeat": 1, "run": "r", "seconds": 1.0}
SWEEP = {"schema": 1, "asked": {}, "cells": [{"words": {}, "repeats": 1}], "notes": [], "tries": [TRY], "folder": "s"}


@pytest.mark.parametrize(
    "changes",
    [{"tries": [TRY | {"run": name}]} for name in ("../r", "/etc", "..", "a/b", 3)]
    + [{"cells": [{"words": {}, "repeats": n}]} for n in (10**15, 0, -1, "1", True)]
    + [{"cells": []}, {"asked": []}, {"notes": "text"}, {"tries": [TRY | {"seconds": "1"}]}],
)
def test_a_sweep_names_runs_beside_it_alone(tmp_path, capsys, changes):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "sweep.json").write_text(json.dumps(SWEEP))
    assert check("s", capsys) == (0, [])
    (tmp_path / "s" / "sweep.json").write_text(json.dumps(SWEEP | changes))
    code, lines = check("s", capsys)
    assert code == 1 and "sweep.json cannot be read" in lines[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"cells": [{"words": {}, "repeats": 100_001}]},
        {"cells": [{"words": {}, "repeats": 100}] * 1001},
        {"cells": [{"words": {}, "repeats": 1}] * 3001},
        {"cells": [{"words": dict.fromkeys(map(str, range(201)), ""), "repeats": 1}]},
        {"cells": [{"words": {}, "repeats": 1, "group": [1]}]},
        {"tries": [TRY, TRY | {"repeat": 2}]},
        {"tries": [TRY | {"cell": [0]}]},
        {"tries": [TRY | {"repeat": "1"}]},
    ],
    ids=["repeats", "runs", "cells", "words", "group", "a run twice", "a cell", "a repeat"],
)
def test_a_sweep_is_no_larger_than_sweeps_are(tmp_path, capsys, changes):
    """A file of 30 kB may ask for 10 million runs to be looked for, or for one run under 1000 names."""
    (tmp_path / "sweeps" / "s").mkdir(parents=True)
    (tmp_path / "sweeps" / "s" / "sweep.json").write_text(json.dumps(SWEEP | changes))
    code, lines = check("sweeps/s", capsys)
    assert code == 1 and "sweep.json cannot be read" in lines[0]
    assert cli.main(["compare", "SWEEP=s"]) == 2
    assert len(capsys.readouterr().err) < 400


@pytest.mark.parametrize("kind", ["link", "folder link", "pipe", "socket"])
@pytest.mark.parametrize(
    "place", ["tensorboard/rank-0", "prometheus", "report/deep", "checkpoints/step-000004", "export"]
)
def test_special_files_are_named_however_deep_and_tensorboard_is_not_started(run, capsys, monkeypatch, kind, place):
    """TensorBoard opens whatever it finds below the folder of runs."""
    started = []
    monkeypatch.setattr(tensorboard.os, "execv", lambda *command: started.append(command))
    monkeypatch.setattr(tensorboard.Path, "with_name", lambda path, name: run)
    port = f"PORT={free_port()}"
    (run / place).mkdir(parents=True)
    assert cli.main(["tensorboard", port]) == 0 and len(started) == 1
    path = run / place / "events.out.tfevents.1"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(os.path.relpath(path))
    else:
        path.symlink_to("/dev/zero" if kind == "link" else run)
    what = f"{place}/{path.name} is a {'symbolic link' if 'link' in kind else kind}"
    code, lines = check("r", capsys)
    assert code == 1 and any(what in line for line in lines)
    assert cli.main(["tensorboard", port]) == 2 and len(started) == 1
    assert capsys.readouterr().err == f"syncbed: runs/r: {what}; only a plain file is read; remove it\n"


def test_a_latest_that_leads_elsewhere_is_no_folder_of_tensorboards(tmp_path, run, capsys, monkeypatch):
    monkeypatch.setattr(tensorboard.os, "execv", lambda *command: pytest.fail("started"))
    monkeypatch.setattr(tensorboard.Path, "with_name", lambda path, name: run)
    (tmp_path / "runs" / "latest").symlink_to("../..")
    assert cli.main(["tensorboard", f"PORT={free_port()}"]) == 2
    assert "latest points to '../..'" in capsys.readouterr().err


def test_sweeps_in_sweeps_are_not_gone_into(tmp_path, capsys):
    """Folders in each other, each of which says that it is a sweep and a run, would be checked without end."""
    folder = tmp_path / "s"
    for _ in range(300):
        folder.mkdir()
        (folder / "sweep.json").write_text(json.dumps(SWEEP))
        (folder / "result.json").write_text("{}")
        folder /= "n"
    code, lines = check("s", capsys)
    assert code == 1 and len(lines) == 1 and "s/n: " in lines[0].replace("run n", "s/n")
