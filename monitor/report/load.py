"""A run as its folder holds it: result, steps of every rank, and its nodes over time."""

import csv
from dataclasses import dataclass
from pathlib import Path

from monitor import results
from monitor.errors import UserError
from monitor.sampling import HEADER, Row
from trainer import events

TEXT = ("node",)


@dataclass(frozen=True)
class Run:
    """`steps`: by rank, in order. `rows`: of all nodes, by time. Both empty where there are none."""

    folder: Path
    result: dict
    steps: dict[int, list[events.Step]]
    trained: dict[int, events.Trained]
    rows: list[Row]

    @property
    def began(self) -> float | None:
        """Unix seconds at which the first step began; None for a run without a step."""
        return min((own[0].time - own[0].step_seconds for own in self.steps.values() if own), default=None)


def load(folder: Path) -> Run:
    """Read a run's folder. Raises UserError in one line; what a run that failed early lacks is empty."""
    result = results.load(folder.name, folder.parent)
    steps: dict[int, list[events.Step]] = {}
    trained: dict[int, events.Trained] = {}
    try:
        for line in _lines(folder / "events.jsonl"):
            match events.parse(line):
                case events.Step() as step:
                    steps.setdefault(step.rank, []).append(step)
                case events.Trained() as end:
                    trained[end.rank] = end
        return Run(folder, result, steps, trained, _rows(folder / "metrics.csv"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"run {folder.name}: cannot be read ({error})") from None


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def _rows(path: Path) -> list[Row]:
    """The rows of metrics.csv; one that was cut short is left out, and a column that is not known passed over."""
    found = []
    for line in csv.DictReader(_lines(path)):
        try:
            values = {n: v if n in TEXT else float(v) for n, v in line.items() if n in HEADER and v}
            found.append(Row(**values))
        except (TypeError, ValueError):
            continue
    return found
