"""`syncbed sweep`: every combination of some settings, several times, in a folder that the same command goes on with.

    make sweep SYNC=gather_scatter,all_reduce,ddp NODES=1,2,4 REPEATS=3

sweeps/<name>/   sweep.json, and a run folder for each cell and repeat: it is a RUNS_DIR of its own

Repeats are the outer loop and every second one goes backwards, so that a machine that grows warm or busy hits all cells
alike. What is finished is read from the runs' own results; a cell that failed is tried again by the next command.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.text import Text

from monitor import results, run, runtime, summary
from monitor.cells import Cell, product
from monitor.clock import CLOCK
from monitor.errors import FAILED, Busy, UserError, refuse_unknown
from monitor.interrupt import Stop
from monitor.sweep_folder import alone, begun, unwritable
from trainer.checkpoint_folder import FOLDER
from trainer.spec import RunSpec, SpecError

SCHEMA = 1
OWN = {
    "REPEATS": "how often each combination is run; default: 1",
    "KEEP": "1: keep the checkpoints of its runs, which may be large; default: 0",
    "NAME": "name of the sweep's folder; default: made from the settings",
    "SWEEPS_DIR": "folder of sweeps; default: sweeps",
}
NOT_HERE = ("RESUME", "RUNS_DIR", "PAGES")
SETTINGS = {n: what for n, what in (RunSpec.settings_help() | run.NOT_IN_SPEC).items() if n not in NOT_HERE} | OWN
MAX_REPEATS = 100


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
    asked: dict[str, str]  # the words of the command; another sweep has others
    cells: list[Cell]
    notes: list[str] = field(default_factory=list)  # what a reader must know: which combinations are left out, and why
    tries: list[Try] = field(default_factory=list)

    def order(self) -> Iterator[tuple[int, int]]:
        """(cell, repeat) in the order in which they are run."""
        for repeat in range(1, max(cell.repeats for cell in self.cells) + 1):
            cells = [i for i, cell in enumerate(self.cells) if cell.repeats >= repeat]
            for cell in cells if repeat % 2 else reversed(cells):
                yield cell, repeat

    @property
    def total(self) -> int:
        """How many runs it is."""
        return sum(cell.repeats for cell in self.cells)

    def last(self, cell: int, repeat: int) -> Try | None:
        """The last time that this was tried."""
        return next((t for t in reversed(self.tries) if (t.cell, t.repeat) == (cell, repeat)), None)

    def done(self, cell: int, repeat: int) -> bool:
        """Whether it was run to its end and the result is still there."""
        last = self.last(cell, repeat)
        return bool(last and last.error is None and self._result(last))

    def results(self, cell: int) -> list[dict]:
        """The finished results of a cell, by repeat."""
        tries = (self.last(cell, repeat) for repeat in range(1, self.cells[cell].repeats + 1))
        return [result for t in tries if t and not t.error and (result := self._result(t))]

    def failures(self) -> list[Try]:
        """What failed when it was last tried."""
        return [t for cell, repeat in self.order() if (t := self.last(cell, repeat)) and t.error]

    def _result(self, tried: Try) -> dict | None:
        with suppress(UserError):
            result = results.load(tried.run, self.folder)
            if results.whole(result) and result["status"] == results.FINISHED:
                return result
        return None

    def seconds_left(self) -> float | None:
        """An estimate from what each cell took before, else from the mean of all. None before the first."""
        took = {}
        for tried in self.tries:
            if not tried.error:
                took.setdefault(tried.cell, []).append(tried.seconds)
        if not took:
            return None
        mean = summary.mean(s for own in took.values() for s in own)
        open_cells = [cell for cell, repeat in self.order() if not self.done(cell, repeat)]
        return sum(summary.mean(took[cell]) if cell in took else mean for cell in open_cells)

    def save(self) -> None:
        """Write sweep.json whole or not at all. Raises UserError."""
        text = json.dumps({"schema": SCHEMA, **asdict(self), "folder": self.folder.name}, indent=1)
        part = self.folder / "sweep.json.part"
        try:
            part.write_text(text + "\n")
            part.replace(self.folder / "sweep.json")
        except OSError as error:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            raise unwritable(self.folder, error) from None


def load(folder: Path) -> Sweep:
    """The sweep of this folder. Raises UserError in one line."""
    try:
        values = json.loads((folder / "sweep.json").read_text())
        if values["schema"] > SCHEMA:
            raise UserError(f"{folder}: schema {values['schema']} is newer than this syncbed reads ({SCHEMA})")
        return Sweep(
            folder,
            values["asked"],
            [Cell(**cell) for cell in values["cells"]],
            values["notes"],
            [Try(**tried) for tried in values["tries"]],
        )
    except FileNotFoundError:
        have = ", ".join(sorted(path.parent.name for path in folder.parent.glob("*/sweep.json"))[:5]) or "none yet"
        raise UserError(f"{folder}: no sweep there (in {folder.parent}: {have})") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder}: sweep.json cannot be read ({error})") from None


def command(settings: dict[str, str], args) -> int:
    """CLI `sweep`. 0: every cell finished; 1: some failed, or it was interrupted. Raises UserError and SpecError."""
    known(settings, SETTINGS)
    say = summary.console(stderr=args.json)
    asked = {name: value for name, value in settings.items() if name not in ("NAME", "SWEEPS_DIR")}
    folder = named(settings, asked)
    sweep = goes_on(folder, asked) if begun(folder) else plan(folder, asked)
    code = carry_out(sweep, say)
    from monitor import compare  # after the runs: it loads scipy

    compare.report_sweep(sweep, say, as_json=args.json)
    return code


def known(settings: dict[str, str], allowed: dict[str, str]) -> None:
    """Raises UserError for a setting that is none, or that goes with single runs only."""
    for name in NOT_HERE:
        if name in settings:
            raise UserError(f"{name}={settings[name]}: goes with a single run, not with a set of them")
    refuse_unknown(settings, allowed)


def named(settings: dict[str, str], asked: dict[str, str]) -> Path:
    """The sweep's folder. Raises UserError for a name that is no folder's."""
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:8]
    name = settings.get("NAME", f"sweep-{digest}")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise UserError(f"NAME={name}: letters, digits, dots, dashes and underscores, as in NAME=monday")
    where = settings.get("SWEEPS_DIR", "sweeps")
    try:
        return Path(where).expanduser() / name
    except RuntimeError as error:  # ~ of nobody
        raise UserError(f"SWEEPS_DIR={where}: {error}") from None


def goes_on(folder: Path, asked: dict[str, str]) -> Sweep:
    """The sweep that was begun there. Raises UserError when it is of other settings."""
    sweep = load(folder)
    if sweep.asked != asked:
        name = next(n for n in sorted(sweep.asked.keys() | asked.keys()) if sweep.asked.get(n) != asked.get(n))
        was, now = (f"{name}={words[name]}" if name in words else f"no {name}" for words in (sweep.asked, asked))
        raise UserError(f"{folder}: is a sweep with {was}, this is one with {now}; give it another NAME=")
    return sweep


def plan(folder: Path, asked: dict[str, str]) -> Sweep:
    """The sweep of a command's words. Raises UserError and SpecError before anything is written or started."""
    words = dict(asked)
    keep(words)
    repeats = whole("REPEATS", words.pop("REPEATS", "1"), MAX_REPEATS)
    cells, left_out = product(words, repeats, place_of(words))
    return Sweep(folder, asked, cells, [f"left out: {line}" for line in left_out])


def place_of(words: dict[str, str]):
    """The runtime that RUNTIME= names, or that a run would choose. Raises UserError."""
    return runtime.choose({name: words[name] for name in ("RUNTIME", "PROJECT") if name in words})


def keep(words: dict[str, str]) -> None:
    """Take KEEP out of the words. Raises UserError."""
    if (text := words.pop("KEEP", "0")) not in ("0", "1"):
        raise UserError(f"KEEP={text}: 0 or 1")


def whole(name: str, text: str, most: int) -> int:
    """The number from 1 that the text gives. Raises UserError."""
    if not re.fullmatch(r"[0-9]{1,6}", text) or not 1 <= int(text) <= most:
        raise UserError(f"{name}={text}: a whole number from 1 to {most}")
    return int(text)


def carry_out(sweep: Sweep, say: Console) -> int:
    """Run what is not finished. 0 when all is; 1 when something failed or a signal stopped it.

    Raises UserError when another sweep works in the folder, or has made another of it since it was looked at, and Busy
    when another run holds the nodes.
    """
    with alone(sweep.folder):
        if begun(sweep.folder):
            now = goes_on(sweep.folder, sweep.asked)
            sweep.cells, sweep.notes, sweep.tries = now.cells, now.notes, now.tries
        sweep.save()
        total, failed = sweep.total, 0
        for line in sweep.notes:
            say.print(line, highlight=False)
        before = sum(sweep.done(*which) for which in sweep.order())
        if before:
            say.print(f"{before} of {total} runs are finished already", highlight=False)
        for place, (cell, repeat) in enumerate(sweep.order(), 1):
            if sweep.done(cell, repeat):
                continue
            say.print(_heading(sweep, place, total, cell, repeat), highlight=False)
            stop = Stop().listen()
            tried = _try(sweep, cell, repeat, say, stop)
            if tried:
                failed += tried.error is not None
                sweep.tries.append(tried)
                sweep.save()
                if tried.run and sweep.asked.get("KEEP") != "1":
                    shutil.rmtree(sweep.folder / tried.run / FOLDER, ignore_errors=True)
            if stop.asked:
                say.print("stopped; the same command goes on from here", highlight=False)
                return FAILED
    return FAILED if failed else 0


def _heading(sweep: Sweep, place: int, total: int, cell: int, repeat: int) -> Text:
    left = sweep.seconds_left()
    repeats = sweep.cells[cell].repeats
    again = f"  repeat {repeat} of {repeats}" if repeats > 1 else ""
    time_left = "" if left is None else f"  {duration(left)} left"
    what = sweep.cells[cell].text(sweep.cells)
    return Text.assemble((f"[{place}/{total}]", "bold"), f" {what}{again}{time_left}")


def duration(seconds: float) -> str:
    """As people say it: 40 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _try(sweep: Sweep, cell: int, repeat: int, say: Console, stop: Stop) -> Try | None:
    """Run a cell once and say in a line what came of it. None when a signal stopped it, which says nothing of it."""
    began = CLOCK.begin()
    try:
        result = run.run(sweep.cells[cell].words | {"RUNS_DIR": str(sweep.folder)}, say, began, stop)
    except Busy:
        raise
    except (UserError, SpecError) as error:
        say.print(f"failed: {error}", style="red", highlight=False)
        return Try(cell, repeat, None, CLOCK.now() - began, str(error))
    if result["error"] and result["error"]["kind"] == "interrupted":
        return None
    error = result["error"]["message"] if result["error"] else None
    if error:
        say.print(f"failed: {error}", style="red", highlight=False)
    else:
        steps = [rank["step_seconds"]["mean"] for rank in result["ranks"]]
        say.print(
            f"finished  {summary.number(summary.mean(steps), 3)} s/step  "
            f"test accuracy {summary.share(result['test_accuracy'])}  {result['id']}",
            markup=False,
            highlight=False,
        )
    return Try(cell, repeat, result["id"], CLOCK.now() - began, error)
