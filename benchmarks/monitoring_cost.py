"""What monitoring costs a run: step time on the cluster while Prometheus scrapes each second, against without.

    make cluster-up && .venv/bin/python benchmarks/monitoring_cost.py    # about 15 minutes; nothing else may run

The two take turns in one go, every second pair the other way round, so that drift hits both alike. Without: Prometheus'
container is paused, so that nobody asks the agents and Prometheus itself takes no CPU; the agents wait. So the ratio
holds the agents' answers, the work of Prometheus on this machine, and the traffic between them. What it does not hold:
the ranks write their live figures in both; what that takes of a step is measured by itself, in CPU time in a node.

The figure is the ratio of the turns' mean step times, from step to step, the first left out: a scrape hits one step in
a few, so the shortest step would not show it. With its 95 % interval. Goal: at most 1.01.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.common import ROOT, publish, syncbed
from monitor import engine
from monitor.cluster import containers
from monitor.estimate import ratio

GOAL = 1.01
SETTINGS = ("RUNTIME=docker", "SYNC=ddp", "MODEL=vgg11", "DATA=synthetic", "BATCH=64", "STEPS=30")
LIVE_FIGURES = """
import os, tempfile, time
with tempfile.TemporaryDirectory() as folder:
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
    from trainer.events import PHASES, Step
    from trainer.metrics import metrics
    figures = metrics(0)
    figures.begin(lambda: (1, 1), 0, 0)
    said = {"loss": 2.3, "accuracy": 0.1, "samples": 64, "sent_bytes": 1, "received_bytes": 1, "step_seconds": 0.5}
    event = Step(rank=0, step=1, epoch=1, seconds=dict.fromkeys(PHASES, 0.1), **said)
    traffic = {("all_reduce", "sent"): 1, ("all_reduce", "received"): 1}
    began = time.process_time()
    for step in range(5000):
        figures.step(event)
        figures.synchronised(traffic, step)
    print((time.process_time() - began) / 5000)
"""


@contextmanager
def held_still(container) -> Iterator[None]:
    """A container that does nothing."""
    container.pause()
    try:
        yield
    finally:
        container.unpause()


def step_seconds(project: str) -> tuple[float, dict]:
    """Rank 0's mean time from step to step, what is between the steps included, and the result."""
    result = syncbed("run", f"PROJECT={project}", *SETTINGS)
    lines = (ROOT / "runs" / result["id"] / "events.jsonl").read_text().splitlines()
    times = [event["time"] for event in map(json.loads, lines) if event["event"] == "step" and event["rank"] == 0]
    return fmean(after - before for before, after in pairwise(times)), result


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what monitoring costs a run on the cluster.")
    parser.add_argument("--turns", type=int, default=8, choices=range(2, 100), metavar="N", help="from 2 (default: 8)")
    parser.add_argument("--project", default="syncbed", help="name of the cluster (default: syncbed)")
    args = parser.parse_args()
    services = {c.labels["com.docker.compose.service"]: c for c in containers(engine.connect(), args.project)}
    if "prometheus" not in services:
        sys.exit(f"no cluster {args.project} is up; `make cluster-up` starts one")
    code, out = services["trainer-0"].exec_run(["python", "-c", LIVE_FIGURES])
    if code:
        sys.exit(f"the live figures could not be measured: {out.decode().strip()}")
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(args.turns):
        for scraped in (True, False) if turn % 2 else (False, True):
            with nullcontext() if scraped else held_still(services["prometheus"]):
                mean, result = step_seconds(args.project)
            seconds[scraped].append(mean)
    found = ratio(seconds[True], seconds[False])
    own = fmean(seconds[True])
    figures = {
        "scraped_to_not_scraped": round(found.value, 4),
        "interval": [round(found.low, 4), round(found.high, 4)],
        "by_turn": [round(a / b, 4) for a, b in zip(seconds[True], seconds[False], strict=True)],
        "step_seconds_scraped": round(own, 4),
        "live_figures_microseconds_per_step": round(1e6 * float(out), 1),
        "live_figures_share_of_a_step": round(float(out) / own, 6),
        "goal": GOAL,
    }
    publish("monitoring_cost", figures, result["spec"])


if __name__ == "__main__":
    main()
