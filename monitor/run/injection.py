"""Brings about the faults of a run when they are due, and takes them back: each strikes once, whatever restarts.

The supervisor calls in from its loop. Two threads do what takes time, one for faults of nodes and one
for faults of ranks, each one thing after another: a signal does not wait for what nodes take. Events
are passed on from the loop again. A fault ends at the latest with the attempt that it struck.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from monitor.clock import CLOCK
from monitor.conditions.faults import OF_RANKS, Fault, at_one_place
from monitor.errors import UserError
from monitor.results.parts import FaultRecord
from monitor.run.rank_state import RankState
from monitor.runtime.base import Runtime
from trainer import events

SIGNALS = {"kill": ("KILL", None), "freeze": ("STOP", "CONT")}  # to strike, to take back


@dataclass
class Injection:
    """What became of one fault. Times are Unix seconds, but for `due`: monotonic seconds at which it is to end."""

    fault: Fault
    striking: Future | None = None
    relieving: Future | None = None
    step: int | None = None
    began: float | None = None
    ended: float | None = None
    due: float | None = None
    error: str | None = None

    def facts(self, zero: float = 0.0) -> FaultRecord:
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

    def __init__(self, runtime: Runtime, on_event: Callable[[events.Event], None]):
        self.runtime, self.on_event = runtime, on_event
        self.records = [Injection(fault) for fault in runtime.faults]
        self._of_nodes, self._of_ranks = ThreadPoolExecutor(1), ThreadPoolExecutor(1)  # threads start with a fault
        self._events: SimpleQueue[events.Event] = SimpleQueue()
        self._zero: float | None = None  # monotonic seconds at which the first step of the run began
        self._unix_zero = 0.0
        self._step = 0  # the last that any worker has done
        self._training = False  # whether this attempt has come as far as a step

    def note_step(self, step: events.Step) -> None:
        """A worker has done a step."""
        if self._zero is None:
            self._unix_zero = step.time - step.step_seconds
            self._zero = time.monotonic() - max(0.0, CLOCK.now() - self._unix_zero)
        self._step = max(self._step, step.step)
        self._training = True

    def tick(self, ranks: Sequence[RankState]) -> None:
        """Begin what is due, end what has lasted, pass on the events of what was done."""
        now = time.monotonic()
        for record in self.records:
            if not record.striking and self._is_due(record.fault, now) and self._has_room(record):
                record.striking = self._worker(record).submit(self._strike, record, ranks)
            elif record.due is not None and now >= record.due and not record.relieving:
                record.relieving = self._worker(record).submit(self._relieve, record, ranks)
        self._pass_on()

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
        self._pass_on()

    def close(self) -> None:
        """The run is over. Warns of faults that it did not come to."""
        self._of_nodes.shutdown()
        self._of_ranks.shutdown()
        for record in self.records:
            if not record.striking:
                text = f"FAULT={record.fault}: the run ended before it was due"
                self.on_event(events.Warning(rank=0, message=text))

    def facts(self) -> list[FaultRecord]:
        """For results: of each fault when it began and ended, in seconds from the beginning of the first step."""
        return [record.facts(self._unix_zero) for record in self.records]

    def _worker(self, record: Injection) -> ThreadPoolExecutor:
        return self._of_ranks if record.fault.kind in OF_RANKS else self._of_nodes

    def _is_due(self, fault: Fault, now: float) -> bool:
        if not self._training or self._zero is None:
            return False
        if fault.at_seconds is not None:
            return now - self._zero >= fault.at_seconds
        return fault.step is not None and self._step >= fault.step

    def _has_room(self, record: Injection) -> bool:
        """Whether none that changes the same thing is in force: it took time to begin, and ends later than it says."""
        others = [r for r in self.records if r is not record and r.striking and at_one_place(r.fault, record.fault)]
        return all(other.relieving and other.relieving.done() for other in others)

    def _strike(self, record: Injection, ranks: Sequence[RankState]) -> None:
        fault, began, step = record.fault, time.monotonic(), self._step
        record.began, record.step = CLOCK.now(), step
        try:
            if fault.kind in OF_RANKS:
                _signal(ranks[fault.target], SIGNALS[fault.kind][0])
            else:
                self.runtime.strike(fault)
        except RankHasEnded:
            record.error = f"could not be brought about: rank {fault.target} had ended by then"
        except Exception as error:  # nobody would see one that a thread raises
            record.error = f"could not be brought about: {_text(error)}"
        if fault.lasts_seconds is not None:
            record.due = time.monotonic() + fault.lasts_seconds
        self._report(record, "begin", step, time.monotonic() - began)

    def _relieve(self, record: Injection, ranks: Sequence[RankState]) -> None:
        fault, began, failure = record.fault, time.monotonic(), None
        try:
            if fault.kind not in OF_RANKS:
                self.runtime.relieve(fault)
            elif signal := SIGNALS[fault.kind][1]:
                with suppress(RankHasEnded):
                    _signal(ranks[fault.target], signal)
        except Exception as error:  # as above
            failure = f"could not be taken back: {_text(error)}"
        record.ended, record.error = CLOCK.now(), record.error or failure
        self._report(record, "end", self._step, time.monotonic() - began)

    def _report(self, record: Injection, moment: str, step: int, seconds: float) -> None:
        """Let the loop pass on the event. `seconds`: how long it took to bring about, or to take back."""
        fault = record.fault
        rank = fault.target if fault.kind in OF_RANKS else 0
        self._events.put(
            events.Fault(rank=rank, fault=str(fault), moment=moment, step=step, seconds=seconds, error=record.error)
        )

    def _pass_on(self) -> None:
        with suppress(Empty):
            while True:
                self.on_event(self._events.get_nowait())


class RankHasEnded(Exception):
    """There is no process of this rank that could be signalled, or none that is still wanted."""


def _signal(rank: RankState, name: str) -> None:
    """Signal the rank's process. Raises RankHasEnded."""
    if not rank.handle or rank.ended or rank.exited or rank.finished or rank.lost_reason:
        raise RankHasEnded
    rank.handle.signal(name)


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
