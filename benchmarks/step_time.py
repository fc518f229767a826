"""What our loop costs: step time of SYNC=ddp as local processes, against a plain DDP loop without our code, in one run.

    .venv/bin/python benchmarks/step_time.py        # about 8 minutes on 2 cores, which must have nothing else to do

Both train VGG-11 with the same ranks, threads, batch and precision; they take turns, every second one the other way
round, so that drift hits both alike. The figure is the ratio of the turns' shortest steps, each run's first left out,
with its 95 % interval: whatever else the machine does makes steps longer, never shorter. Goal: at most 1.03.
"""

import json
import os
import random
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.common import ROOT, publish, syncbed
from monitor.estimate import ratio

RANKS, BATCH, STEPS, TURNS = 4, 256, 12, 6


def plain(threads: int) -> list[float]:
    """Rank 0's step times of the plain loop."""
    env = os.environ | {
        "WORLD_SIZE": str(RANKS),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(random.randint(20000, 30000)),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    command = [sys.executable, str(ROOT / "benchmarks" / "plain_ddp.py"), str(BATCH // RANKS), str(STEPS)]
    ranks = [
        subprocess.Popen(command, env=env | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(RANKS)
    ]
    outs = [rank.communicate()[0] for rank in ranks]
    return json.loads(outs[0])[1:]


def ours() -> tuple[list[float], dict]:
    """Rank 0's seconds from step to step of `syncbed run`, what is between the steps included, and its result."""
    result = syncbed(
        "run", "RUNTIME=local", "SYNC=ddp", "DATA=synthetic", f"NODES={RANKS}", f"BATCH={BATCH}", f"STEPS={STEPS}"
    )
    lines = (ROOT / "runs" / result["id"] / "events.jsonl").read_text().splitlines()
    events = [event for event in map(json.loads, lines) if event["event"] == "step" and event["rank"] == 0]
    return [after["time"] - before["time"] for before, after in pairwise(events)], result


def main() -> None:
    threads = max(1, (os.cpu_count() or 1) // RANKS)
    theirs, mine = [], []
    for turn in range(TURNS):
        if turn % 2:
            steps, result = ours()
            theirs.append(min(plain(threads)))
        else:
            theirs.append(min(plain(threads)))
            steps, result = ours()
        mine.append(min(steps))
    found = ratio(mine, theirs)
    figures = {
        "ours_to_plain": round(found.value, 4),
        "interval": [round(found.low, 4), round(found.high, 4)],
        "by_turn": [round(a / b, 4) for a, b in zip(mine, theirs, strict=True)],
        "goal": 1.03,
    }
    publish("step_time", figures, result["spec"])


if __name__ == "__main__":
    main()
