"""A run as its folder holds it: result, steps of every rank, and its nodes over time."""

import csv
import math
import re
from dataclasses import dataclass
from pathlib import Path

from monitor import results
from monitor.errors import UserError
from monitor.sampling import HEADER, Row
from trainer import events

TEXT = ("node",)
UNWRITABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True)
class Run:
    """`steps`: by rank, in order. `rows`: of all nodes, by time. Both empty where there are none."""

    folder: Path
    result: dict
    steps: dict[int, list[events.Step]]
    trained: dict[int, events.Trained]
    rows: list[Row]
    steps_per_epoch: int | None = None

    @property
    def began(self) -> float | None:
        """Unix seconds at which the first step began; None for a run without a step."""
        return min((own[0].time - own[0].step_seconds for own in self.steps.values() if own), default=None)


def load(folder: Path) -> Run:
    """Read a run's folder. Raises UserError in one line; what a run that failed early or goes on lacks is empty."""
    result = {"ranks": []} | writable(results.load(folder.name, folder.parent))
    per_epoch = None
    steps: dict[int, list[events.Step]] = {}
    trained: dict[int, events.Trained] = {}
    try:
        for line in _lines(folder / "events.jsonl"):
            match events.parse(line):
                case events.Step() as step:
                    steps.setdefault(step.rank, []).append(step)
                case events.Trained() as end:
                    trained[end.rank] = end
                case events.Ready() as ready:
                    per_epoch = ready.steps_per_epoch
        return Run(folder, result, steps, trained, _rows(folder / "metrics.csv"), per_epoch)
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
