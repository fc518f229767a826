"""Runs `syncbed run` as a person does, in a process of its own, on a tiny data set. For local and cluster tests."""

import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil

ROOT = Path(__file__).parents[1]


def write_cifar(folder: Path, train: int = 64, test: int = 13) -> Path:
    """A tiny data set in CIFAR-10's public layout."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name, count in (("data_batch_1", train), ("test_batch", test)):
        labels = rng.integers(0, 10, count)
        pixels = np.clip(labels[:, None] * 25 + rng.normal(0, 20, (count, 3072)), 0, 255).astype(np.uint8)
        (folder / name).write_bytes(pickle.dumps({b"data": pixels, b"labels": labels.tolist()}, protocol=2))
    names = [f"kind{i}" for i in range(10)]
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": names}, protocol=2))
    return folder


def syncbed(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess:
    """Run one command to its end in `folder`."""
    env = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    command = [sys.executable, "-m", "monitor.cli", *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


STARTED: list["Orchestrator"] = []  # tests/conftest.py ends what a failed test leaves


class Orchestrator:
    """One `syncbed run`: its output so far, the events it recorded, and what it left. `bare`: no other settings."""

    def __init__(self, folder: Path, bare: bool = False, **settings):
        self.folder = folder
        self.runs = folder / "runs"
        self._before = self._latest()
        data = folder / "cifar"
        if not data.exists():
            write_cifar(data)
        words = ({} if bare else {"MODEL": "vgg11", "DATA_DIR": data, "BATCH": 8, "STEPS": 3, "PAGES": 0}) | settings
        STARTED.append(self)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "monitor.cli", "run", *(f"{name}={value}" for name, value in words.items())],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish(self, timeout: float = 150) -> tuple[int, str]:
        """Its exit code and all that it printed."""
        out, _ = self.process.communicate(timeout=timeout)
        return self.process.returncode, out

    def _latest(self) -> Path | None:
        link = self.runs / "latest"
        return link.readlink() if link.is_symlink() else None

    @property
    def run(self) -> Path:
        """The run's folder. Raises FileNotFoundError before there is one: `latest` may be that of a run before."""
        latest = self._latest()
        if latest == self._before:
            raise FileNotFoundError(f"{self.runs}: no folder of this run yet")
        return self.runs / latest

    def result(self) -> dict:
        """What result.json says."""
        return json.loads((self.run / "result.json").read_text())

    def weights(self) -> dict[str, str]:
        """Digests of its last checkpoint's model, by parameter."""
        import torch  # most tests of runs need none here

        from trainer.checkpoint.state import digest
        from trainer.checkpoint_folder import complete_ones

        model = torch.load(complete_ones(self.run / "checkpoints")[-1] / "model.pt", weights_only=True)["model"]
        return {name: digest(value) for name, value in model.items()}

    def warnings(self) -> list[str]:
        """The result's warnings, but for scrapes that came late: on a starved machine they do, and it is true."""
        late = ("metrics.csv has no rows for", "metrics.csv lacks its end")
        return [text for text in self.result()["warnings"] if not any(sign in text for sign in late)]

    def events(self, kind: str | None = None, rank: int | None = None) -> list[dict]:
        """The recorded events of this kind and rank, in order."""
        try:
            lines = (self.run / "events.jsonl").read_text().splitlines()
        except OSError:
            return []
        whole = [json.loads(line) for line in lines if line.endswith("}")]
        return [e for e in whole if kind in (None, e["event"]) and rank in (None, e["rank"])]

    def wait_for(self, kind: str, rank: int | None = None, timeout: float = 120) -> dict:
        """The first event of this kind; fails when the run ends without it."""
        wait_until(lambda: self.process.poll() is not None or self.events(kind, rank), timeout)
        assert self.events(kind, rank), f"ended without {kind}: {self.process.stdout.read()}"
        return self.events(kind, rank)[0]


def wait_until(holds: Callable, timeout: float = 90, every: float = 0.05):
    """What `holds` returns once it is true; an AssertionError when that never comes."""
    until = time.monotonic() + timeout
    while not (value := holds()):
        assert time.monotonic() < until, f"not within {timeout} s: {holds}"
        time.sleep(every)
    return value


def processes_of(run_id: str, name: str | None = None) -> list[psutil.Process]:
    """Processes of this run, and of this name, that live on this machine, in containers too."""
    found = []
    for process in psutil.process_iter():
        try:
            of_run = process.environ().get("SYNCBED_RUN_ID") == run_id and process.status() != psutil.STATUS_ZOMBIE
            if of_run and name in (None, process.name()):
                found.append(process)
        except psutil.Error:
            continue
    return found
