"""What monitoring costs a run: step time on the cluster while Prometheus scrapes each second, against without.

    make cluster-up && .venv/bin/python benchmarks/monitoring_cost.py    # about 12 minutes; nothing else may run

The two take turns of 10 s within one run, every second pair the other way round, so that drift hits both alike.
Without: Prometheus' container is paused, so that nobody asks the agents and Prometheus itself takes no CPU; the agents
wait. So the ratio holds the agents' answers, the work of Prometheus on this machine, and the traffic between them. What
it does not hold: the ranks write their live figures in both; what that takes of a step is measured by itself, in CPU
time in a node.

The ratio is that of mean step times, from step to step: a scrape hits one step in a few, so the shortest step would not
show it. It is taken pair by pair, and its 95 % interval is over the pairs. Steps that a turn's first second or its end
falls into do not count. Goal: at most 1.01. The CPU time that agents and Prometheus take while they work is counted as
well, as a share of what the machine has: where ranks use all of it, a step cannot grow by more, but for what is evicted
from caches.
"""

import argparse
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.common import ROOT, publish, train
from benchmarks.turns import pairs, take_turns
from monitor.engine import sdk
from monitor.engine.containers import containers
from monitor.statistics.estimate import ratio

GOAL = 1.01
TURN_SECONDS, SETTLE_SECONDS = 10.0, 1.0
SETTINGS = ("RUNTIME=docker", "SYNC=ddp", "MODEL=vgg11", "DATA=synthetic", "BATCH=64")
LIVE_FIGURES = """
import os, tempfile, time
with tempfile.TemporaryDirectory() as folder:
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
    from trainer.events import PHASES, Step
    from trainer.run.metrics import metrics
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
# All threads of this node's agent, in nanoseconds on a CPU: proc_pid_schedstat in Linux' Documentation/scheduler.
AGENT_CPU = """
from pathlib import Path
agents = [p.parent for p in Path("/proc").glob("[0-9]*/cmdline") if b"\\0node.agent" in p.read_bytes()]
stats = [s.read_text() for agent in agents for s in agent.glob("task/*/schedstat")]
print(sum(int(text.split()[0]) for text in stats) / 1e9)
"""


def cpu_seconds(services: dict) -> dict[str, float]:
    """What each service's monitoring has used: a node's agent, and all of Prometheus."""
    used = {}
    for name, container in services.items():
        if name == "prometheus":
            used[name] = container.stats(stream=False, one_shot=True)["cpu_stats"]["cpu_usage"]["total_usage"] / 1e9
        elif name.startswith("trainer-"):
            code, out = container.exec_run(["python", "-c", AGENT_CPU])
            if code:
                sys.exit(f"the agent's CPU time could not be read: {out.decode().strip()}")
            used[name] = float(out)
    return used


def scrape(prometheus, on: bool) -> None:
    """Have Prometheus go on, or hold it still."""
    prometheus.reload()
    if (prometheus.status == "paused") == on:
        (prometheus.unpause if on else prometheus.pause)()


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what monitoring costs a run on the cluster.")
    parser.add_argument("--steps", type=int, default=1000, help="steps of the run (default: 1000)")
    parser.add_argument("--project", default="syncbed", help="name of the cluster (default: syncbed)")
    args = parser.parse_args()
    services = {c.labels["com.docker.compose.service"]: c for c in containers(sdk.connect(), args.project)}
    if "prometheus" not in services:
        sys.exit(f"no cluster {args.project} is up; `make cluster-up` starts one")
    code, out = services["trainer-0"].exec_run(["python", "-c", LIVE_FIGURES])
    if code:
        sys.exit(f"the live figures could not be measured: {out.decode().strip()}")
    before, prometheus = cpu_seconds(services), services["prometheus"]
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(train, f"PROJECT={args.project}", *SETTINGS, f"STEPS={args.steps}")
        try:
            turns = take_turns(run, TURN_SECONDS, partial(scrape, prometheus))
        finally:
            scrape(prometheus, True)
    result = run.result()
    used = {name: seconds - before[name] for name, seconds in cpu_seconds(services).items()}
    lines = (ROOT / "runs" / result.id / "events.jsonl").read_text().splitlines()
    times = [event["time"] for event in map(json.loads, lines) if event["event"] == "step" and event["rank"] == 0]
    both = list(pairs(turns, times, times, SETTLE_SECONDS))
    if len(both) < 2:
        sys.exit(f"{len(both)} pairs of turns have steps; more steps (--steps) make more")
    estimate = ratio([scraped / alone for scraped, alone in both], [1.0] * len(both))  # pair by pair
    during = sum(turn.ended - turn.began for turn in turns if turn.first)
    step_seconds, agents = (
        fmean(scraped for scraped, _ in both),
        [used[name] for name in used if name.startswith("trainer-")],
    )
    figures = {
        "scraped_to_not_scraped": round(estimate.value, 4),
        "interval": [round(estimate.low, 4), round(estimate.high, 4)],
        "by_pair": [round(scraped / alone, 4) for scraped, alone in both],
        "step_seconds_scraped": round(step_seconds, 4),
        "agent_percent_of_one_core": round(100 * max(agents) / during, 2),
        "prometheus_percent_of_one_core": round(100 * used["prometheus"] / during, 2),
        "share_of_the_machines_cpu": round(sum(used.values()) / during / os.cpu_count(), 4),
        "live_figures_microseconds_per_step": round(1e6 * float(out), 1),
        "live_figures_share_of_a_step": round(float(out) / step_seconds, 6),
        "goal": GOAL,
    }
    publish("monitoring_cost", figures, result.spec.values())


if __name__ == "__main__":
    main()
