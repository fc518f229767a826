"""Tests run side by side, but for those that share something: the cluster, or the fixtures of a file."""

import os
import subprocess
import sys
from pathlib import Path

from groups import group

ROOT = Path(__file__).parents[3]
RUN = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-v", "-n", "2", "--dist", "loadscope"]


def test_what_shares_something_is_a_group():
    assert group("tests/cluster/test_mpi_nodes.py::test_x[a/b::c]") == "cluster"
    assert group("tests/cluster/test_cluster.py::test_x") == "cluster"
    assert group("tests/local/test_run.py::Class::test_x") == "tests/local/test_run.py"
    assert group("tests/unit/sync/test_parts.py::test_x") == "tests/unit/sync/test_parts.py"


def test_workers_of_xdist_take_whole_groups():
    """Of three files with several tests each, every file is on one worker, and both workers have some."""
    files = [f"tests/unit/{name}.py" for name in ("sync/test_parts", "sync/test_interface", "runtime/test_conditions")]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run([*RUN, *files], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("[gw")]
    workers = {file: {line[0] for line in lines if f"{file}::" in " ".join(line)} for file in files}
    assert all(len(own) == 1 for own in workers.values()), workers
    assert len(set.union(*workers.values())) == 2
