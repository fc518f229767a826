"""Watch the ranks of one run to its end, and say whose fault it was when it failed.

The ranks' event streams are the only source. A rank that dies takes the others' collectives with it, so the first voice
to complain is seldom the culprit: all evidence is gathered for a moment before the verdict.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from queue import Empty, Queue

from monitor.clock import CLOCK
from monitor.errors import Busy
from monitor.interrupt import Stop
from monitor.run.injection import Injector
from monitor.run.verdict import OWN_KINDS, Failure, RankState, how, in_trouble, only_blame, verdict
from monitor.runtime.base import Job, Runtime, Said
from trainer import events
from trainer.layout import WORKER, Seat
from trainer.registry import SYNCS

# Until a rank is ready: a Python has to start, and importing torch keeps the heartbeat waiting (2.5 s on a tenth of a
# core; a cold disk takes longer).
STARTUP_SILENCE_SECONDS = 25.0
LEAST_SILENCE_SECONDS = 3 * events.HEARTBEAT_SECONDS
EVIDENCE_SECONDS = 2.0  # how long the other ranks may still speak after the first sign of trouble
BLAME_SECONDS = 6.0  # the same, while nothing is known but that ranks blame each other
ASLEEP_SECONDS = 2.0  # when this process did not look for so long, it was stopped itself and knows nobody's silence
CLOCK_SET = (
    "this machine's clock was set {} by {:.0f} s in mid-run, or the machine slept; the run's times are told as if it "
    "had gone on evenly, and metrics.csv may lack rows from there on"
)
TERM_SECONDS = 5.0
KILL_SECONDS = 10.0


class Supervisor:
    """Start the ranks of a job and follow them. `on_event` sees every event but heartbeats, in order of arrival.

    `base`: the step that they go on from.
    """

    def __init__(
        self,
        runtime: Runtime,
        job: Job,
        on_event: Callable[[events.Event], None],
        stop: Stop | None = None,
        injector: Injector | None = None,
        base: int = 0,
    ):
        self.runtime, self.job, self.on_event, self.stop = runtime, job, on_event, stop or Stop()
        self.injector = injector or Injector(runtime, on_event)
        self.base = base
        now = time.monotonic()
        self.ranks = [RankState(heard=now) for _ in job.seats]
        self._said: Queue[Said] = Queue()
        self._stopping = False
        self._silence = max(LEAST_SILENCE_SECONDS, job.spec.deadline_seconds / 2)

    def run(self) -> Failure | None:
        """Run to the end. None when every rank finished; never leaves a rank behind, whatever is raised.

        Raises Busy when another run holds a node, UserError when the runtime cannot start a rank.
        """
        interrupted = False
        try:
            # Whoever gets the first node gets them all: of runs that start at once, one goes on.
            self._start(self.job.seats[:1])
            interrupted = not self._follow()
            if interrupted:
                self._stop("TERM", TERM_SECONDS)
        finally:
            self.stop.writing()
            self._stop("KILL", KILL_SECONDS)
            try:
                self.injector.end(self.ranks)
            finally:
                for rank in self.ranks:
                    if rank.handle:
                        rank.handle.close()
        for rank in self.ranks:
            if rank.busy:
                raise Busy(rank.busy)
        failure = verdict(self.ranks, self._name)
        if failure and interrupted:
            step = max((rank.steps[-1].step for rank in self.ranks if rank.steps), default=self.base)
            return Failure("interrupted", f"interrupted at step {step}")
        return failure

    def _start(self, seats: Sequence[Seat]) -> None:
        if self._stopping or not seats:
            return

        def start(seat: Seat) -> None:
            self.ranks[seat.rank].handle = self.runtime.start(self.job, seat, self._said)
            self.ranks[seat.rank].heard = time.monotonic()

        with ThreadPoolExecutor(len(seats)) as pool:
            list(pool.map(start, seats))

    def _follow(self) -> bool:
        """Take in what is said until every rank has ended, or trouble has had its time to show its cause.

        Returns whether it came to that: False when it was asked to stop, and not all that was to do was done.
        """
        trouble_since, looked = None, time.monotonic()
        while not all(rank.ended or rank.lost for rank in self.ranks):
            if self.stop.asked and not all(rank.finished or rank.ended or rank.lost for rank in self.ranks):
                return False
            self._listen(0.2)
            self.injector.tick(self.ranks)
            if set_by := CLOCK.look():
                told = CLOCK_SET.format("forward" if set_by > 0 else "back", abs(set_by))
                self.on_event(events.Warning(rank=0, message=told))
            now = time.monotonic()
            if now - looked > ASLEEP_SECONDS:
                trouble_since = None
                for rank in self.ranks:
                    rank.heard, rank.frozen = now, 0.0
            looked = now
            if any(rank.busy for rank in self.ranks):
                return True
            trouble_since = (trouble_since or now) if self._trouble(now) else None
            suspects = self._suspects_of_the_cut_off()
            patience = BLAME_SECONDS if only_blame(self.ranks) or suspects else EVIDENCE_SECONDS
            if trouble_since is not None and now - trouble_since > patience:
                if not self._go_on_without_the_cut_off(suspects, trouble_since):
                    return True
                trouble_since = None
        if trouble_since is not None:
            self._go_on_without_the_cut_off(self._suspects_of_the_cut_off(), trouble_since)
        return True

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
        event = replace(event, time=CLOCK.steady(event.time))
        if not isinstance(event, events.Exited):  # which is its launcher's word
            state.heard, state.frozen = time.monotonic(), 0.0
        match event:
            case events.Alive():
                return
            case events.Held():
                if said.rank == 0:
                    self.runtime.held(self.job, lambda text: self.on_event(events.Warning(rank=0, message=text)))
                    state.handle.go()
                    if self.job.spec.transport != "mpi":
                        self._start(self.job.seats[1:])
            case events.Proxies():  # MPI's process manager is up beside rank 0, and has told how the others join
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
                self.injector.heard(event)
            case events.Trained():
                state.trained = event
            case events.Served():
                state.served = event
            case events.Watched():
                state.watched = event
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
            limit = self._silence if state.ready else max(self._silence, STARTUP_SILENCE_SECONDS)
            if state.handle and not state.ended and not state.exited and now - state.heard > limit:
                state.frozen = limit
        troubled = [rank for rank, state in enumerate(self.ranks) if not state.lost and in_trouble(state)]
        return any([not self._go_on_without(rank) for rank in troubled])

    def _go_on_without(self, rank: int) -> bool:
        """Write a rank off, where the strategy goes on without it. Returns whether that is so.

        One that blames another rank is not lost itself, unless it turns out to be cut off: then something is wrong with
        the run.
        """
        state = self.ranks[rank]
        if not self._expendable(rank) or (state.failed and state.failed.kind not in OWN_KINDS):
            return False
        if state.failed and not state.exited and not state.ended:
            return True  # it is about to exit
        self._write_off(rank, how(state))
        return True

    def _expendable(self, rank: int) -> bool:
        """Whether the strategy can go on without it: a worker that is training, and not rank 0, whose process holds the
        others' store.
        """
        state, seat = self.ranks[rank], self.job.seats[rank]
        survives = SYNCS[self.job.spec.sync].survives_lost_workers
        return bool(survives and seat.role == WORKER and rank != 0 and state.steps and not state.trained)

    def _suspects_of_the_cut_off(self) -> dict[int, int]:
        """If all ranks in trouble can be done without and only blame others that are in none: each, and whom it blames.

        Those may have lost their network: then the blamed ones live on.
        """
        troubled = [rank for rank, state in enumerate(self.ranks) if not state.lost and in_trouble(state)]
        blamed = {rank: s.failed.suspect_rank for rank in troubled if (s := self.ranks[rank]).failed}
        known = all(blamed.get(rank) is not None and self._expendable(rank) for rank in troubled)
        return blamed if known and not set(blamed.values()) & set(troubled) else {}

    def _go_on_without_the_cut_off(self, suspects: dict[int, int], since: float) -> bool:
        """Write them off, where there are any and whom they blame lives. Returns whether that is so."""
        if not suspects or not all(self._lives(suspect, since) for suspect in suspects.values()):
            return False
        for rank, suspect in suspects.items():
            self._write_off(rank, f"is cut off from {self._name(suspect)}")
        return True

    def _lives(self, rank: int, since: float) -> bool:
        """Whether it did all it had to, or has been heard of long enough after that moment (monotonic seconds)."""
        state = self.ranks[rank]
        return not state.lost and bool(state.finished or state.heard - since > BLAME_SECONDS / 4)

    def _write_off(self, rank: int, why: str) -> None:
        """The run goes on without it."""
        state = self.ranks[rank]
        state.lost = why
        if not state.ended and state.handle:
            state.stopped = True
            state.handle.signal("KILL")  # should it come back to life, the others would not know it any more
        message = f"{self._name(rank)} {why} at step {state.steps[-1].step}; the others go on without it"
        self.on_event(events.Warning(rank=rank, message=message))

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

    def _name(self, rank: int) -> str:
        seat = self.job.seats[rank]
        role = "" if seat.role == WORKER else f", {seat.role}"
        return f"rank {rank} ({self.runtime.node_name(seat.node)}{role})"
