"""Watch the ranks of one run to its end, and say whose fault it was when it failed.

The ranks' event streams are the only source. casualties.py decides whether the run goes on when a rank is lost,
verdict.py names the cause when it does not.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from queue import Empty, Queue

from monitor.clock import CLOCK
from monitor.errors import Busy
from monitor.interrupt import Stop
from monitor.run.casualties import Casualties
from monitor.run.injection import Injector
from monitor.run.rank_state import RankState
from monitor.run.rank_stream import RankStream
from monitor.run.verdict import Failure, verdict
from monitor.runtime.base import Job, Output, Runtime
from trainer import events
from trainer.layout import WORKER, Seat

ASLEEP_SECONDS = 2.0  # when this process did not look for so long, it was stopped itself and knows nobody's silence
CLOCK_SET = (
    "this machine's clock was set {} by {:.0f} s in mid-run, or the machine slept; the run's times are told as if it "
    "had gone on evenly, and metrics.csv may lack rows from there on"
)
MOST_AT_ONCE = 10_000  # lines taken in before ranks are looked after again
TAIL_CHARACTERS = 10_000  # that are kept of a line which is no event
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
        self.ranks = [RankState(last_sign=now) for _ in job.seats]
        self._streams = [RankStream(job.spec, seat.rank, base) for seat in job.seats]
        self._casualties = Casualties(job, self.ranks, self._name, lambda event: self.on_event(event))
        self._output: Queue[Output] = Queue()
        self._stopping = False

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
                        rank.handle.close(vanished=rank.vanished and not rank.busy)
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
            self.ranks[seat.rank].handle = self.runtime.start(self.job, seat, self._output)
            self.ranks[seat.rank].last_sign = time.monotonic()

        with ThreadPoolExecutor(len(seats)) as pool:
            list(pool.map(start, seats))

    def _follow(self) -> bool:
        """Take in what ranks say until every rank has ended, or trouble has had its time to show its cause.

        Returns whether it came to that: False when it was asked to stop, and not all that was to do was done.
        """
        last_look = time.monotonic()
        while not all(rank.ended or rank.lost_reason for rank in self.ranks):
            if self.stop.is_requested and not all(
                rank.finished or rank.ended or rank.lost_reason for rank in self.ranks
            ):
                return False
            self._listen(0.2)
            self.injector.tick(self.ranks)
            self._warn_of_a_clock_that_was_set()
            now = time.monotonic()
            if now - last_look > ASLEEP_SECONDS:
                self._casualties.forget(now)
            last_look = now
            if any(rank.busy or rank.breach for rank in self.ranks) or self._casualties.end_the_run(now):
                return True
        self._casualties.settle()
        return True

    def _warn_of_a_clock_that_was_set(self) -> None:
        if seconds := CLOCK.look():
            self._warn(CLOCK_SET.format("forward" if seconds > 0 else "back", abs(seconds)))

    def _warn(self, message: str) -> None:
        self.on_event(events.Warning(rank=0, message=message))

    def _listen(self, seconds: float) -> None:
        try:
            self._take(self._output.get(timeout=seconds))
            for _ in range(MOST_AT_ONCE):
                self._take(self._output.get_nowait())
        except Empty:
            return

    def _take(self, output: Output) -> None:
        state = self.ranks[output.rank]
        if output.line is None:
            state.ended = True
            return
        if state.breach:
            return
        if output.breach:
            self._blame(output.rank, output.breach)
            return
        try:
            event = self._streams[output.rank].event(output)
        except events.EventFault as fault:
            self._blame(output.rank, str(fault))
            return
        if event is None:
            state.tail.append(output.line[:TAIL_CHARACTERS])
            return
        event = replace(event, time=CLOCK.steady(event.time))
        if not isinstance(event, events.Exited):  # which is its launcher's word
            state.last_sign, state.silence = time.monotonic(), 0.0
        match event:
            case events.Alive():
                return
            case events.Proxies():  # MPI's process manager is up beside rank 0, and has told how the others join
                self.job = replace(self.job, proxies=event.commands)
                self._start(self.job.seats[1:])
                return
            case events.Exited() if state.stopped:
                return
            case events.Held() if output.rank == 0:
                self._begin(state)
        state.record(event)
        if isinstance(event, events.Step):
            self.injector.note_step(event)
        self.on_event(event)

    def _blame(self, rank: int, breach: str) -> None:
        """The rank sent what it may not: the run ends with that as its cause."""
        self.ranks[rank].breach = breach
        self.on_event(events.Failed(rank=rank, kind="own", message=breach))

    def _begin(self, rank_0: RankState) -> None:
        """Rank 0 holds its node, so that all nodes are this run's: bring about its conditions, let the ranks start."""
        self.runtime.apply_conditions(self.job, self._warn)
        if rank_0.handle:
            rank_0.handle.go()
        if self.job.spec.transport != "mpi":
            self._start(self.job.seats[1:])

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
