"""`make run RESUME=` as a person uses it: whatever stopped a run, going on equals never having stopped."""

import json
import os
import shutil
import signal

import pytest
from orchestrator import Orchestrator, processes_of, wait_until

from trainer.checkpoint_folder import complete_ones, read

STEPS = 6


def start(folder, **settings):
    return Orchestrator(folder, RUNTIME="local", NODES=2, **{"STEPS": STEPS, "EVERY": 2} | settings)


def resume(folder, *, ended: int = 0, **settings):
    """`syncbed run RESUME=...` with no other settings than these, run to its end; its output is in `.out`."""
    run = Orchestrator(folder, RUNTIME="local", **{"RESUME": "latest"} | settings, bare=True)
    code, run.out = run.finish()
    assert code == ended, run.out
    return run


@pytest.fixture
def folder(undisturbed, tmp_path):
    """One with the data of the run that never stopped."""
    for name in ("cifar", "data"):
        shutil.copytree(undisturbed.folder / name, tmp_path / name)
    return tmp_path


def killed_in_a_checkpoint(folder) -> Orchestrator:
    """A run whose rank 0 was killed while it wrote the checkpoint of step 4. One that was too quick is tried again."""
    for _ in range(10):
        run = start(folder)
        rank = run.wait_for("started", rank=0)["pid"]
        wait_until(lambda run=run: list(run.run.glob("checkpoints/step-000004/.*.part")), every=0.002)
        os.kill(rank, signal.SIGSTOP)
        in_time = not (run.run / "checkpoints/step-000004/complete.json").exists()
        os.kill(rank, signal.SIGKILL)
        code, out = run.finish()
        if in_time:
            assert code == 1, out
            return run
        shutil.rmtree(run.runs)
    raise AssertionError("no run was caught while it wrote its checkpoint")


def test_a_run_killed_after_a_checkpoint_goes_on_from_it(folder, undisturbed):
    killed = start(folder)
    killed.wait_for("checkpoint")
    killed.process.kill()
    killed.process.communicate()
    wait_until(lambda: processes_of(killed.run.name) == [])
    before, steps = killed.run.name, [read(path).step for path in complete_ones(killed.run / "checkpoints")]
    run = resume(folder)
    result = run.result()
    assert result["resumed_from"] == {"run": before, "step": steps[-1]}
    assert f"going on from step {steps[-1]} of run {before}" in run.out
    assert [s["step"] for s in run.events("step", 1)] == list(range(steps[-1] + 1, STEPS + 1))
    assert run.weights() == undisturbed.weights()
    for field in (
        "test_accuracy",
        "test_loss",
        "train_loss",
        "confusion_matrix",
        "distinct_samples",
        "synchronisations",
    ):
        assert result[field] == undisturbed.result()[field], field


def test_a_run_killed_while_it_writes_a_checkpoint_goes_on_from_the_one_before(folder, undisturbed):
    killed = killed_in_a_checkpoint(folder)
    before = killed.run.name
    assert [path.name for path in (killed.run / "checkpoints").iterdir()] == ["step-000002"]  # no half one
    assert [kept["step"] for kept in killed.result()["checkpoints"]] == [2]
    run = resume(folder)
    assert run.result()["resumed_from"] == {"run": before, "step": 2}
    assert run.weights() == undisturbed.weights()


def test_a_run_that_ended_goes_on_further_and_what_does_not_fit_is_refused(folder, undisturbed):
    short = start(folder, STEPS=4, EVERY=0)
    code, out = short.finish()
    assert code == 0, out
    first = short.run.name
    for settings, text in (
        ({}, f"RESUME={first}: it has done 4 steps already, STEPS=4 leaves none"),
        ({"STEPS": 8, "NODES": 3}, f"NODES=3: run {first} was computed with 2"),
        ({"STEPS": 8, "RESUME": "nope"}, f"RESUME=nope: no such run in runs (newest: {first})"),
    ):
        assert resume(folder, ended=2, **settings).out.strip().splitlines()[-1].startswith("syncbed: " + text)
    assert sorted(path.name for path in short.runs.iterdir()) == sorted([first, "latest"])  # nothing was begun
    run = resume(folder, STEPS=STEPS, EVERY=2, DEADLINE=60)
    assert run.result()["resumed_from"] == {"run": first, "step": 4}
    assert run.weights() == undisturbed.weights()
    assert json.loads((run.run / "spec.json").read_text())["steps"] == STEPS
