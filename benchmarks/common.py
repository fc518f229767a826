"""What every benchmark needs: this machine in a few words, runs of `syncbed`, and a place for the figures."""

import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from monitor.results.machine import host
from monitor.results.result import Result

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"


def train(*words: str) -> Result:
    """`syncbed run` with these settings. Exits with its message when it fails."""
    command = ["run", *words, "PAGES=0"]
    done = subprocess.run(
        [sys.executable, "-m", "monitor.cli", *command, "--json"], cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"syncbed {' '.join(command)}: {done.stderr.strip()}")
    return Result.model_validate_json(done.stdout)


def publish(name: str, figures: dict, spec: dict, show: bool = True) -> None:
    """Keep the figures in benchmarks/results/, with the machine, versions and spec they belong to; print them too."""
    versions = {package: version(package) for package in ("torch", "numpy", "docker", "prometheus-client")}
    record = {
        "command": "python " + " ".join(re.sub("^(DATA_DIR|DATA_CACHE)=.*", r"\1=...", word) for word in sys.argv),
        "figures": figures,
        "spec": spec,
        "machine": host().model_dump(),
        "versions": {"python": sys.version.split()[0], **versions},
    }
    text = json.dumps(record, indent=1)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(text + "\n")
    if show:
        print(text)
