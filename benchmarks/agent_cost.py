"""What a node's agent costs: its share of one core at one scrape a second, and its memory.

    python benchmarks/agent_cost.py [--scrapes 60] [--interval 1] [--process]

Starts the real agent beside a process that has written a rank's training figures, scrapes it over one kept connection
as Prometheus does, and takes the CPU time that the kernel charged the agent for (the client's is not in it). Targets:
at most 1 % of one core and less than 64 MiB. `--process` measures the agent of RUNTIME=local, which watches a process
tree. Keeps and prints one JSON object; exit code 1 when a target was missed.
"""

import argparse
import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.common import ROOT, publish

MOST_PERCENT, MOST_BYTES = 1.0, 64 * 2**20
RANK = """
import sys
from trainer.events import PHASES, Step
from trainer.run.metrics import Metrics
from trainer.spec import RunSpec
figures = {"loss": 2.3, "accuracy": 0.1, "samples": 64, "sent_bytes": 1, "received_bytes": 1}
metrics = Metrics(0)
metrics.run("an-id", RunSpec(sync="ddp"))
metrics.begin(lambda: (1, 1), 0, 0)
metrics.step(Step(rank=0, step=1, epoch=1, seconds=dict.fromkeys(PHASES, 0.1), step_seconds=0.5, **figures))
metrics.synchronised({("all_reduce", "sent"): 1, ("all_reduce", "received"): 1}, 1)
print("written", flush=True)
sys.stdin.read()
"""


def measure(scrapes: int, interval_seconds: float, watch_process: bool) -> dict:
    """Scrape a fresh agent this often; returns what it cost."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"PROMETHEUS_MULTIPROC_DIR": folder}
        pipes = {"cwd": ROOT, "env": environment, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        extra = ["--process", str(os.getpid())] if watch_process else []
        with (
            subprocess.Popen([sys.executable, "-c", RANK], **pipes) as rank,
            subprocess.Popen([sys.executable, "-m", "node.agent", "--port", "0", *extra], **pipes) as agent,
        ):
            try:
                rank.stdout.readline()
                port = json.loads(agent.stdout.readline())["port"]
                connection = http.client.HTTPConnection("127.0.0.1", port)
                size = len(scrape(connection))  # the first one imports and connects: not counted
                process = psutil.Process(agent.pid)
                before, began = sum(process.cpu_times()[:2]), time.monotonic()
                for number in range(1, scrapes + 1):
                    time.sleep(max(0.0, began + number * interval_seconds - time.monotonic()))
                    scrape(connection)
                cpu, resident = sum(process.cpu_times()[:2]) - before, process.memory_info().rss
            finally:
                agent.kill()
                rank.kill()
    per_scrape = cpu / scrapes
    return {
        "scrapes": scrapes,
        "interval_seconds": interval_seconds,
        "cpu_milliseconds_per_scrape": round(1000 * per_scrape, 3),
        "percent_of_one_core_at_1s": round(100 * per_scrape, 3),
        "resident_bytes": resident,
        "scrape_bytes": size,
        "watches": "process" if watch_process else "cgroup",
    }


def scrape(connection: http.client.HTTPConnection) -> bytes:
    """One GET /metrics over the connection."""
    connection.request("GET", "/metrics")
    return connection.getresponse().read()


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description="Measure the agent's CPU and memory cost.")
    parser.add_argument("--scrapes", type=int, default=60)
    parser.add_argument("--interval", type=float, default=1.0, metavar="SECONDS")
    parser.add_argument("--process", action="store_true", help="the agent of RUNTIME=local")
    args = parser.parse_args()
    result = measure(args.scrapes, args.interval, args.process)
    met = result["percent_of_one_core_at_1s"] <= MOST_PERCENT and result["resident_bytes"] < MOST_BYTES
    spec = {
        "scrapes": args.scrapes,
        "interval_seconds": args.interval,
        "watches": "processes" if args.process else "cgroup",
    }
    publish("agent_cost_local" if args.process else "agent_cost", {**result, "targets_met": met}, spec)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
