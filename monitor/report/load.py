"""A run as its folder holds it: result, steps of every rank, and its nodes over time."""

import csv
import os
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monitor.errors import UserError
from monitor.metrics.sampling import Row, read_rows
from monitor.results import store
from monitor.results.attempts import without_repeats
from monitor.results.result import Result
from trainer import events
from trainer.received import ReceivedError, received_lines

UNWRITABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True)
class Run:
    """`steps`: by rank, in order, each once. `rows`: of all nodes, by time. Both empty where there are none."""

    folder: Path
    result: Result
    steps: dict[int, list[events.Step]]
    trained: dict[int, events.Trained]
    rows: list[Row]
    steps_per_epoch: int | None = None
    began: float | None = None  # Unix seconds at which the first step began; None for a run without a step
    restarts: tuple[tuple[float, float | None], ...] = ()  # Unix seconds of each, and of the next step's beginning


def load(folder: Path) -> Run:
    """Read a run's folder. Raises UserError in one line; what a run that failed early or goes on lacks is empty."""
    result = store.parse(folder.name, writable(store.read(folder.name, folder.parent)))
    try:
        recorded = [event for line in _lines(folder / "events.jsonl") if (event := events.parse(line))]
        rows = list(read_rows(_lines(folder / "metrics.csv")))
    except ReceivedError as error:
        raise UserError(f"run {folder.name}: {error}") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"run {folder.name}: cannot be read ({error})") from None
    per_epoch = None
    steps: dict[int, list[events.Step]] = {}
    trained: dict[int, events.Trained] = {}
    for event in without_repeats(recorded):
        match event:
            case events.Step(samples=0):
                raise UserError(f"run {folder.name}: events.jsonl has a step of no samples; restore or remove it")
            case events.Step():
                steps.setdefault(event.rank, []).append(event)
            case events.Trained():
                trained[event.rank] = event
            case events.Ready():
                per_epoch = event.steps_per_epoch
    begins = sorted(event.time - event.step_seconds for event in recorded if isinstance(event, events.Step))
    restarts = []
    for event in recorded:
        if isinstance(event, events.Restart):
            after = bisect_right(begins, event.time)
            restarts.append((event.time, begins[after] if after < len(begins) else None))
    return Run(folder, result, steps, trained, rows, per_epoch, begins[0] if begins else None, tuple(restarts))


def writable(value: Any) -> Any:
    """The value with every letter, however deep, that no page can hold replaced: control codes, halves of letters."""
    if isinstance(value, str):
        return UNWRITABLE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {key: writable(v) for key, v in value.items()}
    return [writable(v) for v in value] if isinstance(value, list) else value


def _lines(path: Path) -> Iterator[str]:
    return received_lines(path) if os.path.lexists(path) else iter(())
