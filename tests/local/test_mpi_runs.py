"""TRANSPORT=mpi as a person runs it: the same weights as over Gloo; whatever is lost is named and leaves nothing."""

import os
import random
import signal

import pytest
import torch
from orchestrator import Orchestrator, processes_of, wait_until

LONG = {"STEPS": 2000, "DEADLINE": 12}  # ended by the test, long before its last step


def start(folder, **settings):
    words = {"RUNTIME": "local", "SYNC": "psgd", "TRANSPORT": "mpi", "BATCH": 6}
    return Orchestrator(folder, **words | settings)


def finish(folder, **settings):
    """The result of a run that goes well, and the weights it ended with."""
    run = start(folder, MODEL="cnn3", STEPS=2, **settings)
    code, out = run.finish()
    assert code == 0, out
    result = run.result()
    path = run.run / result["checkpoints"][-1]["path"] / "model.pt"
    assert processes_of(run.run.name) == []
    return result, torch.load(path, weights_only=True)["model"]


@pytest.mark.parametrize("world", [{"NODES": 1, "NPROC": 2}, {"NODES": 3}])
def test_the_average_over_mpi_is_the_average_over_gloo(tmp_path, world):
    mpi, weights = finish(tmp_path, **world)
    gloo, expected = finish(tmp_path, TRANSPORT="gloo", **world)
    assert weights.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(weights[name], value, msg=lambda text, name=name: f"{name}: {text}")
    assert (mpi["synchronisations"], gloo["synchronisations"]) == (1, 1)
    assert [rank["sent_bytes"] for rank in mpi["ranks"]] == [rank["sent_bytes"] for rank in gloo["ranks"]]
    assert mpi["test_samples_counted"] == 13


def test_a_lost_rank_ends_the_run_and_is_named(tmp_path):
    run = start(tmp_path, NODES=2, **LONG)
    run.wait_for("step", rank=1)
    os.kill(run.events("started", rank=1)[0]["pid"], signal.SIGKILL)
    code, out = run.finish()
    error = run.result()["error"]
    assert (code, error["kind"], error["rank"]) == (1, "killed", 1), out
    assert processes_of(run.run.name) == []


def test_a_lost_process_manager_ends_the_run_and_is_named(tmp_path):
    run = start(tmp_path, NODES=2, **LONG)
    run.wait_for("step", rank=1)
    (mpiexec,) = processes_of(run.run.name, "mpiexec")
    mpiexec.kill()
    code, out = run.finish()
    error = run.result()["error"]
    assert (code, error["kind"], error["rank"]) == (1, "error", 0), out
    assert "mpiexec) was killed by SIGKILL" in error["message"]
    assert processes_of(run.run.name) == []


def test_a_killed_orchestrator_leaves_nothing(tmp_path):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    moments = ["before anything", *random.Random(seed).sample(range(1, 10), 1)]
    for moment in moments:
        run = start(tmp_path, NODES=2, STEPS=4)
        if moment == "before anything":  # while mpiexec comes up
            wait_until(lambda run=run: (run.runs / "latest").is_symlink() and processes_of(run.run.name), 120)
        else:
            wait_until(lambda run=run, n=moment: run.process.poll() is not None or len(run.events()) >= n, 120)
        run.process.kill()
        run.process.communicate()
        wait_until(lambda run=run: processes_of(run.run.name) == [])


def test_mpi_is_for_strategies_that_take_it(tmp_path):
    run = start(tmp_path, SYNC="ddp", NODES=2)
    code, out = run.finish()
    assert code == 2
    assert "TRANSPORT=mpi: SYNC=ddp does not take it; psgd would" in out
