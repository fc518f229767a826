"""Presets: a named set of runs that ends in tables and verdicts, as a TOML file.

docs/reference/presets.md says how to write one. Ours are in monitor/experiments/presets/; a path to any other
file will do as well. The types below say what a file may hold, and pydantic checks it before anything
runs.
"""

import hashlib
import itertools
import json
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError

from monitor import toml
from monitor.conditions.conditions import Unavailable
from monitor.errors import UserError
from monitor.experiments.cells import Cell, product, values
from monitor.experiments.claims import Claim, Strict
from monitor.experiments.figures import RateOf, SecondsOf
from monitor.results.problem import first_problem
from monitor.runtime.base import Runtime
from trainer.names import in_folder, is_run
from trainer.received import read_received

OURS = Path(__file__).parent / "presets"
MOST_BYTES = 1 << 20  # of a file
Words = dict[str, str]


class Scale(Strict):
    """How much of the report is run. `note`: what is done otherwise than there."""

    note: str
    words: Words = Field({})
    repeats: PositiveInt


class Runs(Strict):
    """A group of runs: the product of the words' lists, for each of `each`. Further keys: words of one scale only."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Words]  # pyright: ignore[reportIncompatibleVariableOverride] # pydantic's own way
    name: str
    words: Words
    each: list[Words] = Field([{}], min_length=1)
    repeats: PositiveInt | None = None  # at most; None: as the scale says

    def at(self, scale: str, common: Words) -> Words:
        """The words at this scale. A length of its own takes the place of the common one."""
        words = self.words | (self.model_extra or {}).get(scale, {})
        other_length = {"EPOCHS": "STEPS", "STEPS": "EPOCHS"}
        return {name: text for name, text in common.items() if other_length.get(name) not in words} | words


class OfRuns(Strict):
    """A table or plots of the page, for the runs it names or for all."""

    runs: list[str] | None = None


class Table(OfRuns):
    kind: Literal["compare", "nodes", "classes", "curves", "resources", "competition"]


class Losses(OfRuns):
    kind: Literal["losses"]
    every: PositiveInt = 20


class SpeedUp(OfRuns):
    kind: Literal["speed_up"]
    what: RateOf = "step"


class Against(OfRuns):
    kind: Literal["against"]
    by: str  # a setting with several values
    what: RateOf = "step"


class Utilisation(OfRuns):
    kind: Literal["utilisation"]
    plots: list[Literal["cpu", "memory", "packets-sent", "packets-received"]] = Field(
        ["cpu", "memory", "packets-sent", "packets-received"], min_length=1
    )


AnyTable = Annotated[Table | Losses | SpeedUp | Against | Utilisation, Field(discriminator="kind")]
KINDS = [
    kind
    for table in (Table, Losses, SpeedUp, Against, Utilisation)
    for kind in get_args(table.model_fields["kind"].annotation)
]


class Published(Strict):
    """What the report measured, by name of runs; shown as ratios to the first."""

    what: SecondsOf
    values: dict[str, PositiveFloat] = Field(min_length=1)


class File(Strict):
    title: str
    about: str
    words: Words = Field({})
    scale: dict[str, Scale] = Field(min_length=1)
    runs: list[Runs] = Field(min_length=1)
    published: Published | None = None
    tables: list[AnyTable] = Field([Table(kind="compare")])
    claims: list[Claim] = Field([])  # pyright: ignore[reportInvalidTypeForm] # a type for each test, made when imported


class Preset:
    """A file at one scale."""

    def __init__(self, name: str, file: File, scale: str):
        self.name, self.file, self.scale = name, file, scale
        self.title, self.about = file.title, file.about
        self.tables, self.claims, self.published = file.tables, file.claims, file.published
        self.note = file.scale[scale].note

    @property
    def digest(self) -> str:
        """Of all that decides what is run: two presets with the same have the same runs."""
        file, scale = self.file, self.file.scale[self.scale]
        runs = [[r.name, r.at(self.scale, file.words | scale.words), r.each, r.repeats] for r in file.runs]
        return hashlib.sha256(json.dumps([runs, scale.repeats], sort_keys=True).encode()).hexdigest()[:8]

    def cells(self, runtime: Runtime, more: Words) -> tuple[list[Cell], list[str]]:
        """Every run as a cell, `more` in place of the preset's own words, and what cannot be run. Raises SpecError."""
        cells: list[Cell] = []
        left_out: list[str] = []
        scale = self.file.scale[self.scale]
        repeats = int(more.get("REPEATS", scale.repeats))
        more = {name: value for name, value in more.items() if name != "REPEATS"}
        for runs in self.file.runs:
            words, times = runs.at(self.scale, self.file.words | scale.words), min(runs.repeats or repeats, repeats)
            for each in runs.each:
                try:
                    group, refused = product(words | each | more, times, runtime, runs.name)
                except Unavailable as error:
                    left_out.append(f"{runs.name} ({error})")
                else:
                    cells += group
                    left_out += refused
        return cells, left_out


def read(name: str, scale: str) -> Preset:
    """The preset of ours called `name`, or the file of that path. Raises UserError in one line."""
    own = f"{name if is_run(name) else '-'}.toml"  # a name that leads elsewhere is none of ours
    path = Path(name).expanduser() if name.endswith(".toml") else in_folder(OURS, own)
    try:
        text = toml.loads(read_received(path, MOST_BYTES).decode())
    except FileNotFoundError:
        names = ", ".join(sorted(path.stem for path in OURS.glob("*.toml")))
        reason = "no such file; " if name.endswith(".toml") else ""
        raise UserError(f"REPORT={name}: {reason}one of: {names}; or the path of a .toml file of your own") from None
    except (OSError, UnicodeDecodeError, RecursionError, toml.TOMLDecodeError) as error:
        raise UserError(f"REPORT={name}: cannot be read: {' '.join(str(error).split())}") from None
    try:
        file = File.model_validate(text)
    except ValidationError as error:
        raise UserError(f"preset {path.stem}: {first_problem(error)}") from None
    if scale not in file.scale:
        raise UserError(f"SCALE={scale}: one of: {', '.join(file.scale)}")
    try:
        _check(file)
    except UserError as error:
        raise UserError(f"preset {path.stem}: {error}") from None
    return Preset(path.stem, file, scale)


def _check(file: File) -> None:
    """What types cannot say. Raises UserError."""
    names = [runs.name for runs in file.runs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"two runs are called {twice}")
    references: list[tuple[str, Collection[str]]] = [(f"table {table.kind}", table.runs or ()) for table in file.tables]
    if file.published:
        references.append(("published", file.published.values))
    for where, run_names in references:
        if missing := next((name for name in run_names if name not in names), None):
            raise UserError(f"{where}: no runs are called {missing}; there are: {', '.join(names)}")
    for table in file.tables:
        among = [runs for runs in file.runs if table.runs is None or runs.name in table.runs]
        if table.kind == "against" and not any(table.by in words for runs in among for words in _words(file, runs)):
            raise UserError(f"table against: by: {table.by} is no word of its runs")
    for runs in file.runs:
        if key := next((key for key in runs.model_extra or {} if key not in file.scale), None):
            raise UserError(f"runs {runs.name}: {key}: no such key, and no scale of that name")
        for word, text in itertools.chain(*(words.items() for words in (runs.words, *runs.each))):
            values(word, text)


def _words(file: File, runs: Runs) -> list[Words]:
    """Every table of words that a run of this group may have."""
    return [file.words, *(scale.words for scale in file.scale.values()), runs.words, *runs.each]
