"""The command line: what make says reaches the command whole, and every error is one line with its exit code."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from report_cases import ended, write_document

from monitor import cli
from monitor.cluster.settings import ClusterSettings
from monitor.errors import UserError
from monitor.runtime.base import Lines

SHOW = "import os, json; from monitor.cli import make_settings; print(json.dumps(make_settings(dict(os.environ))))"
MAKEFILE = f"show:\n\t@{sys.executable} -c '{SHOW}'\n"


def from_make(tmp_path, *words, environment=None):
    (tmp_path / "Makefile").write_text(MAKEFILE)
    env = os.environ | {"PYTHONPATH": str(Path.cwd())} | (environment or {})
    out = subprocess.run(
        ["make", "-s", "-C", tmp_path, "show", *words], env=env, capture_output=True, text=True, check=True
    )
    return json.loads(out.stdout)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("SYNC=ddp", "ddp"),
        ("SYNC=", ""),
        ("SYNC=two words and -- dashes", "two words and -- dashes"),
        ("SYNC=0,1|2,3@10s+5s;rm -rf x", "0,1|2,3@10s+5s;rm -rf x"),
        ('SYNC=it\'s "quoted"', 'it\'s "quoted"'),
        ("SYNC=a=b", "a=b"),
    ],
)
def test_a_value_on_makes_command_line_arrives_as_it_was_typed(tmp_path, word, value):
    assert from_make(tmp_path, word) == {"SYNC": value}


def test_makes_own_words_and_the_users_environment_are_no_settings(tmp_path):
    assert from_make(tmp_path, "PYTHON=python3", "SYNC=ddp", environment={"MODEL": "vgg11"}) == {"SYNC": "ddp"}
    assert from_make(tmp_path, "-j2", "-k") == {}


def test_a_setting_in_the_environment_is_ignored_with_a_warning(capsys):
    cli.warn_of_ignored("run", {"MODEL": "vgg11"}, {"SYNC": "single", "MODEL": "vgg11", "HOME": "/"})
    said = capsys.readouterr().err
    assert (
        said
        == "warning: SYNC=single in the environment is ignored; it counts behind the word make: make ... SYNC=single\n"
    )
    cli.warn_of_ignored("down", {}, {"SYNC": "single", "PROJECT": "mine"})
    assert capsys.readouterr().err.startswith("warning: PROJECT=mine in the environment is ignored")


def one_line(capsys):
    err = capsys.readouterr().err
    assert err.startswith("syncbed: ")
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "SYNC=foo"], "SYNC=foo: one of: single, ddp"),
        (["run", "SNYC=ddp"], "SNYC=ddp: no such setting; did you mean SYNC?"),
        (["run", "MODEL=resnet"], "MODEL=resnet: one of: vgg11"),
        (["run", "DATA=imagenet"], "DATA=imagenet: one of: cifar10"),
        (["run", "NODES=0"], "NODES=0: a whole number from 1 to 16"),
        (["run", "BATCH=250", "NODES=4"], "BATCH=250: does not divide over NODES=4; 248 or 252 would do"),
        (["run", "SYNC=single", "NODES=4"], "NODES=4: SYNC=single is one replica"),
        (["run", "SYNC=single", "NPROC=2"], "NPROC=2: SYNC=single is one replica"),
        (["run", "LR=fast"], "LR=fast: a number"),
        (["run", "RUNTIME=k8s"], "RUNTIME=k8s: one of: docker, local"),
        (["run", "ddp"], "ddp: not a setting; settings are NAME=value"),
        (["run", "STEPS=1", "EPOCHS=1"], "EPOCHS=1: give either STEPS or EPOCHS, not both"),
        (["show", "nope"], "run nope: not found"),
        (["runs", "SYNC=ddp"], "SYNC=ddp: no such setting"),
        (["runs", "RUNS_DIR=nowhere"], "RUNS_DIR=nowhere: no such folder"),
        ([], "required: command; syncbed --help shows what would do"),
        (["walk"], "invalid choice: 'walk'"),
        (["run", "--fast"], "unrecognized arguments: --fast"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if words[:1] == ["run"] and not any(word.startswith("RUNTIME=") for word in words):
        words = [*words, "RUNTIME=local"]
    assert cli.main(words) == 2
    assert says in one_line(capsys)
    assert list(tmp_path.iterdir()) == []  # nothing was started


def test_a_failure_of_ours_shows_where_only_with_debug(capsys, monkeypatch):
    monkeypatch.setenv("DEBUG", "0")  # what DEBUG=1 sets goes with it

    def broken(settings, args):
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("monitor.machine.where.where", broken)
    assert cli.main(["where"]) == 1
    assert one_line(capsys) == "syncbed: ZeroDivisionError: oops (DEBUG=1 shows where)\n"
    assert cli.main(["where", "DEBUG=1"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_word_without_a_name_is_refused():
    with pytest.raises(UserError, match="=ddp: not a setting"):
        cli.parse_settings(["=ddp"])


TAKES = {
    **dict.fromkeys(("up", "status", "doctor", "clean"), ("NODES", "PROJECT", "CA_BUNDLE")),
    "down": ["PROJECT"],
    "logs": ["NODE", "FOLLOW", "PROJECT"],
    "images": ["BASE_IMAGE"],
    **dict.fromkeys(("run", "where"), ("SYNC", "RUNTIME")),
    "data": ["DATA", "DATA_DIR", "DATA_CACHE", "MODEL", "SEED"],
    **dict.fromkeys(("runs", "show", "report", "export"), ("RUNS_DIR",)),
    "watch": ["RUNS_DIR", "PORT", "PROJECT"],
    "rm": ["RUN", "RUNS_DIR"],
    "check": ["RUN"],
    "serve": ["RUN", "NAME", "PORT", "MAX_BATCH", "RUNTIME"],
    "serve-stop": ["NAME", "PROJECT"],
    "compare": ["RUNS", "SWEEP", "GOAL"],
    "sweep": ["SYNC", "REPEATS", "NAME"],
    "reproduce": ["REPORT", "SCALE", "REPEATS"],
    "dashboards-check": ["RUN", "PROJECT"],
    "tensorboard": ["PORT", "RUNS_DIR"],
    "prometheus-snapshot": ["RUNS_DIR", "PROJECT"],
}


def test_every_command_has_help(capsys):
    for name in cli.COMMANDS:
        with pytest.raises(SystemExit) as end:
            cli.main([name, "--help"])
        assert end.value.code == 0
        told = capsys.readouterr().out
        assert "example: syncbed " + name in told
        assert all(f"  {setting} " in told for setting in TAKES[name])


def test_lines_are_split_on_bytes_and_decoded_whole():
    lines = Lines()
    whole = "erst\nä€\U0001f600 zwei\n\nrest".encode()
    found = [line for i in range(len(whole)) for line in lines.feed(whole[i : i + 1])]
    assert found == ["erst", "ä€\U0001f600 zwei", ""]
    assert lines.end() == ["rest"]
    assert lines.end() == []


def test_a_broken_character_does_not_lose_the_line():
    lines = Lines()
    assert lines.feed(b"a\xffb\n") == ["a�b"]
    assert lines.feed("ä".encode()[:1]) == []
    assert lines.end() == ["�"]


def test_ctrl_c_while_the_commands_are_imported_is_one_line(capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    for place in ("load", "parser"):
        with monkeypatch.context() as patch:
            patch.setattr(cli, place, interrupted)
            assert cli.main(["where"]) == 1
        assert one_line(capsys) == "syncbed: interrupted\n"


def test_ctrl_c_while_the_command_line_itself_is_imported_is_one_line(tmp_path):
    (tmp_path / "argparse.py").write_text("raise KeyboardInterrupt")
    env = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{Path.cwd()}"}
    done = subprocess.run([sys.executable, "-c", "import monitor.cli"], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "syncbed: interrupted\n")


@pytest.mark.parametrize("command", ["run", "data"])
def test_a_home_that_is_not_there_is_one_line(command, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    more = ["RUNTIME=local"] if command == "run" else []
    assert cli.main([command, "DATA=cifar10", "DATA_DIR=~nosuchuser/x", *more]) == 2
    assert "DATA_DIR=~nosuchuser/x: there is no such user here" in one_line(capsys)


def test_a_folder_of_data_that_may_not_be_looked_into_is_one_line(capsys, tmp_path, monkeypatch):
    def refused(path, **_):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Path, "stat", refused)
    assert cli.main(["data", "DATA=cifar10", f"DATA_DIR={tmp_path}/x/y"]) == 2
    assert "cannot be listed (Permission denied); make it readable" in one_line(capsys)


def test_a_very_long_number_is_refused_as_any_other(capsys):
    for word in ("MEMORY", "CPUS", "NODES", "PROMETHEUS_PORT"):
        with pytest.raises(UserError, match=f"^{word}=9"):
            ClusterSettings.from_settings({word: "9" * 400}, 4, 2**34)
    assert cli.main(["data", "DATA=synthetic", f"SEED={'9' * 5000}"]) == 2
    assert "a whole number from 0 to" in one_line(capsys)


@pytest.mark.parametrize("command", ["run", "sweep", "reproduce", "serve"])
def test_where_takes_every_setting_of_the_commands_that_ask_it(command, capsys):
    """On a fresh machine make asks it first, with what it was given itself."""
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    names = re.findall(r"^  ([A-Z_]+) ", capsys.readouterr().out, re.MULTILINE)
    assert "RUNTIME" in names
    values = {"RUNTIME": "local", "PROJECT": "mine"}
    assert cli.main(["where", *(f"{name}={values.get(name, 1)}" for name in names)]) == 0
    assert capsys.readouterr().out == "local\n"


def test_the_settings_of_where_and_tensorboard_are_looked_at(capsys, tmp_path):
    for words, says in (
        (["where", "SNYC=ddp"], "did you mean SYNC?"),
        (["where", "PROJECT=A b"], "PROJECT=A b: lower-case letters"),
        (["where", f"PROJECT={'a' * 300}"], "at most 40"),
        (["tensorboard", "PORT=99999"], "PORT=99999: a whole number from 1 to 65535"),
        (["tensorboard", f"RUNS_DIR={tmp_path}/x"], "no such folder"),
        (["tensorboard", "SYNC=ddp"], "no such setting"),
    ):
        assert cli.main(words) == 2
        assert says in one_line(capsys)


def test_a_reader_that_goes_away_is_no_error(tmp_path):
    """A program's document as well as a person's table: `syncbed runs --json | head -c 1`."""
    for i in range(200):
        folder = tmp_path / f"2026-{i}"
        folder.mkdir()
        write_document(folder, ended(folder.name, more=1000 * "x"))
    command = [sys.executable, "-m", "monitor.cli", "runs", "--json", f"RUNS_DIR={tmp_path}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=Path(__file__).parents[3])
    process.stdout.read(1)
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 0
