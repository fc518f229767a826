"""Checkpoints come out of the cluster and go back in: a run that lost a node's rank goes on to the same weights."""

import pytest
from orchestrator import Orchestrator

from trainer.checkpoint_folder import complete_ones, verify

SPEC = {"BATCH": 15, "STEPS": 16, "EVERY": 4, "NODES": 3, "LR": 0.01}  # seconds are left after the first checkpoint


def start(cluster, folder, **settings):
    return Orchestrator(folder, RUNTIME="docker", PROJECT=cluster.project, **settings)


@pytest.mark.timeout(360)  # three runs of VGG-11, the first of them on a cluster that has just come up
def test_a_killed_run_goes_on_in_the_cluster_and_ends_as_one_that_was_not(cluster, tmp_path):
    undisturbed = start(cluster, tmp_path, **SPEC, TENSORBOARD=1)
    code, out = undisturbed.finish()
    assert code == 0, out
    expected, first = undisturbed.weights(), undisturbed.result()
    assert undisturbed.warnings() == []
    folders = complete_ones(undisturbed.run / "checkpoints")
    assert [kept["path"] for kept in first["checkpoints"]] == [f"checkpoints/{folder.name}" for folder in folders]
    for kept, folder in zip(first["checkpoints"], folders, strict=True):
        verify(folder)
        assert sum(path.stat().st_size for path in folder.iterdir()) == kept["bytes"]
    assert {path.name for path in (undisturbed.run / "tensorboard").iterdir()} == {"rank-0", "rank-1", "rank-2"}

    killed = start(cluster, tmp_path, **SPEC)
    killed.wait_for("checkpoint")
    kill = f"kill -KILL {killed.events('started', 1)[0]['pid']}"
    assert cluster.node(1).exec_run(["sh", "-c", kill]).exit_code == 0
    code, out = killed.finish()
    assert code == 1, out
    before, done = killed.run.name, len(complete_ones(killed.run / "checkpoints"))
    assert done >= 1

    resumed = Orchestrator(tmp_path, bare=True, RUNTIME="docker", PROJECT=cluster.project, RESUME="latest")
    code, out = resumed.finish()
    assert code == 0, out
    assert resumed.result()["resumed_from"] == {"run": before, "step": 4 * done}
    assert resumed.weights() == expected
    assert cluster.node(0).exec_run(["ls", "/runs"]).output == b""
