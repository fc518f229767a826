"""Watch the ranks of one run to its end, and say whose fault it was when it failed.

The ranks' event streams are the only source. A rank that dies takes the others' collectives with it, so the first voice
to complain is seldom the culprit: all evidence is gathered for a moment before the verdict.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from queue import Empty, Queue

from monitor.errors import Busy
from monitor.runtime.base import Job, RankHandle, Runtime, Said
from trainer import events
from trainer.layout import WORKER, Seat
from trainer.registry import SYNCS

STARTUP_SILENCE_SECONDS = 90.0  # importing torch from a cold disk keeps even the heartbeat waiting
LEAST_SILENCE_SECONDS = 3 * events.HEARTBEAT_SECONDS
EVIDENCE_SECONDS = 2.0  # how long the other ranks may still speak after the first sign of trouble
TERM_SECONDS = 5.0
KILL_SECONDS = 10.0
TAIL_LINES = 20
OWN_KINDS = {"own": "error", "input": "input", "mismatch": "mismatch"}  # what a rank says of itself: what we call it


@dataclass
class RankState:
    """All that is known of one rank."""

    heard: float  # monotonic seconds of its last sign of life
    handle: RankHandle | None = None
    started: events.Started | None = None
    ready: events.Ready | None = None
    steps: list[events.Step] = field(default_factory=list)
    trained: events.Trained | None = None
    served: events.Served | None = None
    evaluations: list[events.Monitored] = field(default_factory=list)
    finished: events.Finished | None = None
    failed: events.Failed | None = None
    exited: events.Exited | None = None
    busy: str | None = None  # the run that holds its node
    frozen: bool = False
    ended: bool = False  # its stream is closed
    stopped: bool = False  # we ended it: how it went is no evidence
    lost: str | None = None  # why, when the run went on without it
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))


@dataclass(frozen=True)
class Failure:
    """Why a run failed. `message` is one line that names the rank, where one is to blame."""

    kind: str  # killed, out_of_memory, error, input, mismatch, frozen, deadline, peer, lost, interrupted
    message: str
    rank: int | None = None
    last_lines: tuple[str, ...] = ()  # what the rank printed besides events
    traceback: str = ""


class Interrupted(KeyboardInterrupt):
    """The orchestrator was told to stop (Ctrl-C, SIGTERM, the terminal closed)."""


class Supervisor:
    """Start the ranks of a job and follow them. `on_event` sees every event but heartbeats, in order of arrival."""

    def __init__(self, runtime: Runtime, job: Job, on_event: Callable[[events.Event], None]):
        self.runtime, self.job, self.on_event = runtime, job, on_event
        now = time.monotonic()
        self.ranks = [RankState(heard=now) for _ in job.seats]
        self._said: Queue[Said] = Queue()
        self._stopping = False
        self._silence = max(LEAST_SILENCE_SECONDS, job.spec.deadline_seconds / 2)

    def run(self) -> Failure | None:
        """Run to the end. None when every rank finished; never leaves a rank behind, whatever is raised.

        Raises Busy when another run holds a node, UserError when the runtime cannot start a rank.
        """
        try:
            # MPI's process manager comes up beside rank 0; the others start once it has told how they join.
            self._start(self.job.seats[:1] if self.job.spec.transport == "mpi" else self.job.seats)
            self._follow()
        except KeyboardInterrupt:
            self._stop("TERM", TERM_SECONDS)
            return Failure("interrupted", f"interrupted at step {self._last_step()}")
        finally:
            self._stop("KILL", KILL_SECONDS)
            for rank in self.ranks:
                if rank.handle:
                    rank.handle.close()
        for rank in self.ranks:
            if rank.busy:
                raise Busy(rank.busy)
        return self._verdict()

    def _start(self, seats: Sequence[Seat]) -> None:
        def start(seat: Seat) -> None:
            self.ranks[seat.rank].handle = self.runtime.start(self.job, seat, self._said)
            self.ranks[seat.rank].heard = time.monotonic()

        with ThreadPoolExecutor(len(self.ranks)) as pool:
            list(pool.map(start, seats))

    def _follow(self) -> None:
        """Take in what is said until every rank has ended, or trouble has had its time to show its cause."""
        trouble_since = None
        while not all(rank.ended or rank.lost for rank in self.ranks):
            self._listen(0.2)
            now = time.monotonic()
            if trouble_since is None and self._trouble(now):
                trouble_since = now
            if trouble_since is not None and now - trouble_since > EVIDENCE_SECONDS:
                return

    def _listen(self, seconds: float) -> None:
        try:
            said = self._said.get(timeout=seconds)
            while True:
                self._take(said)
                said = self._said.get_nowait()
        except Empty:
            return

    def _take(self, said: Said) -> None:
        state = self.ranks[said.rank]
        if said.line is None:
            state.ended = True
            return
        event = events.parse(said.line) if said.stream == "stdout" else None
        if event is None:
            state.tail.append(said.line)
            return
        state.heard = time.monotonic()
        match event:
            case events.Alive():
                return
            case events.Proxies():
                if not self._stopping:
                    self.job = replace(self.job, proxies=event.commands)
                    self._start(self.job.seats[1:])
                return
            case events.Busy():
                state.busy = event.run
            case events.Started():
                state.started = event
            case events.Ready():
                state.ready = event
            case events.Step():
                state.steps.append(event)
            case events.Trained():
                state.trained = event
            case events.Served():
                state.served = event
            case events.Monitored():
                state.evaluations.append(event)
            case events.Finished():
                state.finished = event
            case events.Failed():
                state.failed = event
            case events.Exited():
                if state.stopped:
                    return
                state.exited = event
        self.on_event(event)

    def _trouble(self, now: float) -> bool:
        """Whether any rank shows that this run will not finish. Marks ranks that have gone silent as frozen."""
        for state in self.ranks:
            limit = self._silence if state.ready else STARTUP_SILENCE_SECONDS
            if not state.ended and not state.exited and now - state.heard > limit:
                state.frozen = True
        troubled = [rank for rank, state in enumerate(self.ranks) if not state.lost and _in_trouble(state)]
        return any([not self._go_on_without(rank) for rank in troubled])

    def _go_on_without(self, rank: int) -> bool:
        """Write a rank off, where the strategy goes on without it. Returns whether that is so.

        It must be a worker that has taken a step, and not rank 0, whose process holds the others' store. One that
        blames another rank is not lost itself: then something is wrong with the run.
        """
        state, seat = self.ranks[rank], self.job.seats[rank]
        survivable = SYNCS[self.job.spec.sync].survives_lost_workers and seat.role == WORKER and rank != 0
        if not survivable or not state.steps or state.trained or (state.failed and state.failed.kind not in OWN_KINDS):
            return False
        if state.failed and not state.exited and not state.ended:
            return True  # it is about to exit
        state.lost = self._how(state)
        if not state.ended and state.handle:
            state.stopped = True
            state.handle.signal("KILL")  # should it come back to life, the others would not know it any more
        message = f"{self._name(rank)} {state.lost} at step {state.steps[-1].step}; the others go on without it"
        self.on_event(events.Warning(rank=rank, message=message))
        return True

    def _stop(self, signal: str, seconds: float) -> None:
        """Signal every rank that still runs and wait until all streams have ended, at most `seconds`."""
        self._stopping = True
        for rank in self.ranks:
            if rank.handle and not rank.ended:
                rank.stopped = rank.exited is None
                rank.handle.signal(signal)
        until = time.monotonic() + seconds
        while time.monotonic() < until and not all(rank.ended or not rank.handle for rank in self.ranks):
            self._listen(0.1)

    def _last_step(self) -> int:
        return max((rank.steps[-1].step for rank in self.ranks if rank.steps), default=0)

    def _verdict(self) -> Failure | None:
        """The one cause, from the surest evidence to the least."""
        named = [(rank, self._name(rank), state) for rank, state in enumerate(self.ranks) if not state.lost]
        if all(s.finished and s.exited and s.exited.code == 0 for _, _, s in named):
            return None
        for rank, name, state in named:
            if state.exited and state.exited.out_of_memory:
                return self._failure("out_of_memory", rank, f"{name} {self._how(state)}")
        for rank, name, state in named:
            if state.exited and state.exited.signal:
                return self._failure("killed", rank, f"{name} {self._how(state)}")
        for rank, name, state in named:
            if state.ended and not state.exited and not state.stopped:
                return self._failure("lost", rank, f"{name} {self._how(state)}")
        own = [(s.failed.time, r, n, s.failed) for r, n, s in named if s.failed and s.failed.kind in OWN_KINDS]
        if own:
            _, rank, name, failed = min(own)
            return self._failure(OWN_KINDS[failed.kind], rank, f"{name} failed", failed.message)
        for rank, name, state in named:
            if state.exited and state.exited.code and not state.failed:
                return self._failure("error", rank, f"{name} {self._how(state)}")
        for rank, name, state in named:
            if state.frozen:
                return self._failure("frozen", rank, f"{name} {self._how(state)}")
        blamed = [(s.failed.time, r, n, s.failed) for r, n, s in named if s.failed]
        if blamed:
            _, rank, name, failed = min(blamed)
            suspect = failed.suspect_rank
            who = f"; it suspects {self._name(suspect)}" if suspect is not None else ""
            who = f"{failed.message}{who}"
            return self._failure(failed.kind, rank if suspect is None else suspect, f"{name} gave up", who)
        return Failure("lost", "the run ended without a result")

    def _how(self, state: RankState) -> str:
        """What became of a rank that did not finish, by the surest evidence."""
        if state.exited and state.exited.out_of_memory:
            return "ran out of memory: the node's limit killed it"
        if state.exited and state.exited.signal:
            return f"was killed by {state.exited.signal}"
        if state.ended and not state.exited and not state.stopped:
            return "is gone: its node stopped or the engine went away"
        if state.failed:
            return f"failed: {state.failed.message}"
        if state.exited and state.exited.code:
            return f"ended with exit code {state.exited.code}"
        return f"is frozen: no sign of life for {self._silence:g} s" if state.frozen else "ended before it had finished"

    def _name(self, rank: int) -> str:
        seat = self.job.seats[rank]
        role = "" if seat.role == WORKER else f", {seat.role}"
        return f"rank {rank} ({self.runtime.node_name(seat.node)}{role})"

    def _failure(self, kind: str, rank: int, what: str, why: str = "") -> Failure:
        state = self.ranks[rank]
        at = f" at step {state.steps[-1].step}" if state.steps else " before its first step"
        traceback = state.failed.traceback if state.failed else ""
        return Failure(kind, what + at + (f": {why}" if why else ""), rank, tuple(state.tail), traceback)


def _in_trouble(state: RankState) -> bool:
    died = state.exited is not None and state.exited.code != 0
    return bool(state.failed or state.frozen or state.busy or died or (state.ended and not state.finished))
