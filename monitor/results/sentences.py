"""What happened to a run, in sentences: restarts, faults, lost workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monitor.conditions.faults import AT_ONCE
from monitor.text import plural
from trainer import events

if TYPE_CHECKING:  # the live page, which starts while a run goes on, tells of restarts without pydantic
    from monitor.results.parts import FaultRecord, LostWorker, Restart


def of_restart(restart: Restart | events.Restart) -> str:
    """Where a run went on from, why, and what that cost. While it restarts, the time to start again is not known."""
    where = "the start, as there was no checkpoint of all workers"
    if restart.from_step:
        where = f"step {restart.from_step}"
    seconds = restart.lost_seconds
    if not isinstance(restart, events.Restart):
        seconds += restart.startup_seconds or 0.0
    loss = f"{plural(restart.lost_steps, 'step')} and {seconds:.1f} s lost"
    return f"restarted from {where}: {restart.message} ({loss})"


def of_fault(record: FaultRecord) -> str:
    """What was done, when, and how it went."""
    if record.began_seconds is None:
        return f"{record.fault}: the run ended before it was due"
    when = f"at {record.began_seconds:.1f} s"
    if record.ended_seconds is not None and not record.fault.startswith(AT_ONCE):
        when = f"from {record.began_seconds:.1f} s to {record.ended_seconds:.1f} s"
    failure = f": {record.error}" if record.error else ""
    return f"{record.fault}: {when}, after step {record.step}{failure}"


def of_lost_worker(worker: LostWorker) -> str:
    """Who was lost, why, and when."""
    return f"rank {worker.rank}, which {worker.reason} at step {worker.step}"
