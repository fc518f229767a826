"""RUNTIME=local: every node is a process group on this machine, over loopback. No Docker, no limits, the same trainer.

A node is two processes: the launcher with its rank, and an agent that the orchestrator scrapes once a second.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Queue

from monitor.errors import UserError
from monitor.node import free_port
from monitor.runtime.base import Job, Lines, RankHandle, Runtime, Said
from monitor.sampling import Row, Sampler
from trainer.spec import RunSpec

ROOT = Path(__file__).resolve().parents[2]


class LocalRuntime(Runtime):
    name = "local"
    default_nodes = 4

    def __init__(self, chosen: bool):
        cores = os.cpu_count() or 1
        why = "" if chosen else "no cluster is up: "
        self.notes = [f"{why}training on this machine over loopback (RUNTIME=local, {cores} cores shared by the nodes)"]
        self._data: Path | None = None
        self._state = None
        self._sampler: Sampler | None = None
        self._agents: list[subprocess.Popen] = []
        self._port = 0

    def node_name(self, rank: int) -> str:
        return f"local-{rank}"

    def preflight(self, spec: RunSpec) -> None:
        if importlib.util.find_spec("torch") is None:
            raise UserError("RUNTIME=local: torch is not installed here; `make run` installs it, or `make torch`")
        self._cores = (os.cpu_count() or 1) / spec.nodes
        self._state = tempfile.TemporaryDirectory(prefix="syncbed-", ignore_cleanup_errors=True)
        self._port = free_port()

    def push_data(self, folder: Path) -> None:
        self._data = folder

    def start(self, job: Job, rank: int, said: Queue) -> RankHandle:
        state = Path(self._state.name) / str(rank)
        metrics = state / "metrics"
        metrics.mkdir(parents=True)
        request = {
            "run": job.run_id,
            "rank": rank,
            "argv": [sys.executable, "-m", "trainer"],
            "env": {
                "RANK": str(rank),
                "WORLD_SIZE": str(job.spec.nodes),
                "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "1",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(self._port),
                "SYNCBED_SPEC": job.spec.to_json(),
                "SYNCBED_DATA": str(self._data),
                "SYNCBED_OUT": str(job.run_folder.resolve()),
                "SYNCBED_CPUS": str(self._cores),
            },
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "monitor.node", "run"],
            env=_environment() | {"SYNCBED_STATE": str(state)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is the orchestrator's to handle
        )
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        self._start_agent(job, rank, process.pid, metrics)
        return LocalRank(process, rank, said)

    def _start_agent(self, job: Job, rank: int, launcher: int, metrics: Path) -> None:
        flags = ["--port", "0", "--node", self.node_name(rank), "--process", str(launcher), "--watch-stdin"]
        agent = subprocess.Popen(
            [sys.executable, "-m", "monitor.agent", *flags],
            env=_environment() | {"PROMETHEUS_MULTIPROC_DIR": str(metrics)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._agents.append(agent)
        if self._sampler is None:
            self._sampler = Sampler()
        self._sampler.watch(self.node_name(rank), agent.stdout)

    def fetch(self, job: Job, path: str) -> str:
        return str(Path(path).relative_to(job.run_folder.resolve()))

    def rows(self, job: Job, start: float, end: float, warn: Callable[[str], None]) -> list[Row]:
        found = self._sampler.rows() if self._sampler else []
        return [row for row in found if start - 1 <= row.time <= end + 1]

    def release(self, job: Job) -> None:
        if self._sampler:
            self._sampler.stop()
        for agent in self._agents:
            agent.kill()
            agent.wait()
        if self._state:
            self._state.cleanup()


class LocalRank(RankHandle):
    def __init__(self, process: subprocess.Popen, rank: int, said: Queue):
        self._process = process
        streams = [("stdout", process.stdout), ("stderr", process.stderr)]
        readers = [threading.Thread(target=_read, args=(rank, *s, said), daemon=True) for s in streams]
        for reader in readers:
            reader.start()
        threading.Thread(target=_end, args=(rank, readers, process, said), daemon=True).start()

    def signal(self, name: str) -> None:
        with suppress(OSError):  # the launcher is gone, and its rank with it
            self._process.stdin.write(name.encode() + b"\n")
            self._process.stdin.flush()

    def close(self) -> None:
        with suppress(OSError):
            self._process.stdin.close()
        self._process.wait()


def _read(rank: int, name: str, stream, said: Queue) -> None:
    lines = Lines()
    while data := stream.read1(1 << 16):
        for line in lines.feed(data):
            said.put(Said(rank, name, line))
    for line in lines.end():
        said.put(Said(rank, name, line))


def _end(rank: int, readers: list[threading.Thread], process: subprocess.Popen, said: Queue) -> None:
    for reader in readers:
        reader.join()
    process.wait()
    said.put(Said(rank, "stdout", None))


def _environment() -> dict[str, str]:
    """This process's environment, with our packages importable from any folder."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
