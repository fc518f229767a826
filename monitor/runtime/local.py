"""RUNTIME=local: every node is a process group on this machine, over loopback. No Docker, no limits, the same trainer.

A node is two processes: the launcher with its rank, and an agent that the orchestrator scrapes once a second.
"""

import importlib.util
import io
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Queue
from typing import IO

from monitor.capabilities import RUNTIMES
from monitor.conditions.conditions import Conditions
from monitor.conditions.faults import Fault
from monitor.errors import UserError
from monitor.metrics.sampling import Row, Sampler
from monitor.runtime.base import Job, Output, RankHandle, Runtime
from monitor.runtime.ownership import STATE_PREFIX, own
from monitor.runtime.streams import RankOutput, budget_of
from node import ending, mpi
from node.facts import free_port
from node.leftovers import launcher_command
from node.signature import new_key
from trainer.layout import Seat, on_node
from trainer.spec import RunSpec

ROOT = Path(__file__).resolve().parents[2]
CLOSE_SECONDS = 2.0  # how long a launcher may take to end once its rank is killed


class LocalRuntime(Runtime):
    """Processes of this machine. `is_named`: whether the user asked for them, and not only a cluster is not up."""

    name = "local"
    capabilities = RUNTIMES[name]
    default_nodes = 4

    def __init__(self, is_named: bool):
        self._why = "" if is_named else "no cluster is up: "
        self._data: Path | None = None
        self._resume: Path | None = None
        self._state: tempfile.TemporaryDirectory[str] | None = None  # from `preflight` to `release`
        self._owner: IO[str] | None = None
        self._sampler = Sampler()
        self._lock = threading.Lock()  # ranks are started side by side
        self._launchers: dict[int, list[int]] = {}  # process ids by node
        self._agents: list[subprocess.Popen] = []
        self._port = 0

    def node_name(self, node: int) -> str:
        return f"local-{node}"

    def note(self, spec: RunSpec) -> str:
        nodes = "1 local node" if spec.nodes == 1 else f"{spec.nodes} local nodes"
        return f"{self._why}training on this machine over loopback (RUNTIME=local: {nodes}, {os.cpu_count()} cores)"

    def preflight(self, spec: RunSpec, conditions: Conditions) -> None:
        if importlib.util.find_spec("torch") is None:
            raise UserError("RUNTIME=local: torch is not installed here; `make run` installs it, or `make torch`")
        if spec.transport == "mpi" and (importlib.util.find_spec("mpi4py") is None or not mpi.mpiexec().exists()):
            raise UserError("TRANSPORT=mpi: mpich and mpi4py are not installed here; `make torch` installs them")
        self.limits, self.links = [{"cpus": None, "memory_bytes": None}] * spec.nodes, []
        self.faults = conditions.faults
        self._cores = (os.cpu_count() or 1) / spec.nodes
        self._state = tempfile.TemporaryDirectory(prefix=STATE_PREFIX, ignore_cleanup_errors=True)
        self._owner = own(Path(self._state.name))
        self._port = free_port()

    def push_data(self, folder: Path) -> None:
        self._data = folder

    def push_checkpoint(self, job: Job, folder: Path | None) -> None:
        self._resume = folder.resolve() if folder else None

    def start(self, job: Job, seat: Seat, output: Queue[Output]) -> RankHandle:
        state, key = self._node_state(seat.node), new_key()
        process = subprocess.Popen(
            launcher_command(sys.executable, str(state)),
            env=_environment() | {"SYNCBED_STATE": str(state)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is the orchestrator's to handle
        )
        request = job.request(
            seat,
            key,
            sys.executable,
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(self._port),
            SYNCBED_DATA=str(self._data),
            SYNCBED_OUT=str(job.run_folder.resolve()),
            SYNCBED_CPUS=str(self._cores),
            SYNCBED_RESUME=str(self._resume or ""),
        )
        stdin = _pipe(process.stdin)
        stdin.write(request)
        stdin.flush()
        with self._lock:
            launchers = self._launchers.setdefault(seat.node, [])
            launchers.append(process.pid)
            if len(launchers) == on_node(job.seats, seat.node):
                self._sampler.keep(job.run_folder / "metrics.csv")
                self._start_agent(seat.node, launchers, state / "metrics")
        return LocalRank(process, RankOutput(seat.rank, output, key, budget_of(job.spec)))

    def apply_conditions(self, job: Job, warn: Callable[[str], None]) -> None:
        pass  # Conditions.of has refused any that were asked for

    def strike(self, fault: Fault) -> None:
        pass  # the same

    def relieve(self, fault: Fault) -> None:
        pass

    def _node_state(self, node: int) -> Path:
        assert self._state is not None, "preflight comes first"
        state = Path(self._state.name) / str(node)
        state.mkdir(exist_ok=True)
        return state

    def _start_agent(self, node: int, launchers: list[int], metrics: Path) -> None:
        flags = ["--port", "0", "--node", self.node_name(node), "--watch-stdin"]
        agent = subprocess.Popen(
            [sys.executable, "-m", "node.agent", *flags, *(f"--process={pid}" for pid in launchers)],
            env=_environment() | {"PROMETHEUS_MULTIPROC_DIR": str(metrics)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._agents.append(agent)
        self._sampler.watch(self.node_name(node), _pipe(agent.stdout))

    def _bring(self, job: Job, path: str) -> None:
        if not (job.run_folder / path).is_dir():
            raise UserError(f"{job.run_folder / path} is not there")

    def rows(self, job: Job, start: float, end: float, warn: Callable[[str], None]) -> list[Row]:
        return [row for row in self._sampler.rows() if start - 1 <= row.time <= end + 1]

    def prepare_restart(self, job: Job, seconds: float, stop: Callable[[], bool]) -> None:
        self._end_agents()  # which watch launchers that have ended
        self._launchers.clear()
        self._port = free_port()

    def _end_agents(self) -> None:
        self._sampler.stop()
        for agent in self._agents:
            agent.kill()
            agent.wait()
        self._agents.clear()

    def release(self, job: Job) -> None:
        self._end_agents()
        self._sampler.close()
        if self._state:
            self._state.cleanup()
        if self._owner:
            self._owner.close()


class LocalRank(RankHandle):
    """`process`: its launcher, with pipes."""

    def __init__(self, process: subprocess.Popen[bytes], output: RankOutput):
        self._process, self._stdin = process, _pipe(process.stdin)
        streams = [("stdout", process.stdout), ("stderr", process.stderr)]
        readers = [threading.Thread(target=_read, args=(*stream, output), daemon=True) for stream in streams]
        for reader in readers:
            reader.start()
        threading.Thread(target=_end, args=(readers, process, output), daemon=True).start()

    def signal(self, name: str) -> None:
        with suppress(OSError):  # the launcher is gone, and its rank with it
            self._stdin.write(name.encode() + b"\n")
            self._stdin.flush()

    def end_reason(self) -> str:
        code = self._process.poll()
        if code is not None and code < 0:
            return f"its launcher was killed by {signal.Signals(-code).name}"
        return "its launcher closed its output" if code is None else f"its launcher ended with exit code {code}"

    def close(self, vanished: bool = False) -> None:
        with suppress(OSError):
            self._stdin.close()
        try:
            self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:  # stopped, it reads nothing
            ending.kill(ending.tree(self._process.pid))
            self._process.wait()


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    """The stream of a process that was started with subprocess.PIPE."""
    assert stream is not None
    return stream


def _read(name: str, stream: io.BufferedReader, output: RankOutput) -> None:
    while data := stream.read1(1 << 16):
        output.feed(name, data)


def _end(readers: list[threading.Thread], process: subprocess.Popen, output: RankOutput) -> None:
    for reader in readers:
        reader.join()
    process.wait()
    output.end()


def _environment() -> dict[str, str]:
    """This process's environment, with our packages importable from any folder."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
