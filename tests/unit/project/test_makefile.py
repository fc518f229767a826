"""The Makefile: whatever a value holds, it reaches the command as it was typed, and no shell or make runs it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from wheel_indexes import SECRETS

ROOT = Path(__file__).parents[3]
LINTERS = ["ruff", "lint-imports", "shellcheck", "hadolint", "zizmor", "basedpyright"]
INPUTS = {
    "images/trainer": [
        "install-torch.sh",
        "requirements.txt",
        "torch.txt",
        "torch-deps.txt",
        "torch-pypi.txt",
        "uv.txt",
    ],
    "requirements": ["build.txt", "dev.txt", "docs.txt", "monitor.txt", "tensorboard.txt", "lock.py"],
}
# Stands for every program of the environment: says what it was called with.
PROGRAM = f"""#!{sys.executable} -IS
import json, os, sys
with open("calls", "a") as file:
    json.dump([os.path.basename(sys.argv[0]), sys.argv[1:], dict(os.environ)], file)
    file.write("\\n")
if "where" in sys.argv:
    print("local")
sys.exit(os.environ.get("FAILS") == os.path.basename(sys.argv[0]))
"""
EVIL = [
    "x; touch canary",
    "x' ; touch canary; '",
    'x" ; touch canary; "',
    "$(touch canary)",
    "$(shell touch canary)",
    "$$(touch canary)",
    "`touch canary`",
    "a $b $$c ${HOME}",
    "${shell touch canary}",
    "two  words\\",
    "x\ntouch canary",
    "&& touch canary #",
]
NAMES = ["SYNC", "RUN", "TENSORBOARD", "RUNS_DIR", "PORT", "WHEEL_INDEX", "PYTHON", "PYTEST_ARGS", "CA_BUNDLE", "VENV"]
TARGETS = (
    "run test cluster-up cluster-down cluster-status show tensorboard images data runs doctor clean logs torch lint "
    "lock dashboards-check export serve serve-stop"
)


@pytest.fixture
def folder(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/lint", tmp_path / ".ci")
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / ".venv/bin").mkdir(parents=True)
    for name in ("syncbed", "python", "uv", "pip", "tensorboard", *LINTERS):
        (tmp_path / ".venv/bin" / name).write_text(PROGRAM)
        (tmp_path / ".venv/bin" / name).chmod(0o755)
    for inputs, names in INPUTS.items():
        (tmp_path / inputs).mkdir(parents=True)
        for name in names:
            (tmp_path / inputs / name).touch()
    return tmp_path


def make(folder, *words, ready=(".ready", ".dev", ".torch", ".tensorboard")):
    """What was called: (program, arguments, environment) each; and make's own outcome."""
    (folder / "calls").unlink(missing_ok=True)
    for name in ready:
        (folder / ".venv" / name).touch()
    own = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", *NAMES)}
    done = subprocess.run(["make", *words], cwd=folder, env=own, capture_output=True, text=True)
    calls = folder / "calls"
    return [json.loads(line) for line in calls.read_text().splitlines()] if calls.exists() else [], done


@pytest.mark.parametrize("value", EVIL)
def test_values_arrive_as_typed_and_nothing_in_them_runs(folder, value):
    words = [f"{name}={value}" for name in NAMES]
    for ready in ((), [".ready"], [".ready", ".dev", ".torch", ".tensorboard"]):
        calls, _ = make(folder, "--keep-going", *TARGETS.split(), *words, ready=ready)
        assert not list(folder.rglob("canary"))
        for _, _, environment in calls:
            assert {name: environment[name] for name in NAMES} == dict.fromkeys(NAMES, value)
        for stamp in (folder / ".venv").glob(".*"):
            stamp.unlink()
    calls, done = make(folder, "runs", *words)
    assert [call[:2] for call in calls] == [["syncbed", ["runs", "--from-make"]]], done.stderr


def test_the_settings_are_those_typed(folder):
    """The whole way: make's own escapes of blanks, $ and backslashes in MAKEFLAGS are undone."""
    from monitor.cli import make_settings

    for value in EVIL:
        (call,), _ = make(folder, "runs", f"SYNC={value}", "MODEL=vgg11")
        assert make_settings(call[2]) == {"SYNC": value, "MODEL": "vgg11"}


def test_a_command_knows_what_follows_it(folder):
    calls, done = make(folder, "cluster-down", "cluster-up", "NODES=2")
    assert done.returncode == 0, done.stderr
    assert [(call[1][0], call[2]["SYNCBED_GOALS"]) for call in calls] == [
        ("down", "cluster-down cluster-up"), ("up", "cluster-down cluster-up"),
    ]  # fmt: skip


def test_a_make_within_a_make_knows_its_own_targets(folder, monkeypatch):
    """As in `make test`: what the outer one hands down must not be taken for what was typed."""
    calls, _ = make(folder, "cluster-up")
    for name in ("SYNCBED_GOALS", "MAKECMDGOALS"):
        if name in calls[0][2]:
            monkeypatch.setenv(name, calls[0][2][name])
    calls, done = make(folder, "run", "ddp")
    assert (calls, done.returncode) == ([], 2)
    assert "ddp: not a target" in done.stderr
    calls, _ = make(folder, "cluster-down")
    assert calls[0][2]["SYNCBED_GOALS"] == "cluster-down"


def test_a_wheel_index_is_one_argument(folder):
    calls, _ = make(folder, "torch", "WHEEL_INDEX=http://a b", ready=[".ready"])
    (uv,) = [arguments for program, arguments, _ in calls if program == "uv"]
    assert uv[uv.index("--index") + 1] == "http://a b"
    (folder / ".venv/.torch").unlink()
    calls, _ = make(folder, "torch", ready=[])
    assert [arguments for program, arguments, _ in calls if program == "uv" and "--index" in arguments] == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["show", "latest"], "latest: not a target; make show RUN=latest shows that run"),
        (["run", "ddp"], "ddp: not a target; settings are NAME=value"),
        (["$(shell touch canary)"], "not a target"),
        (["run", "UV=touch canary;"], "UV= cannot be set"),
        (["run", "MAKE=touch canary;"], "MAKE= cannot be set"),
        (["run", "SHELL=/bin/false"], "SHELL= cannot be set"),
    ],
)
def test_words_that_cannot_be_are_one_line_and_start_nothing(folder, words, says):
    calls, done = make(folder, *words)
    assert (calls, done.returncode, done.stderr.count("\n")) == ([], 2, 1)
    assert says in done.stderr
    assert not (folder / "canary").exists()


def test_a_wheel_index_that_is_no_url_is_said_before_anything_is_installed(folder):
    calls, done = make(folder, "torch", "WHEEL_INDEX=x;y", ready=[".ready"])
    assert (calls, done.returncode) == ([], 2)
    assert done.stderr.startswith("syncbed: WHEEL_INDEX=x;y: the URL of a Python package index")


@pytest.mark.parametrize("index", SECRETS)
def test_a_wheel_index_with_a_secret_is_refused_without_repeating_it(folder, index):
    calls, done = make(folder, "torch", f"WHEEL_INDEX={index}", ready=[".ready"])
    assert (calls, done.returncode) == ([], 2)
    assert done.stderr.startswith("syncbed: WHEEL_INDEX: an address with a user, password or query")
    assert "s3cret" not in done.stdout + done.stderr


def test_what_builds_the_docs_goes_into_an_environment_of_its_own(folder):
    calls, _ = make(folder, "docs", ready=[".ready"])
    (uv,) = [arguments for program, arguments, _ in calls if program == "uv"]
    assert uv[uv.index("--python") + 1] == ".venv/docs/bin/python"
    assert {"--no-build", "--require-hashes"} <= set(uv) and uv[-1] == "requirements/docs.txt"


def test_a_python_that_is_not_there_is_said(folder):
    _, done = make(folder, "runs", "PYTHON=no such python", ready=[])
    assert done.stderr.startswith("syncbed: PYTHON=no such python: no such program")


def test_lint_runs_every_linter_and_stops_at_the_first_that_fails(folder, monkeypatch):
    calls, done = make(folder, "lint")
    assert list(dict.fromkeys(program for program, _, _ in calls)) == LINTERS
    assert (done.stdout.count("\n"), done.returncode) == (7, 0), done.stderr
    monkeypatch.setenv("FAILS", "shellcheck")
    calls, done = make(folder, "lint")
    assert (calls[-1][0], done.returncode) == ("shellcheck", 2)
    assert done.stdout.split()[-2:] == ["shell", "failed"]


def test_only_what_changed_is_installed_again_and_by_its_hashes(folder):
    calls, done = make(folder, "test", ready=[])
    files = [arguments[arguments.index("-r") + 1] for program, arguments, _ in calls if "-r" in arguments]
    assert files == ["requirements/monitor.txt", "requirements/dev.txt", "images/trainer/requirements.txt"]
    for program, arguments, _ in calls:
        if program in ("uv", "pip"):
            assert "--require-hashes" in arguments or "--build-constraints" in arguments
    os.utime(folder / "requirements/dev.txt", (2**31, 2**31))
    calls, done = make(folder, "test", ready=[])
    assert [arguments[-1] for program, arguments, _ in calls if program == "uv"] == ["requirements/dev.txt"], (
        done.stderr
    )
