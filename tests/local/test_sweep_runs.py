"""A sweep as a person runs it: killed in the middle, gone on with by the same command, and read by `compare`."""

import json
import os
import subprocess
import sys

from orchestrator import ROOT, processes_of, syncbed, wait_until

WORDS = ["RUNTIME=local", "MODEL=logistic", "DATA=synthetic", "SYNC=single,ddp", "NODES=1,2", "BATCH=32", "NAME=s"]


def test_a_killed_sweep_goes_on_where_it_was(tmp_path):
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "monitor.cli", "sweep", *WORDS, "STEPS=3"]
    first = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True)
    folder = tmp_path / "sweeps" / "s"

    def tries() -> list[dict]:
        return json.loads((folder / "sweep.json").read_text())["tries"] if (folder / "sweep.json").exists() else []

    def running() -> list:
        """The run that the sweep is at, once it has written something."""
        done = {t["run"] for t in tries()}
        return [
            path.parent.name
            for path in folder.glob("*/events.jsonl")
            if path.parent.name not in done and path.read_text()
        ]

    try:
        wait_until(lambda: tries() and running(), 120)
        lost = running()
    finally:
        first.kill()
        first.communicate()
    wait_until(lambda: not any(processes_of(name) for name in lost))
    done = tries()

    again = syncbed(tmp_path, "sweep", *WORDS, "STEPS=3")
    assert again.returncode == 0, again.stdout + again.stderr
    assert f"{len(done)} of 3 runs are finished already" in again.stdout
    assert tries()[: len(done)] == done
    assert [(t["cell"], t["error"]) for t in tries()] == [(0, None), (1, None), (2, None)]
    assert (folder / "report.html").exists()

    told = json.loads(syncbed(tmp_path, "compare", "SWEEP=s", "--json").stdout)
    assert [row["label"] for row in told] == ["SYNC=single NODES=1", "SYNC=ddp NODES=1", "SYNC=ddp NODES=2"]
    for row, tried in zip(told, tries(), strict=True):
        result = json.loads((folder / tried["run"] / "result.json").read_text())
        assert row["test_accuracy"]["value"] == result["test_accuracy"]
        workers = [rank["step_seconds"]["mean"] for rank in result["ranks"]]
        assert row["step_seconds"]["value"] == sum(workers) / len(workers)
    assert told[2]["baseline"] == "SYNC=single NODES=1"
