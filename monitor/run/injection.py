"""Brings about the faults of a run when they are due, and takes them back: each strikes once, whatever restarts.

The supervisor calls in from its loop; what takes time is done by a thread for nodes, one thing after another, and one
for ranks, whose signals do not wait for what nodes take. It is told from the loop again. A fault ends at the latest
with the attempt that it struck.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from monitor.clock import CLOCK
from monitor.conditions.faults import OF_RANKS, Fault, at_one_place
from monitor.errors import UserError
from monitor.results.parts import FaultRecord
from monitor.run.verdict import RankState
from monitor.runtime.base import Runtime
from trainer import events

SIGNALS = {"kill": ("KILL", None), "freeze": ("STOP", "CONT")}  # to strike, to take back


@dataclass
class Record:
    """What became of one fault. Times are Unix seconds, but for `due`: monotonic seconds at which it is to end."""

    fault: Fault
    striking: Future | None = None
    relieving: Future | None = None
    step: int | None = None
    began: float | None = None
    ended: float | None = None
    due: float | None = None
    error: str | None = None

    def told(self, zero: float = 0.0) -> FaultRecord:
        """For results. `zero`: Unix seconds at which the first step began, from which its times count there."""
        return FaultRecord(
            fault=str(self.fault),
            step=self.step,
            began_seconds=None if self.began is None else self.began - zero,
            ended_seconds=None if self.ended is None else self.ended - zero,
            error=self.error,
        )


class Injector:
    """The faults of one run, over all its attempts. All is called from one thread, which `on_event` is called in."""

    def __init__(self, place: Runtime, on_event: Callable[[events.Event], None]):
        self.place, self.on_event = place, on_event
        self.records = [Record(fault) for fault in place.faults]
        self._of_nodes, self._of_ranks = ThreadPoolExecutor(1), ThreadPoolExecutor(1)  # threads start with a fault
        self._said: SimpleQueue[events.Event] = SimpleQueue()
        self._zero: float | None = None  # monotonic seconds at which the first step of the run began
        self._unix_zero = 0.0
        self._step = 0  # the last that any worker has done
        self._training = False  # whether this attempt has come as far as a step

    def heard(self, step: events.Step) -> None:
        """A worker has done a step."""
        if self._zero is None:
            self._unix_zero = step.time - step.step_seconds
            self._zero = time.monotonic() - max(0.0, CLOCK.now() - self._unix_zero)
        self._step = max(self._step, step.step)
        self._training = True

    def tick(self, ranks: Sequence[RankState]) -> None:
        """Begin what is due, end what has lasted, tell what was done."""
        now = time.monotonic()
        for record in self.records:
            if not record.striking and self._training and self._is_due(record.fault, now) and self._has_room(record):
                record.striking = self._worker(record).submit(self._strike, record, ranks)
            elif record.due is not None and now >= record.due and not record.relieving:
                record.relieving = self._worker(record).submit(self._relieve, record, ranks)
        self._tell()

    def end(self, ranks: Sequence[RankState]) -> None:
        """The attempt is over: what is in force is taken back, what was not begun may strike the next one."""
        for record in self.records:
            if record.striking and record.striking.cancel():
                record.striking = None
        wait([record.striking for record in self.records if record.striking])
        for record in self.records:
            if record.striking and not record.relieving:
                record.relieving = self._worker(record).submit(self._relieve, record, ranks)
        wait([record.relieving for record in self.records if record.relieving])
        self._training, self._step = False, 0
        self._tell()

    def close(self) -> None:
        """The run is over. Warns of faults that it did not come to."""
        self._of_nodes.shutdown()
        self._of_ranks.shutdown()
        for record in self.records:
            if not record.striking:
                text = f"FAULT={record.fault}: the run ended before it was due"
                self.on_event(events.Warning(rank=0, message=text))

    def told(self) -> list[FaultRecord]:
        """For results: of each fault when it began and ended, in seconds from the beginning of the first step."""
        return [record.told(self._unix_zero) for record in self.records]

    def _worker(self, record: Record) -> ThreadPoolExecutor:
        return self._of_ranks if record.fault.kind in OF_RANKS else self._of_nodes

    def _is_due(self, fault: Fault, now: float) -> bool:
        return self._step >= fault.step if fault.step is not None else now - self._zero >= fault.at_seconds

    def _has_room(self, record: Record) -> bool:
        """Whether none that changes the same thing is in force: it took time to begin, and ends later than it says."""
        others = [r for r in self.records if r is not record and r.striking and at_one_place(r.fault, record.fault)]
        return all(other.relieving and other.relieving.done() for other in others)

    def _strike(self, record: Record, ranks: Sequence[RankState]) -> None:
        fault, asked = record.fault, time.monotonic()
        record.began, record.step = CLOCK.now(), self._step
        try:
            if fault.kind not in OF_RANKS:
                self.place.strike(fault)
            elif _lives(rank := ranks[fault.target]):
                rank.handle.signal(SIGNALS[fault.kind][0])
            else:
                raise UserError(f"rank {fault.target} had ended by then")
        except Exception as error:  # of a thread's nobody would hear
            record.error = f"could not be brought about: {_text(error)}"
        if fault.lasts_seconds is not None:
            record.due = time.monotonic() + fault.lasts_seconds
        self._say(record, "begin", time.monotonic() - asked)

    def _relieve(self, record: Record, ranks: Sequence[RankState]) -> None:
        fault, asked, error = record.fault, time.monotonic(), None
        try:
            if fault.kind not in OF_RANKS:
                self.place.relieve(fault)
            elif SIGNALS[fault.kind][1] and _lives(rank := ranks[fault.target]):
                rank.handle.signal(SIGNALS[fault.kind][1])
        except Exception as problem:
            error = f"could not be taken back: {_text(problem)}"
        record.ended, record.error = CLOCK.now(), record.error or error
        self._say(record, "end", time.monotonic() - asked)

    def _say(self, record: Record, moment: str, seconds: float) -> None:
        fault = record.fault
        rank = fault.target if fault.kind in OF_RANKS else 0
        step = record.step if moment == "begin" else self._step  # bringing it about took time
        self._said.put(
            events.Fault(rank=rank, fault=str(fault), moment=moment, step=step, seconds=seconds, error=record.error)
        )

    def _tell(self) -> None:
        try:
            while True:
                self.on_event(self._said.get_nowait())
        except Empty:
            return


def _lives(rank: RankState) -> bool:
    """Whether its process can still be signalled, and is wanted."""
    return bool(rank.handle) and not (rank.ended or rank.exited or rank.finished or rank.lost)


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
