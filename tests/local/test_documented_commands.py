"""What the documentation tells to type: each block without a mark runs, those of a page one after the other.

A page has a folder of its own, with the files that its blocks name. `make` there is `syncbed` with the same words: the
Makefile itself is tested in tests/unit/project/test_makefile.py, and its targets and settings in
tests/unit/docs/test_documentation.py.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from documentation import PAGES, ROOT, RUNNABLE, Block, blocks
from PIL import Image

UNMARKED = {ROOT / "README.md"}  # its blocks have no marks until it is rewritten
RUN = {page: [b for b in blocks(page) if b.language in RUNNABLE and not b.mark] for page in PAGES}
OWN = ROOT / "docs/guides/own-strategy.md"
# The guide's second example, which it gives no line for.
OFTEN = """
    "often": Strategy(
        "trainer.sync.often:Often", "weights averaged every second step", sends="2(n-1)/n · S/2", exact=False
    ),
"""
# A run's report would take as long as the run.
MAKE = """#!/bin/sh
target=$1
shift
if [ "$target" = run ]; then set -- "$@" PAGES=0; fi
exec "{python}" -m monitor.cli "$target" "$@"
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Prepared data sets, which take longer than a run."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture
def folder(tmp_path, data):
    """With the programs and files that blocks name."""
    (tmp_path / "data").symlink_to(data)
    (tmp_path / "bin").mkdir()
    for name in ("bin/make", ".venv/bin/syncbed"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(MAKE.format(python=sys.executable))
        (tmp_path / name).chmod(0o755)
    Image.new("RGB", (40, 30), "orange").save(tmp_path / "kitten.jpg")
    return tmp_path


def run(folder: Path, *command: str, paths: tuple[Path, ...] = (ROOT,)) -> str:
    """What it prints; fails where it does. No engine answers it, so that a cluster that is up has no part in it."""
    variables = os.environ | {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "DOCKER_HOST": f"unix://{folder}/none",
    }
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def run_block(folder: Path, block: Block) -> None:
    if block.language == "python":
        run(folder, sys.executable, "-c", block.text)
    else:
        run(folder, "bash", "-euo", "pipefail", "-c", block.script)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if RUN[page] and page not in UNMARKED], ids=lambda page: str(page.relative_to(ROOT))
)
def test_the_blocks_of_a_page_run(page, folder):
    for block in RUN[page]:
        try:
            run_block(folder, block)
        except AssertionError as error:
            raise AssertionError(f"{block}\n{error}") from None


def test_the_guide_to_a_strategy_of_ones_own_works(tmp_path):
    """Its files in a copy of the code: its own test passes, and so do those of every strategy."""
    for name in ("trainer", "tests/local", "tests/unit"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("node", "monitor", "docs", "pyproject.toml", *(f"tests/{p.name}" for p in ROOT.glob("tests/*.py"))):
        (tmp_path / name).symlink_to(ROOT / name)
    lines = OFTEN
    for block in blocks(OWN):
        if block.what == "trainer/registry.py":
            lines += block.text
        elif block.mark == "file":
            (tmp_path / block.what).write_text(block.text)
    registry = tmp_path / "trainer/registry.py"
    before, table, after = registry.read_text().partition("SYNCS = {\n")
    registry.write_text(before + table + lines + after)
    chosen = "majority or (sign_sgd or often) and (-3] or registrys)"
    tests = ["tests/local/test_sign_sgd.py", "tests/local/test_local_strategies.py", "tests/unit/sync/test_formulas.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, *tests]
    out = run(tmp_path, *command, paths=(tmp_path,))
    assert re.search(r"\b[1-9]\d* passed", out) and "failed" not in out
