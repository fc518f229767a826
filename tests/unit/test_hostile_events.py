"""What a rank can do by what it prints: nothing but end its run, as its own fault. No process is started."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from scripted import ScriptedRuntime, exited, finished, no_waiting, ready, step

from monitor.errors import UserError
from monitor.interrupt import Stop
from monitor.run.plan import Plan
from monitor.run.recorder import Recorder
from monitor.runtime.base import Job, Output
from monitor.runtime.docker import DockerRuntime
from monitor.runtime.local import LocalRuntime
from trainer import events
from trainer.spec import RunSpec

SPEC = RunSpec(nodes=2, batch=8)
NAMES = ("rank 0 (trainer-0)", "rank 1 (trainer-1)")


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    return no_waiting(monkeypatch)


def checkpoint(number, path=None, rank=0):
    path = path or f"checkpoints/step-{number:06}"
    return events.Checkpoint(rank=rank, step=number, path=path, bytes=1, seconds=0.1)


class Verbatim(str):
    """A line on standard output."""


class Said(ScriptedRuntime):
    """Scripts may hold lines as they are."""

    def start(self, job, seat, output):
        handle = super().start(job, seat, output)
        for item in self.after.get(seat.rank, ()):
            line = item if isinstance(item, str) else events.to_line(item)
            output.put(Output(seat.rank, "stdout", line))
        return handle


def end_of(runs, said, rank=0, **changes):
    """The recorder of a run whose rank says these lines and events after its first step, and its result."""
    scripts = [[ready(r), step(r)] for r in (0, 1)]
    spec = RunSpec(**({"nodes": 2, "batch": 8} | changes))
    runtime = Said(scripts, holding=(0, 1))
    runtime.after, fetched = {rank: said}, []
    runtime.fetched = fetched.append
    prepared = SimpleNamespace(key="key", label="a test's", manifest={"classes": ["a", "b"]})
    run = Recorder(runtime, Plan(spec, prepared, runs), Console(quiet=True), 0.0, Stop())
    run.all_fetched = fetched
    return run, run.follow()


def check_blame(run, result, rank, why):
    """The run failed as that rank's fault, the result is written, the run folder stays."""
    assert result.document() == json.loads((run.folder / "result.json").read_text())
    assert (result.status, result.error.kind, result.error.rank) == ("failed", "error", rank)
    assert result.error.message == f"{NAMES[rank]} misused its event stream at step 3: {why}"
    assert "\n" not in result.error.message
    logged = [events.parse(line) for line in (run.folder / "events.jsonl").read_text().splitlines()]
    assert [event.message for event in logged if isinstance(event, events.Failed)] == [why]
    assert all("KILL" in handle.signals for handle in run.runtime.handles.values() if not handle.holds)


@pytest.mark.parametrize(
    "path",
    [
        "/home/someone/.bashrc",
        "../../home/someone/.config/autostart",
        "checkpoints/../../x",
        "checkpoints/step-000004",
        "checkpoints/step-3",
        "checkpoints/step-000003/",
        "checkpoints//step-000003",
        "checkpoints/step-000003\n",
        "checkpoints/step-００0003",
        "tensorboard",
        ".",
        " ",
    ],
)
def test_a_checkpoint_is_fetched_from_the_one_place_of_its_step(tmp_path, path):
    run, result = end_of(tmp_path, [checkpoint(3, path)])
    check_blame(run, result, 0, "its checkpoint of step 3 is not in checkpoints/step-000003")
    assert run.all_fetched == []


def test_a_checkpoint_is_rank_0s(tmp_path):
    run, result = end_of(tmp_path, [checkpoint(3, rank=1)], rank=1)
    check_blame(run, result, 1, "it sent a checkpoint, which rank 0 alone does")
    assert run.all_fetched == []


def test_a_checkpoint_is_sent_once(tmp_path):
    run, result = end_of(tmp_path, [checkpoint(2), checkpoint(3), checkpoint(2)])
    check_blame(run, result, 0, "it sent the checkpoint of step 2 twice")
    assert run.all_fetched == ["checkpoints/step-000002", "checkpoints/step-000003"]


def test_a_rank_that_ends_well_after_a_breach_does_not_save_the_run(tmp_path):
    well = [*finished(0)[2:], exited(0)]
    run, result = end_of(tmp_path, [checkpoint(3, "/x"), *well])
    check_blame(run, result, 0, "its checkpoint of step 3 is not in checkpoints/step-000003")


@pytest.mark.parametrize("runtime", [DockerRuntime(None, "p", {}), LocalRuntime(True)])
@pytest.mark.parametrize(
    "path",
    ["/etc", "..", "", ".", "checkpoints", "checkpoints/step-1", "checkpoints/step-000001/..", "tensorboard/x",
     "checkpoints/step-000001\n", "checkpoints/step-٣٣٣٣٣٣", "checkpoints\\step-000001", "spec.json"],
)  # fmt: skip
def test_a_runtime_fetches_only_what_ranks_write(tmp_path, runtime, path):
    job = Job("r", SPEC, "key", tmp_path)
    with pytest.raises(UserError, match="is no folder that ranks write"):
        runtime.fetch(job, path)
    assert list(Path(tmp_path).iterdir()) == []
