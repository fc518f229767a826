"""What a runtime offers. A run needs no more than this of the place where its ranks live."""

import codecs
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

from monitor.sampling import Row
from trainer.spec import RunSpec


@dataclass(frozen=True)
class Said:
    """A line that a rank printed; `line` is None when the stream has ended and no more will come from this rank."""

    rank: int
    stream: str  # "stdout" or "stderr"
    line: str | None


@dataclass(frozen=True)
class Job:
    """What the nodes are to run."""

    run_id: str
    spec: RunSpec
    data_key: str  # name of the prepared data folder
    run_folder: Path  # on the orchestrator's side


class RankHandle(ABC):
    """A rank that was started."""

    @abstractmethod
    def signal(self, name: str) -> None:
        """Send TERM or KILL. Never raises: the rank may be gone."""

    @abstractmethod
    def close(self) -> None:
        """Let go of it. A rank that still runs is killed by its launcher."""


class Runtime(ABC):
    name: str
    default_nodes: int
    notes: list[str]  # lines that the user is told before a run

    @abstractmethod
    def node_name(self, rank: int) -> str:
        """The name of the node that holds this rank."""

    @abstractmethod
    def preflight(self, spec: RunSpec) -> None:
        """Check every node that the run needs. Raises UserError with the one thing to mend."""

    @abstractmethod
    def push_data(self, folder: Path) -> None:
        """Make a prepared data folder readable for the ranks. Does nothing when it is there already."""

    @abstractmethod
    def start(self, job: Job, rank: int, said: Queue) -> RankHandle:
        """Start one rank; what it prints arrives in `said` as Said, ending with a line of None."""

    @abstractmethod
    def fetch(self, job: Job, path: str) -> str:
        """Bring a file that a rank wrote into the run's folder; returns its path relative to that."""

    @abstractmethod
    def rows(self, job: Job, start: float, end: float, warn: Callable[[str], None]) -> list[Row]:
        """CPU, memory and network of the run's nodes between two Unix times, a row per node and second.

        One row before and one after are included where there are any, so that counters span the whole time. What
        cannot be had is said to `warn`; nothing is raised for it.
        """

    @abstractmethod
    def release(self, job: Job) -> None:
        """Remove what the run left in the nodes. Called once, however the run ended."""


class Lines:
    """Bytes as they come, lines as they end: split on bytes, decoded incrementally, a broken character replaced."""

    def __init__(self):
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._rest = ""

    def feed(self, data: bytes) -> list[str]:
        """The lines that this piece completes."""
        *lines, self._rest = (self._rest + self._decode(data)).split("\n")
        return lines

    def end(self) -> list[str]:
        """The last line, when it had no end."""
        rest = self._rest + self._decode(b"", final=True)
        self._rest = ""
        return [rest] if rest else []
