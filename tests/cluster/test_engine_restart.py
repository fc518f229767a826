"""An engine that is restarted in mid-run. No other test may need the engine meanwhile: see `make test`."""

import os
import subprocess

import pytest
from orchestrator import wait_until
from test_cluster_runs import LONG, nothing_left, start
from test_node_survival import SMALL, healthy
from testbed import syncbed


@pytest.mark.timeout(400)
def test_an_engine_that_is_restarted_costs_the_run_and_nothing_else(cluster, tmp_path):
    """Its containers stop with it, and come back with it."""
    ours = os.environ.get("SYNCBED_TEST_ENGINE")
    if not ours:
        pytest.skip("SYNCBED_TEST_ENGINE is not set: only an engine that .ci/run has started is restarted")

    lost = start(cluster, tmp_path, DEADLINE=12, **SMALL | LONG)
    lost.wait_for("step", rank=1)
    subprocess.run([ours, "restart"], check=True, timeout=150)
    code, out = lost.finish()
    assert code == 1, out
    folder, error = lost.run, lost.result()["error"]
    assert error["kind"] in ("lost", "killed", "engine")
    assert "\n" not in error["message"]
    mended = syncbed("up", *cluster.settings)
    assert mended.returncode == 0, mended.stderr
    code, out = start(cluster, tmp_path, STEPS=2, **SMALL).finish()
    assert code == 0, out
    shown = syncbed("show", folder.name, f"RUNS_DIR={lost.runs}")
    assert (shown.returncode, folder.name in shown.stdout) == (0, True), shown.stderr
    nothing_left(cluster)
    wait_until(lambda: all(healthy(node) for node in [*cluster.nodes, cluster.service("prometheus")]), 90)
