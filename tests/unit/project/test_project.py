"""The repository as a project: its licence, its lock files, and that nothing is installed or run unpinned."""

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest
import yaml
from packaging.markers import default_environment
from packaging.requirements import Requirement

from monitor import toml
from requirements.lock import lock_files

ROOT = Path(__file__).parents[3]
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
LOCKS = [lock.path for lock in lock_files()]
PYPROJECT = toml.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
EXTRAS = PROJECT["optional-dependencies"]


def lines(path):
    text = (ROOT / path).read_text().replace("\\\n", " ")
    return [line for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]


SOURCES = {
    "requirements/build.txt": PYPROJECT["build-system"]["requires"],
    "requirements/monitor.txt": PROJECT["dependencies"],
    "requirements/tensorboard.txt": PROJECT["dependencies"] + EXTRAS["tensorboard"],
    "requirements/docs.txt": [line.partition("#")[0] for line in lines("requirements/docs.in")],
    "requirements/dev.txt": PROJECT["dependencies"] + EXTRAS["dev"],
    "images/trainer/requirements.txt": [line.partition("#")[0] for line in lines("images/trainer/requirements.in")],
    "images/trainer/torch-deps.txt": [],  # torch itself is left out of it
    "images/trainer/torch-pypi.txt": lines("images/trainer/torch.txt"),
    "images/trainer/uv.txt": ["uv"],
}


def environment(python):
    return {
        **default_environment(),
        "python_version": python,
        "python_full_version": f"{python}.9",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
    }


def applies(requirement, python):
    return requirement.marker is None or requirement.marker.evaluate(environment(python))


@cache
def pins(path, python):
    """Versions by name, as one file gives them to one Python; two of one name fail."""
    versions = {}
    for line in lines(path):
        requirement = Requirement(line.split("--hash")[0])
        if applies(requirement, python):
            (specifier,) = requirement.specifier
            assert specifier.operator == "==" and requirement.name not in versions, line
            versions[requirement.name] = specifier.version
    return versions


def test_every_lock_file_is_listed():
    assert set(SOURCES) == set(LOCKS)
    assert {path for path in LOCKS if path.startswith("requirements/")} == {
        str(path.relative_to(ROOT)) for path in (ROOT / "requirements").glob("*.txt")
    }


@pytest.mark.parametrize("path", LOCKS)
@pytest.mark.parametrize("python", PYTHONS)
def test_lock_files_satisfy_what_they_are_made_from(path, python):
    versions = pins(path, python)
    for line in SOURCES[path]:
        requirement = Requirement(line)
        if applies(requirement, python):
            assert requirement.specifier.contains(versions[requirement.name]), f"{path}: {line}: make lock"


@pytest.mark.parametrize("python", PYTHONS)
def test_lock_files_agree(python):
    """Several are installed into one environment: none may change what another brought. The docs' has its own."""
    together = {}
    for path in LOCKS:
        if path == "requirements/docs.txt":
            continue
        for name, version in pins(path, python).items():
            assert together.setdefault(name, version) == version, f"{path}: {name}: make lock"


@pytest.mark.parametrize("path", LOCKS)
def test_lock_files_are_hashes_and_name_no_index_and_no_folder(path):
    pin = re.compile(r"[a-z0-9-]+==[a-z0-9.]+( ; [^-]+)? +(--hash=sha256:[0-9a-f]{64} *)+")
    for line in lines(path):
        assert pin.fullmatch(line), line
    assert not re.search(
        r"://|--(extra-)?index|--find-links|(?<!images)(?<!trainer)/[a-z]+/", (ROOT / path).read_text()
    )


def test_torch_is_pinned_by_version_and_what_it_brings_by_hash():
    for line in lines("images/trainer/torch.txt"):
        assert re.fullmatch(r"[a-z]+==[0-9.]+", line)
    for python in PYTHONS:
        assert not {"torch", "torchvision"} & set(pins("images/trainer/torch-deps.txt", python))


@pytest.mark.parametrize(
    "path",
    ["Makefile", "images/trainer/Dockerfile", "images/trainer/install-torch.sh"],
)
def test_installations_are_held_to_hashes(path):
    """Every call of pip and uv, but for our own package and for torch, whose builds differ by index."""
    text = (ROOT / path).read_text().replace("\\\n", " ")
    words = ("pip install", "$(UV)", "uv_install ", "pip_install ")
    calls = [line for line in text.splitlines() if any(word in line for word in words)]
    calls = [line for line in calls if not line.startswith(("#", "UV :=", "uv_install()", "pip_install()"))]
    assert calls
    for call in calls:
        by_version = "torch-deps.txt" in call and "--constraints" in call
        own_package = "--no-deps --build-constraints requirements/build.txt" in call
        assert "--require-hashes" in call or by_version or own_package, call


@pytest.mark.parametrize("path", ["Makefile", "images/trainer/Dockerfile", "images/trainer/install-torch.sh"])
def test_no_source_archive_is_built(path):
    """sec-08: its build backend, and what that wants to have installed, would run; the latter is in no lock file."""
    text = (ROOT / path).read_text().replace("\\\n", " ")
    calls = [line for line in text.splitlines() if "--require-hashes" in line or "uv pip install" in line]
    calls = [line for line in calls if not line.startswith(("#", "UV :=")) and "uv_install --require" not in line]
    assert calls
    for call in calls:
        assert "--no-build" in call.split() or "--only-binary :all:" in call, call


def test_no_other_dockerfile_installs_python_packages():
    for path in [*(ROOT / "images").rglob("*Dockerfile"), ROOT / "grafana/Dockerfile"]:
        if path.parent.name != "trainer":
            assert "pip" not in path.read_text().split(), path


def test_actions_are_pinned_to_a_commit_and_keep_no_credentials():
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        text = path.read_text()
        uses = re.findall(r"uses: *(.+)", text)
        assert uses
        for use in uses:
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", use), f"{path.name}: {use}"
        workflow = yaml.safe_load(text)
        assert workflow["permissions"] == {"contents": "read"}
        for job in workflow["jobs"].values():
            for step in job["steps"]:
                if "checkout" in step.get("uses", ""):
                    assert step["with"]["persist-credentials"] is False


def test_the_workflow_tests_the_oldest_and_the_newest_python():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == [PYTHONS[0], PYTHONS[-1]]
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"
    assert [f"Programming Language :: Python :: {python}" for python in PYTHONS] == [
        name for name in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", name)
    ]


def test_the_licence_is_apache_2():
    assert (PROJECT["license"], PROJECT["license-files"]) == ("Apache-2.0", ["LICENSE"])
    text = (ROOT / "LICENSE").read_text()
    assert re.match(r"\s+Apache License\s+Version 2\.0, January 2004\s+http://www\.apache\.org/licenses/\s", text)
    assert re.findall(r"^   (\d)\. ", text, re.MULTILINE) == list("123456789")
    assert "END OF TERMS AND CONDITIONS" in text


def test_lint_covers_every_script_and_dockerfile():
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("no checkout of git")
    lint = (ROOT / ".ci/lint").read_text()
    words = [word for word in lint.split() if "/" in word]
    for name in done.stdout.split():
        path = ROOT / name
        if name.endswith("Dockerfile") or (
            path.is_file() and path.read_bytes()[:16].startswith((b"#!/bin/sh", b"#!/bin/bash"))
        ):
            assert any(Path(name).match(word) for word in words), f"{name}: .ci/lint does not look at it"
