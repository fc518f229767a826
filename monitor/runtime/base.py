"""What a runtime offers. A run needs no more than this of the place where its ranks live."""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

from monitor.capabilities import Capabilities
from monitor.conditions.conditions import Conditions
from monitor.conditions.faults import Fault
from monitor.errors import UserError
from monitor.metrics.sampling import Row
from node.disk import Bound
from node.limits import Limits
from trainer.checkpoint_folder import FOLDER
from trainer.layout import Seat, on_node, seats
from trainer.spec import RunSpec

FETCHED = re.compile(rf"{FOLDER}/step-[0-9]{{6,12}}|tensorboard")  # what ranks write for the orchestrator to have


@dataclass(frozen=True)
class Output:
    """A line from a rank or its launcher; `line` is None when all has ended and no more will come from this rank."""

    rank: int
    stream: str  # "stdout", "stderr", or "launcher": an event that its launcher has signed
    line: str | None
    breach: str | None = None  # how it broke its budget: then nothing else comes from it


@dataclass(frozen=True)
class Job:
    """What the nodes are to run."""

    run_id: str
    spec: RunSpec
    data_key: str  # name of the prepared data folder
    run_folder: Path  # on the orchestrator's side
    proxies: Sequence[Sequence[str]] = ()  # MPI's, by rank: command lines that rank 0's launcher has told

    @property
    def seats(self) -> tuple[Seat, ...]:
        """The ranks, in order."""
        return seats(self.spec)

    def request(
        self,
        seat: Seat,
        key: str,
        python: str,
        limits: Limits | None = None,
        shaped: bool | None = None,
        disk: Bound | None = None,
        **environment: str,
    ) -> bytes:
        """What the node's launcher reads on its stdin (node/launcher.py), a line of JSON. `key`: it signs with this."""
        rank_environment = {
            "RANK": str(seat.rank),
            "WORLD_SIZE": str(len(self.seats)),
            "LOCAL_RANK": str(seat.local_rank),
            "LOCAL_WORLD_SIZE": str(on_node(self.seats, seat.node)),
            "SYNCBED_SPEC": self.spec.to_json(),
        }
        request: dict[str, object] = {"run": self.run_id, "key": key, "rank": seat.rank, "local_rank": seat.local_rank}
        if limits:
            request["limits"] = limits
        if shaped is not None:
            request["shaped"] = shaped
        if disk:
            request["disk"] = disk
        if seat.rank == 0:
            request["wait"] = True  # until the conditions of the run have been brought about
        if self.spec.transport == "mpi":
            first = {"world_size": len(self.seats), "host": environment["MASTER_ADDR"]}
            request["mpi"] = {"proxy": self.proxies[seat.rank]} if seat.rank else first
        request["argv"] = [python, "-m", "trainer"]
        request["env"] = rank_environment | environment
        return json.dumps(request).encode() + b"\n"


class RankHandle(ABC):
    """A rank that was started."""

    @abstractmethod
    def signal(self, name: str) -> None:
        """Send TERM, KILL, STOP, CONT or GO. Never raises: the rank may be gone."""

    def go(self) -> None:
        """Let rank 0 start, whose launcher holds its node and waits for this. Never raises."""
        self.signal("GO")

    @abstractmethod
    def end_reason(self) -> str:
        """Why its stream ended without a last word, as far as it can be known. Never raises."""

    @abstractmethod
    def close(self, vanished: bool = False) -> None:
        """Let go of it. A rank that still runs is killed by its launcher, which is killed itself when it does not end.

        `vanished`: its launcher is gone without a last word, and may have left what its rank had started. Never raises.
        """


class Runtime(ABC):
    """A place where runs happen."""

    name: str
    """As RUNTIME= takes it, and as results have it."""

    capabilities: Capabilities

    default_nodes: int
    """Nodes of a run that names no number."""

    limits: list[Limits]
    """Of the run's nodes in order, after `preflight`."""

    links: list[dict]
    """The same, empty without any: what was asked for, and after `apply_conditions` what was measured."""

    faults: Sequence[Fault]
    """Of the run, after `preflight`."""

    @abstractmethod
    def node_name(self, node: int) -> str:
        """The name of a node, numbered from 0."""

    @abstractmethod
    def note(self, spec: RunSpec) -> str:
        """What the user is told of where the run takes place."""

    def watch(self, run_id: str) -> str | None:
        """The URL at which a run that begins now can be watched; None where there is none. Never raises."""
        return None

    def prometheus(self) -> str | None:
        """The address of the Prometheus that scrapes its nodes; None where there is none: then the run's metrics.csv
        grows as it goes on. Never raises.
        """
        return None

    @abstractmethod
    def preflight(self, spec: RunSpec, conditions: Conditions) -> None:
        """Check every node that the run needs. Raises UserError with the one thing to mend."""

    @abstractmethod
    def push_data(self, folder: Path) -> None:
        """Make a prepared data folder readable for the ranks. Does nothing when it is there already."""

    @abstractmethod
    def push_checkpoint(self, job: Job, folder: Path | None) -> None:
        """Make a checkpoint readable for the ranks of `job`, which will go on from it; None: they begin anew.

        Called before they start.
        """

    @abstractmethod
    def start(self, job: Job, seat: Seat, output: Queue[Output]) -> RankHandle:
        """Start one rank; what it prints arrives in `output`, ending with a line of None."""

    @abstractmethod
    def apply_conditions(self, job: Job, warn: Callable[[str], None]) -> None:
        """Rank 0 holds its node, so that all are this run's: bring about its conditions; ranks start after that.

        Raises UserError and RunFailed.
        """

    @abstractmethod
    def strike(self, fault: Fault) -> None:
        """Bring about a fault of a node, and read back that it is there. Called by another thread. Raises UserError."""

    @abstractmethod
    def relieve(self, fault: Fault) -> None:
        """Take it back, where it has been brought about in part too. Called by another thread. Raises UserError."""

    def fetch(self, job: Job, path: str) -> str:
        """Bring a folder that ranks wrote, named relative to SYNCBED_OUT, whole into the run's folder.

        Returns its path there. Raises UserError when it cannot be had, or is no folder that ranks write.
        """
        if not FETCHED.fullmatch(path):
            raise UserError(f"{path[:100]!r} is no folder that ranks write; {FOLDER}/step-000040 would be one")
        self._bring(job, path)
        return path

    @abstractmethod
    def _bring(self, job: Job, path: str) -> None:
        """As `fetch`, for a path that has been checked."""

    @abstractmethod
    def rows(self, job: Job, start: float, end: float, warn: Callable[[str], None]) -> list[Row]:
        """CPU, memory and network of the run's nodes between two times of CLOCK, a row per node and second.

        One row before and one after are included where there are any, so that counters span the whole time. What
        cannot be had is passed to `warn`; nothing is raised for it.
        """

    @abstractmethod
    def prepare_restart(self, job: Job, seconds: float, stop: Callable[[], bool]) -> None:
        """All ranks have ended: make the nodes ready to start them once more, on another port.

        A node that went away is waited for, at most `seconds` and until `stop` is true. Raises UserError for one that
        does not come back, and Busy when another run has them.
        """

    @abstractmethod
    def release(self, job: Job) -> None:
        """Remove what the run left in the nodes. Called once, however the run ended."""


class Lines:
    """Bytes as they come, lines as they end: split on bytes, a broken character replaced.

    `most`: bytes of a line; what is beyond them is dropped, and `cut` says that it was.
    """

    def __init__(self, most: int = 1 << 20):
        self._most, self.cut = most, False
        self._rest: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[str]:
        """The lines that this piece completes."""
        first, *others = data.split(b"\n")
        self._keep(first)
        lines = []
        for piece in others:
            lines.append(self._line())
            self._keep(piece)
        return lines

    def _keep(self, piece: bytes) -> None:
        """Add to the line that has not ended."""
        room = self._most - self._size
        self.cut = self.cut or len(piece) > room
        if part := piece[:room]:
            self._rest.append(part)
            self._size += len(part)

    def _line(self) -> str:
        line = b"".join(self._rest).decode("utf-8", "replace")
        self._rest, self._size = [], 0
        return line

    def end(self) -> list[str]:
        """The last line, when it had no end."""
        return [self._line()] if self._rest else []
