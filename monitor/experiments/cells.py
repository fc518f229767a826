"""The combinations that a set of runs is made of."""

import itertools
import math
from dataclasses import dataclass

from monitor.conditions import conditions
from monitor.errors import UserError
from monitor.run import recovery, request
from trainer.spec import RunSpec, SpecError

LISTS = dict.fromkeys(
    ("SHARES", *conditions.SETTINGS), "/"
)  # settings whose values hold commas themselves, and what parts two of their values
MOST = 1000  # combinations
ONE_VALUE = ("DATA_DIR", "DATA_CACHE", "PROJECT", "RUNTIME")  # the same for every cell, and may hold commas


@dataclass(frozen=True)
class Cell:
    """One combination: what `syncbed run` is given, and how often. `group` names the part of a preset it is of."""

    words: dict[str, str]
    repeats: int
    group: str = ""

    def text(self, among: list["Cell"]) -> str:
        """Its group, and the words in which it differs from others of it; all its words when it has neither."""
        alike = [cell for cell in among if cell.group == self.group]
        names = [n for n in self.words if len({cell.words.get(n) for cell in alike}) > 1]
        if not names and not self.group:
            names = list(self.words)
        return " ".join([self.group] * bool(self.group) + [f"{name}={self.words[name]}" for name in names])


def product(words: dict[str, str], repeats: int, place, group: str = "") -> tuple[list[Cell], list[str]]:
    """Every combination that can be run as a Cell, and of the others a line each that says why not.

    Raises SpecError for a value with which no combination can be run, and UserError for what no sweep takes.
    """
    lists = {name: values(name, text) for name, text in words.items()}
    if (count := math.prod(map(len, lists.values()))) > MOST:
        raise UserError(f"{count:,} combinations: a sweep has at most {MOST:,}; shorten its lists")
    cells, refused = [], []
    for combination in itertools.product(*lists.values()):
        settings = request.with_nodes({"RUNTIME": place.name} | dict(zip(lists, combination, strict=True)), place)
        spec_words = {name: value for name, value in settings.items() if name not in request.NOT_IN_SPEC}
        try:
            spec = RunSpec.from_settings(spec_words)
            conditions.Conditions.of(settings, spec, settings["RUNTIME"])
            recovery.allowed(settings)
            cells.append(Cell(settings, repeats, group))
        except SpecError as error:
            refused.append((settings, error))
    for name, choices in lists.items():
        for value in choices:
            if not any(cell.words[name] == value for cell in cells):
                raise next(error for settings, error in refused if settings[name] == value)
    several = [name for name, choices in lists.items() if len(choices) > 1]
    reasons = []
    for settings, error in refused:
        reasons.append(" ".join(f"{name}={settings[name]}" for name in several) + f" ({error})")
    return cells, reasons


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
