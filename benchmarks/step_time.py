"""What our loop costs: step time of SYNC=ddp as local processes, against a plain DDP loop without our code, in one run.

    .venv/bin/python benchmarks/step_time.py        # about 6 minutes on 2 cores, which must have nothing else to do

Both train VGG-11 with the same ranks, threads, batch and precision; they take turns, so that drift hits both alike. The
figure is the ratio of the medians over all steps but each run's first, with the ratio of each turn beside it.
Goal: at most 1.03.
"""

import json
import os
import random
import statistics
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.common import ROOT, publish, syncbed

RANKS, BATCH, STEPS, TURNS = 4, 256, 12, 3


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
    turns, theirs, mine = [], [], []
    for _ in range(TURNS):
        a = plain(threads)
        b, result = ours()
        turns.append(round(statistics.median(b) / statistics.median(a), 4))
        theirs += a
        mine += b
    ratio = statistics.median(mine) / statistics.median(theirs)
    publish("step_time", {"ours_to_plain": round(ratio, 4), "by_turn": turns, "goal": 1.03}, result["spec"])


if __name__ == "__main__":
    main()
