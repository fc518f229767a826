"""`syncbed check`: a line for each thing that is wrong with a received folder."""

import json
import os

import pytest
from report_cases import write_run

from monitor import cli


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
