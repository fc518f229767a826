"""A run as its folder holds it: result, steps of every rank, and its nodes over time."""

import csv
import math
import re
from dataclasses import dataclass
from pathlib import Path

from monitor.errors import UserError
from monitor.metrics.sampling import HEADER, Row
from monitor.results import store
from monitor.results.attempts import kept
from trainer import events

TEXT = ("node",)
UNWRITABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True)
class Run:
    """`steps`: by rank, in order, each once. `rows`: of all nodes, by time. Both empty where there are none."""

    folder: Path
    result: dict
    steps: dict[int, list[events.Step]]
    trained: dict[int, events.Trained]
    rows: list[Row]
    steps_per_epoch: int | None = None
    began: float | None = None  # Unix seconds at which the first step began; None for a run without a step
    restarts: tuple[tuple[float, float | None], ...] = ()  # Unix seconds of each, and of the next step's beginning


def load(folder: Path) -> Run:
    """Read a run's folder. Raises UserError in one line; what a run that failed early or goes on lacks is empty."""
    result = {"ranks": []} | writable(store.load(folder.name, folder.parent))
    per_epoch = None
    steps: dict[int, list[events.Step]] = {}
    trained: dict[int, events.Trained] = {}
    try:
        said = [event for line in _lines(folder / "events.jsonl") if (event := events.parse(line))]
        for event in kept(said):
            match event:
                case events.Step() as step:
                    steps.setdefault(step.rank, []).append(step)
                case events.Trained() as end:
                    trained[end.rank] = end
                case events.Ready() as ready:
                    per_epoch = ready.steps_per_epoch
        begins = [(e.time - e.step_seconds) for e in said if isinstance(e, events.Step)]
        restarts = [e.time for e in said if isinstance(e, events.Restart)]
        restarted = tuple((when, min((b for b in begins if b > when), default=None)) for when in restarts)
        rows = _rows(folder / "metrics.csv")
        return Run(folder, result, steps, trained, rows, per_epoch, min(begins, default=None), restarted)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"run {folder.name}: cannot be read ({error})") from None


def writable(value):
    """The value with every letter, however deep, that no page can hold replaced: control codes, halves of letters."""
    if isinstance(value, str):
        return UNWRITABLE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {key: writable(v) for key, v in value.items()}
    return [writable(v) for v in value] if isinstance(value, list) else value


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def _rows(path: Path) -> list[Row]:
    """The rows of metrics.csv; without those cut short or not finite; columns that are not known are passed over."""
    found = []
    for line in csv.DictReader(_lines(path)):
        try:
            values = {n: v if n in TEXT else float(v) for n, v in line.items() if n in HEADER and v}
            if all(math.isfinite(v) for n, v in values.items() if n not in TEXT):
                found.append(Row(**values))
        except (TypeError, ValueError):
            continue
    return found
