"""The combinations that a set of runs is made of."""

import itertools
import math
from dataclasses import dataclass, replace
from pathlib import Path

from monitor.conditions import conditions
from monitor.conditions.conditions import Conditions
from monitor.errors import UserError
from monitor.run.request import Request, with_nodes
from monitor.runtime.base import Runtime
from trainer.spec import RunSpec, SpecError

# Settings whose values hold commas themselves, and what separates two of their values.
LISTS = dict.fromkeys(("SHARES", *conditions.SETTINGS), "/")
MOST = 1000  # combinations
ONE_VALUE = ("DATA_DIR", "DATA_CACHE", "PROJECT", "RUNTIME")  # the same for every cell, and may hold commas


@dataclass(frozen=True)
class Cell:
    """One combination: what `syncbed run` is given, and how often. `group` names the part of a preset it is of."""

    words: dict[str, str]
    repeats: int
    group: str = ""

    def request(self, runs: Path | None = None) -> Request:
        """What a run of it is asked for, with its folder in `runs`. Raises UserError and SpecError."""
        request = Request.of(self.words)
        return request if runs is None else replace(request, runs=runs, pages=False)

    def spec(self) -> RunSpec:
        """The spec of its runs. Raises SpecError."""
        return RunSpec.from_settings(dict(self.request().spec))

    def text(self, among: list["Cell"]) -> str:
        """Its group, and the words in which it differs from others of it; all its words when it has neither."""
        return self._text(_differing([cell for cell in among if cell.group == self.group]))

    def _text(self, differing: set[str]) -> str:
        names = [name for name in self.words if name in differing]
        if not names and not self.group:
            names = list(self.words)
        return " ".join([self.group] * bool(self.group) + [f"{name}={self.words[name]}" for name in names])


def texts(cells: list[Cell]) -> list[str]:
    """The text of each cell among all of these."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.group, []).append(cell)
    differing = {name: _differing(group) for name, group in groups.items()}
    return [cell._text(differing[cell.group]) for cell in cells]


def _differing(group: list[Cell]) -> set[str]:
    """The words that these cells have different values of."""
    names = {name for cell in group for name in cell.words}
    return {name for name in names if len({cell.words.get(name) for cell in group}) > 1}


def product(words: dict[str, str], repeats: int, runtime: Runtime, group: str = "") -> tuple[list[Cell], list[str]]:
    """Every combination that can be run as a Cell, and of the others a line each that says why not.

    Raises SpecError for a value with which no combination can be run, and UserError for what no sweep takes.
    """
    lists = {name: values(name, text) for name, text in words.items()}
    if (count := math.prod(map(len, lists.values()))) > MOST:
        raise UserError(f"{count:,} combinations: a sweep has at most {MOST:,}; shorten its lists")
    cells: list[Cell] = []
    refusals: list[tuple[dict[str, str], SpecError]] = []
    for combination in itertools.product(*lists.values()):
        choice = {"RUNTIME": runtime.name} | dict(zip(lists, combination, strict=True))
        cell = Cell(with_nodes(choice, runtime.default_nodes), repeats, group)
        try:
            Conditions.of(cell.request().conditions, cell.spec(), runtime.capabilities)
            cells.append(cell)
        except SpecError as error:
            refusals.append((cell.words, error))
    for name, choices in lists.items():
        for value in choices:
            if not any(cell.words[name] == value for cell in cells):
                raise next(error for words, error in refusals if words[name] == value)
    several = [name for name, choices in lists.items() if len(choices) > 1]
    return cells, [" ".join(f"{name}={words[name]}" for name in several) + f" ({error})" for words, error in refusals]


def values(name: str, text: str) -> list[str]:
    """The values of a setting's list. Raises UserError for an empty value, or one twice."""
    if name in ONE_VALUE:
        return [text]
    parts = [part.strip() for part in text.split(LISTS.get(name, ","))]
    if not all(parts):
        raise UserError(f"{name}={text}: a list with an empty value; as in SYNC=ddp,all_reduce")
    if twice := next((part for part in parts if parts.count(part) > 1), None):
        raise UserError(f"{name}={text}: {twice} stands there twice; REPEATS= runs everything several times")
    return parts
