"""A sweep as data: what is to be run, and what was. Kept in sweep.json; the runs lie beside it."""

import hashlib
import json
import re
import statistics
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from monitor.errors import UserError
from monitor.experiments.cells import Cell
from monitor.experiments.sweep_folder import unwritable
from monitor.results import store
from monitor.results.result import FINISHED, Result
from trainer.files import write_whole
from trainer.names import is_run
from trainer.received import ReceivedError, load_json

SCHEMA = 1
MOST_CELLS, MOST_WORDS = 3000, 200
MOST_RUNS = 100_000  # a full sweep: 1000 combinations, 100 times each


@dataclass(frozen=True)
class Try:
    """A cell that was run once. `run` is None where it came to no run; `error` is None where it finished."""

    cell: int
    repeat: int
    run: str | None
    seconds: float
    error: str | None = None


@dataclass
class Sweep:
    """What is to be run, and what was."""

    folder: Path
    settings: dict[str, str]  # of the command, `asked` in sweep.json; another sweep has others
    cells: list[Cell]
    notes: list[str] = field(default_factory=list)  # what a reader must know: which combinations are left out, and why
    tries: list[Try] = field(default_factory=list)

    def __post_init__(self):
        self._latest: dict[tuple[int, int], Try] = {}
        self._indexed = (0, 0)  # the list of tries that it is of, and how many it had

    def order(self) -> Iterator[tuple[int, int]]:
        """(cell, repeat) in the order in which they are run."""
        cells = list(range(len(self.cells)))
        for repeat in range(1, max(cell.repeats for cell in self.cells) + 1):
            cells = [i for i in cells if self.cells[i].repeats >= repeat]
            for cell in cells if repeat % 2 else reversed(cells):
                yield cell, repeat

    @property
    def total(self) -> int:
        """How many runs it is."""
        return sum(cell.repeats for cell in self.cells)

    def last(self, cell: int, repeat: int) -> Try | None:
        """The last time that this was tried."""
        if self._indexed != (id(self.tries), len(self.tries)):
            self._latest = {(t.cell, t.repeat): t for t in self.tries}
            self._indexed = (id(self.tries), len(self.tries))
        return self._latest.get((cell, repeat))

    def is_finished(self, cell: int, repeat: int) -> bool:
        """Whether it was run to its end and the result is still there."""
        last = self.last(cell, repeat)
        return bool(last and last.error is None and self._result(last))

    def results(self, cell: int) -> list[Result]:
        """The finished results of a cell, by repeat."""
        tries = (self.last(cell, repeat) for repeat in range(1, self.cells[cell].repeats + 1))
        return [result for t in tries if t and not t.error and (result := self._result(t))]

    def failures(self) -> list[Try]:
        """What failed when it was last tried."""
        return [t for cell, repeat in self.order() if (t := self.last(cell, repeat)) and t.error]

    def _result(self, attempt: Try) -> Result | None:
        if attempt.run is None:
            return None
        with suppress(UserError):
            result = store.load(attempt.run, self.folder)
            return result.model_copy(update={"id": attempt.run}) if result.status == FINISHED else None
        return None

    def seconds_left(self) -> float | None:
        """An estimate from what each cell took before, else from the mean of all. None before the first."""
        seconds: dict[int, list[float]] = {}
        for attempt in self.tries:
            if not attempt.error:
                seconds.setdefault(attempt.cell, []).append(attempt.seconds)
        if not seconds:
            return None
        means = {cell: statistics.fmean(of_cell) for cell, of_cell in seconds.items()}
        mean = statistics.fmean(value for of_cell in seconds.values() for value in of_cell)
        return sum(means.get(cell, mean) for cell, repeat in self.order() if not self.is_finished(cell, repeat))

    def save(self) -> None:
        """Write sweep.json whole or not at all. Raises UserError."""
        values = asdict(self) | {"folder": self.folder.name}
        try:
            _check_size(self.cells)  # it could not be read again
        except ValueError as error:
            raise UserError(f"{self.folder}: {error}") from None
        text = json.dumps({"schema": SCHEMA, "asked": values.pop("settings"), **values}, indent=1)
        try:
            write_whole(self.folder / "sweep.json", text + "\n")
        except OSError as error:
            raise unwritable(self.folder, error) from None


def load(folder: Path) -> Sweep:
    """The sweep of this folder. Raises UserError in one line."""
    try:
        values = load_json(folder / "sweep.json")
        if values["schema"] > SCHEMA:
            raise UserError(f"{folder}: schema {values['schema']} is newer than this syncbed reads ({SCHEMA})")
        cells = [Cell(**cell) for cell in values["cells"]]
        tries = [Try(**attempt) for attempt in values["tries"]]
        _check(values["asked"], cells, values["notes"], tries)
        return Sweep(folder, values["asked"], cells, values["notes"], tries)
    except FileNotFoundError:
        have = ", ".join(sorted(path.parent.name for path in folder.parent.glob("*/sweep.json"))[:5]) or "none yet"
        raise UserError(f"{folder}: no sweep there (in {folder.parent}: {have})") from None
    except ReceivedError as error:
        raise UserError(f"{folder}: {error}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{folder}: sweep.json cannot be read ({error})") from None


def _check(settings: object, cells: list[Cell], notes: object, tries: list[Try]) -> None:
    """Raise ValueError for what no sweep has: values of other types, and names that lead out of its folder."""
    if not all(isinstance(words, dict) for words in (settings, *(cell.words for cell in cells))) or not cells:
        raise ValueError("asked and the words of each cell are objects, and there is a cell")
    words = [word for words in (settings, *(cell.words for cell in cells)) for word in words.values()]  # pyright: ignore
    if not isinstance(notes, list) or not all(isinstance(word, str) for word in (*words, *notes)):
        raise ValueError("words and notes are text")
    if not all(type(cell.repeats) is int and cell.repeats >= 1 and isinstance(cell.group, str) for cell in cells):
        raise ValueError("repeats are whole numbers from 1, and a group is text")
    _check_size(cells)
    runs = [attempt.run for attempt in tries if attempt.run is not None]
    for attempt in tries:
        if attempt.run is not None and not is_run(attempt.run):
            raise ValueError(f"{ascii(attempt.run)[:80]} is no name of a run")
        is_text = attempt.error is None or isinstance(attempt.error, str)
        if not is_text or not isinstance(attempt.seconds, int | float):
            raise ValueError("a try has seconds, and an error as text or none")
        if type(attempt.cell) is not int or type(attempt.repeat) is not int:
            raise ValueError("a try is of a cell and a repeat, which are whole numbers")
    if len(set(runs)) < len(runs):
        raise ValueError("a run is there twice")


def _check_size(cells: list[Cell]) -> None:
    """Raise ValueError for more cells, words or runs than any sweep has: each is gone through."""
    runs = sum(cell.repeats for cell in cells)
    if len(cells) > MOST_CELLS or runs > MOST_RUNS or any(len(cell.words) > MOST_WORDS for cell in cells):
        raise ValueError(f"{runs} runs of {len(cells)} combinations; {MOST_RUNS} of {MOST_CELLS} are the most")


def folder_of(settings: dict[str, str], sweep_settings: dict[str, str]) -> Path:
    """The sweep's folder. Raises UserError for a name that is no folder's."""
    digest = hashlib.sha256(json.dumps(sweep_settings, sort_keys=True).encode()).hexdigest()[:8]
    name = settings.get("NAME", f"sweep-{digest}")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise UserError(f"NAME={name}: letters, digits, dots, dashes and underscores, as in NAME=monday")
    where = settings.get("SWEEPS_DIR", "sweeps")
    try:
        return Path(where).expanduser() / name
    except RuntimeError as error:  # ~ of nobody
        raise UserError(f"SWEEPS_DIR={where}: {error}") from None


def load_matching(folder: Path, settings: dict[str, str]) -> Sweep:
    """The sweep that was begun there. Raises UserError when it is of other settings."""
    sweep = load(folder)
    if sweep.settings != settings:
        names = sorted(sweep.settings.keys() | settings.keys())
        name = next(n for n in names if sweep.settings.get(n) != settings.get(n))
        was, now = (f"{name}={words[name]}" if name in words else f"no {name}" for words in (sweep.settings, settings))
        raise UserError(f"{folder}: is a sweep with {was}, this is one with {now}; give it another NAME=")
    return sweep
