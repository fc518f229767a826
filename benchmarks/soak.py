"""Many short runs in a row on one cluster: what grows with them?

    make cluster-up && make soak RUNS=200       # about 10 s a run; PROJECT= names the cluster

After each run: memory, open files, processes and sockets of the nodes, memory, open files and disk of Prometheus,
containers, what is left in the cluster's volumes, memory and open files of the engine (where this process may see
them), and how long the run took to its first step. Of each the least-squares slope per run with its 95 % interval.
"growing": the interval is above 0, and at that slope all runs together add more than 5 % to the level. Else "flat". The
first runs, in which caches fill, are left out of the slopes.

Keeps benchmarks/results/soak.json and soak.svg; exit code 1 when something grows.
"""

import json
import os
import re
import shutil
import statistics
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.common import RESULTS, publish, train
from monitor.engine import containers, naming, sdk
from monitor.errors import UserError
from monitor.report.plots import Lines, Series, alone, svg
from monitor.statistics.estimate import Estimate, trend

WARM_RUNS, WARM_SHARE = 3, 0.1  # left out of the slopes: so many, or this part of all; none of fewer than six
SHARE = 0.05  # of its level: less growth than that over all runs is none
WORDS = {"RUNTIME": "docker", "SYNC": "ddp", "MODEL": "logistic", "DATA": "synthetic", "STEPS": "3"}
# In a node, as its user: [resident bytes of the agent, open files, processes, sockets, bytes in /data and /runs].
LOOK = """
import json, os, pathlib
agent = files = processes = 0
for proc in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        words, opened = (proc / "cmdline").read_bytes(), len(os.listdir(proc / "fd"))
    except OSError:  # gone, or the container's first process
        continue
    if int(proc.name) == os.getpid():
        continue
    processes, files = processes + 1, files + opened
    if b"node.agent" in words:
        pages = int((proc / "statm").read_text().split()[1])
        agent += pages * os.sysconf("SC_PAGE_SIZE")
lines = [line.split() for name in ("tcp", "udp") for line in open("/proc/net/" + name).readlines()[1:]]
sockets = sum(line[3] != "06" for line in lines)  # without those that wait a minute to be forgotten (TIME_WAIT)
disk = sum(f.stat().st_size for top in ("/data", "/runs") for f in pathlib.Path(top).rglob("*") if f.is_file())
print(json.dumps([agent, files, processes, sockets, disk]))
"""
PROMETHEUS = {  # its own metric: what we call it
    "process_resident_memory_bytes": "memory of Prometheus, bytes",
    "process_open_fds": "open files of Prometheus",
    "prometheus_tsdb_wal_storage_size_bytes": "log of Prometheus on disk, bytes",
}


def look(client, project: str, url: str | None) -> dict[str, float]:
    """What there is now, by name."""
    with sdk.guard():
        everything = client.containers.list(all=True, filters={"label": f"{naming.PROJECT_LABEL}={project}"})
        nodes = [c for c in everything if c.labels.get(naming.ROLE_LABEL) == "node"]
        answers = [json.loads(node.exec_run(["python", "-c", LOOK]).output) for node in nodes]
    agent, files, processes, sockets, disk = zip(*answers, strict=True)
    values = {
        "memory of the agents, bytes": sum(agent),
        "open files in the nodes": sum(files),
        "processes in the nodes": sum(processes),
        "sockets in the nodes": sum(sockets),
        "data and runs on disk, bytes": max(disk),  # one volume, which all nodes see
        "containers": len(everything),
    }
    if url:
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        for metric, name in PROMETHEUS.items():
            if value := re.search(rf"^{metric} (\S+)$", text, re.MULTILINE):
                values[name] = float(value[1])
    engines = [p for p in psutil.process_iter(["name"]) if p.info["name"] == "dockerd"]
    if len(engines) == 1 and os.access(f"/proc/{engines[0].pid}/fd", os.R_OK):
        values["memory of dockerd, bytes"] = engines[0].memory_info().rss
        values["open files of dockerd"] = engines[0].num_fds()
    return values


def judged(values: Sequence[float]) -> dict:
    """Level, slope per run with its interval, and the verdict."""
    warm = max(WARM_RUNS, round(WARM_SHARE * len(values)))
    used = values[warm:] if len(values) >= 2 * WARM_RUNS else values
    slope, level = trend(used), statistics.median(used)
    return {"level": level, "slope_per_run": asdict(slope), "verdict": verdict(slope, level, len(used))}


def verdict(slope: Estimate, level: float, runs: int) -> str:
    """flat or growing."""
    return "growing" if slope.above(0.0) and slope.value * runs > SHARE * level else "flat"


def figure(series: dict[str, list[float]]) -> str:
    """All series over the runs, each as a share of its own mean, as an SVG file."""
    lines = []
    for name, values in series.items():
        level, label = statistics.fmean(values) or 1.0, name.removesuffix(", bytes")
        lines.append(Series(label, list(range(1, len(values) + 1)), [value / level for value in values]))
    plot = Lines("soak", "Runs in a row on one cluster", "run", "share of its mean", lines, whole_x=True)
    return alone(svg(plot))


def soak(project: str, runs: int) -> tuple[dict[str, list[float]], dict]:
    """Make the runs; what there was after each, by name, and their spec."""
    client = sdk.connect()
    with sdk.guard():
        url = containers.urls(client, project).get("prometheus")
    series: dict[str, list[float]] = {}
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    try:
        for number in range(1, runs + 1):
            words = WORDS | {"PROJECT": project, "RUNS_DIR": str(folder)}
            result = train(*(f"{name}={value}" for name, value in words.items()))
            shutil.rmtree(folder / result.id)
            seconds = {"seconds to the first step": result.seconds.startup}
            seconds["seconds of the whole run"] = result.seconds.total
            for name, value in (seconds | look(client, project, url)).items():
                series.setdefault(name, []).append(value)
            print(f"run {number}/{runs}: {result.seconds.startup:.1f} s to the first step", file=sys.stderr)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return series, result.spec.values()


def main() -> int:
    text = os.environ.get("RUNS", "200")
    if not (text.isascii() and text.isdigit() and int(text) >= 3):
        raise UserError(f"RUNS={text}: a whole number from 3")
    project = naming.project({"PROJECT": os.environ["PROJECT"]} if "PROJECT" in os.environ else {})
    series, spec = soak(project, int(text))
    verdicts = {name: judged(values) | {"values": values} for name, values in series.items()}
    (RESULTS / "soak.svg").write_text(figure(series))
    publish("soak", {"runs": int(text), "series": verdicts}, spec)
    growing = [name for name, one in verdicts.items() if one["verdict"] == "growing"]
    print("growing: " + "; ".join(growing) if growing else "all flat", file=sys.stderr)
    return 1 if growing else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        print(f"soak: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
