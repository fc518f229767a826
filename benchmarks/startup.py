"""From `make run` to the first step on a warm cluster, and where that time goes.

    make cluster-up && .venv/bin/python benchmarks/startup.py       # about 2 minutes

Goal: at most 8 s with 4 nodes on 2 cores, from the start of make to the end of the first step of the slowest rank.
"""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.common import ROOT, publish

TURNS = 5
WORDS = ["RUNTIME=docker", "SYNC=ddp", "DATA=synthetic", "NODES=4", "STEPS=1", "PAGES=0"]


def one() -> tuple[dict[str, float], dict]:
    """Seconds of each part of one start, and the run's spec."""
    began = time.time()
    done = subprocess.run(["make", "-s", "run", *WORDS], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr or done.stdout)
    folder = ROOT / "runs" / (ROOT / "runs" / "latest").readlink()
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    last = {kind: max(e["time"] for e in events if e["event"] == kind) for kind in ("started", "ready", "step")}
    parts = {
        "make, checks of the nodes, data": last["started"] - began,
        "import torch, form the group, build": last["ready"] - last["started"],
        "first step": last["step"] - last["ready"],
        "total": last["step"] - began,
    }
    return parts, json.loads((folder / "spec.json").read_text())


def main() -> None:
    one()  # the data set goes into the cluster once
    turns = [one() for _ in range(TURNS)]
    parts = {name: round(statistics.median(turn[0][name] for turn in turns), 2) for name in turns[0][0]}
    publish("startup", {"median_seconds": parts, "goal_seconds": 8.0, "turns": TURNS}, turns[0][1])


if __name__ == "__main__":
    main()
