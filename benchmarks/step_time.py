"""What our loop costs: step time of SYNC=ddp as local processes, against a plain DDP loop without our code, in one run.

    .venv/bin/python benchmarks/step_time.py        # about 10 minutes on 2 cores, which must have nothing else to do

Both train VGG-11 with the same ranks, threads, batch and precision, and are started together; then they take turns of
20 s in which the processes of the other one are stopped, every second pair of turns the other way round, so that drift
hits both alike. The figure is the ratio of mean times from step to step, pair by pair, with its 95 % interval over the
pairs; steps that a turn's first second or its end falls into do not count. Goal: at most 1.03.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.common import ROOT, publish, train
from benchmarks.turns import pairs, take_turns
from monitor.statistics.estimate import ratio
from node.facts import free_port

RANKS, BATCH = 4, 256
TURN_SECONDS, SETTLE_SECONDS = 20.0, 1.0


@contextmanager
def plain(threads: int) -> Iterator[tuple[list[subprocess.Popen], list[float]]]:
    """The plain loop's ranks, and the times at which rank 0's steps ended, which go on to grow."""
    env = os.environ | {
        "WORLD_SIZE": str(RANKS),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    command = [sys.executable, str(ROOT / "benchmarks" / "plain_ddp.py"), str(BATCH // RANKS)]
    ranks = [
        subprocess.Popen(command, env=env | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(RANKS)
    ]
    ends: list[float] = []
    Thread(target=lambda: ends.extend(map(float, ranks[0].stdout)), daemon=True).start()
    try:
        yield ranks, ends
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def our_ends(runs: Path) -> list[float]:
    """The times at which rank 0's steps of the one run in this folder ended."""
    files = [file for file in runs.glob("*/events.jsonl") if not file.parent.is_symlink()]  # not `latest` as well
    lines = [line for file in files for line in file.read_text().splitlines(keepends=True)]
    events = [json.loads(line) for line in lines if line.endswith("\n")]
    return [event["time"] for event in events if event["event"] == "step" and event["rank"] == 0]


def stop(processes: list[psutil.Process], stopped: bool) -> None:
    """Have processes, with all that descend from them, do nothing, or go on."""
    for process in processes:
        for each in (process, *process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                (each.suspend if stopped else each.resume)()


def await_steps(run: Future, ends) -> None:
    """Wait until two steps are done. Exits when the run has ended before."""
    while len(ends()) < 2:
        if run.done():
            sys.exit("the run ended before the plain loop's second step; more steps (--steps) take longer")
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what our loop costs.")
    parser.add_argument("--steps", type=int, default=120, help="steps of our run (default: 120)")
    args = parser.parse_args()
    threads = max(1, (os.cpu_count() or 1) // RANKS)
    words = ("RUNTIME=local", "SYNC=ddp", "DATA=synthetic", f"NODES={RANKS}", f"BATCH={BATCH}", f"STEPS={args.steps}")
    with TemporaryDirectory() as folder, ThreadPoolExecutor(1) as pool, plain(threads) as (ranks, theirs):
        run = pool.submit(train, *words, f"RUNS_DIR={folder}", "DEADLINE=300")
        await_steps(run, lambda: theirs)
        await_steps(run, lambda: our_ends(Path(folder)))
        their_processes = [psutil.Process(rank.pid) for rank in ranks]
        our_processes = [p for p in psutil.Process().children() if p.pid not in {rank.pid for rank in ranks}]

        def give(ours: bool) -> None:
            stop(their_processes if ours else our_processes, True)
            stop(our_processes if ours else their_processes, False)

        turns = take_turns(run, TURN_SECONDS, give)
        both = list(pairs(turns, our_ends(Path(folder)), theirs, SETTLE_SECONDS))
        result = run.result()
    estimate = ratio([ours / plain for ours, plain in both], [1.0] * len(both))  # pair by pair
    figures = {
        "ours_to_plain": round(estimate.value, 4),
        "interval": [round(estimate.low, 4), round(estimate.high, 4)],
        "by_pair": [round(ours / plain, 4) for ours, plain in both],
        "goal": 1.03,
    }
    publish("step_time", figures, result.spec.values())


if __name__ == "__main__":
    main()
