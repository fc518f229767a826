"""Starts n ranks of the trainer as real processes over loopback, and collects what they say."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
from ports import free_port

from trainer import events
from trainer.layout import seats
from trainer.spec import RunSpec

REPOSITORY = Path(__file__).parents[2]


def write_prepared(folder: Path, train: int = 48, test: int = 13, augment: bool = False, seed: int = 0) -> Path:
    """A tiny prepared data set: each class is a colour under noise."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    colours = rng.integers(0, 256, (10, 3, 1, 1))
    arrays = {}
    for split, count in (("train", train), ("test", test)):
        labels = rng.integers(0, 10, count)
        images = np.clip(colours[labels] + rng.normal(0, 40, (count, 3, 32, 32)), 0, 255)
        arrays[f"{split}_images"], arrays[f"{split}_labels"] = images.astype(np.uint8), labels.astype(np.int64)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    scaled = arrays["train_images"] / 255
    manifest = {
        "schema": 1,
        "name": "tiny",
        "shape": [3, 32, 32],
        "classes": [f"class {i}" for i in range(10)],
        "mean": scaled.mean((0, 2, 3)).tolist(),
        "std": scaled.std((0, 2, 3)).tolist(),
        "train_samples": train,
        "test_samples": test,
        "augment": augment,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


class Process:
    """One rank: its events so far, and a way to wait for the next of a kind."""

    def __init__(self, rank: int, command: list[str], env: dict[str, str]):
        self.rank, self.events, self.other_lines = rank, [], []
        self._news, self._ended = threading.Condition(), False
        self.process = subprocess.Popen(
            command, env=env, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.errors: list[str] = []
        self._readers = [threading.Thread(target=target, daemon=True) for target in (self._read, self._drain)]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            event = events.parse(line)
            with self._news:
                (self.events if event else self.other_lines).append(event or line)
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def _drain(self) -> None:
        self.errors.extend(self.process.stderr)

    def of(self, kind) -> list:
        """All events of this kind so far."""
        with self._news:
            return [e for e in self.events if isinstance(e, kind)]

    def wait_for(self, kind, count: int = 1, timeout: float = 90):
        """The count-th event of this kind; fails when the process ends without it."""
        with self._news:
            self._news.wait_for(lambda: self._ended or sum(isinstance(e, kind) for e in self.events) >= count, timeout)
        found = self.of(kind)
        assert len(found) >= count, f"rank {self.rank} said {self.events[-3:]}; stderr: {''.join(self.errors[-20:])}"
        return found[count - 1]

    def end(self, timeout: float = 90) -> int:
        """Wait for the process and all its output; returns its exit code."""
        code = self.process.wait(timeout)
        for reader in self._readers:
            reader.join(10)
        return code


class Ranks:
    """`with Ranks(spec, data) as ranks:` starts one process per rank of the spec; leaving kills what still runs."""

    def __init__(self, spec: RunSpec, data: Path, out: Path | None = None, program=("-m", "trainer"), **env):
        port = free_port()
        common = {k: v for k, v in os.environ.items() if not k.startswith(("SYNCBED_", "PROMETHEUS_"))}
        common |= {"SYNCBED_SPEC": spec.to_json(), "SYNCBED_DATA": str(data), "SYNCBED_CPUS": "1"}
        common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(len(seats(spec)))}
        common |= {"PYTHONPATH": str(REPOSITORY)} | ({"SYNCBED_OUT": str(out)} if out else {})
        command = [sys.executable, *program]
        self.all = []
        for rank in range(len(seats(spec))):
            own = {k: v[rank] if isinstance(v, (list, tuple)) else v for k, v in env.items()}
            self.all.append(Process(rank, command, common | {"RANK": str(rank)} | own))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for rank in self.all:
            if rank.process.poll() is None:
                rank.process.kill()
            rank.process.wait()

    def __getitem__(self, rank: int) -> Process:
        return self.all[rank]

    def __len__(self) -> int:
        return len(self.all)

    def finish(self) -> "Ranks":
        """Wait for all; every one must have ended well and said nothing but events."""
        for rank in self.all:
            assert rank.end() == 0, f"rank {rank.rank}: {rank.events[-1:]} {''.join(rank.errors[-20:])}"
            assert rank.other_lines == []
        return self
