"""Presets: a named set of runs that ends in tables and verdicts, as a TOML file; docs/presets.md is how to write one.

Ours are in monitor/presets/; a path to any other file will do as well.
"""

import itertools
from dataclasses import dataclass, field
from pathlib import Path

from monitor import claims, figures
from monitor.cells import Cell, product, values
from monitor.errors import UserError

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib

OURS = Path(__file__).parent / "presets"
TABLES = ("compare", "nodes", "losses", "classes", "curves", "speed_up", "resources", "utilisation", "competition")
FIGURES = {"step_seconds": figures.step_seconds, "training_seconds": figures.training_seconds}
KEYS = ("title", "about", "words", "scale", "runs", "published", "tables", "claims")


@dataclass(frozen=True)
class Runs:
    """A group of runs: the product of `words`' lists, or one cell for each of `each`."""

    name: str
    words: dict[str, str]
    each: list[dict[str, str]]
    repeats: int | None  # None: the scale's


@dataclass(frozen=True)
class Preset:
    name: str
    title: str
    about: str
    scale: str
    note: str  # what this scale does otherwise than the report
    repeats: int
    runs: list[Runs]
    tables: list[dict]
    claims: list[dict]
    published: dict = field(default_factory=dict)

    def cells(self, place, more: dict[str, str]) -> tuple[list[Cell], list[str]]:
        """Every run as a cell, `more` in place of the preset's own words, and what cannot be run. Raises SpecError."""
        cells, left_out = [], []
        repeats = int(more.get("REPEATS", self.repeats))
        more = {name: value for name, value in more.items() if name != "REPEATS"}
        for runs in self.runs:
            for each in runs.each:
                words, times = runs.words | each | more, min(runs.repeats or repeats, repeats)
                made, refused = product(words, times, place, runs.name)
                cells += made
                left_out += refused
        return cells, left_out


def read(name: str, scale: str) -> Preset:
    """The preset of ours called `name`, or the file of that path. Raises UserError in one line."""
    path = OURS / f"{name}.toml" if not name.endswith(".toml") else Path(name).expanduser()
    try:
        text = tomllib.loads(path.read_text())
    except FileNotFoundError:
        have = ", ".join(sorted(p.stem for p in OURS.glob("*.toml")))
        raise UserError(f"REPORT={name}: one of: {have}; or the path of a .toml file of your own") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"REPORT={name}: cannot be read: {' '.join(str(error).split())}") from None
    return _parsed(path.stem, text, scale)


def _parsed(name: str, text: dict, scale: str) -> Preset:
    for key in text.keys() - set(KEYS):
        raise UserError(f"preset {name}: {key}: no such key; one of: {', '.join(KEYS)}")
    scales = text.get("scale") or {}
    if scale not in scales:
        raise UserError(f"SCALE={scale}: one of: {', '.join(scales)}")
    try:
        ours = scales[scale]
        common = text.get("words", {}) | ours.get("words", {})
        runs = [_runs(run, common, scale) for run in text["runs"]]
        preset = Preset(
            name,
            text["title"],
            text["about"],
            scale,
            ours["note"],
            ours["repeats"],
            runs,
            text.get("tables", [{"kind": "compare"}]),
            text.get("claims", []),
            text.get("published", {}),
        )
    except KeyError as missing:
        raise UserError(f"preset {name}: {missing.args[0]} is missing") from None
    except (TypeError, AttributeError) as error:
        raise UserError(f"preset {name}: {error}") from None
    _check(preset)
    return preset


def _runs(run: dict, common: dict, scale: str) -> Runs:
    words = common | run["words"] | run.get(scale, {})
    if "EPOCHS" in (own := run["words"] | run.get(scale, {})) or "STEPS" in own:
        words.pop(
            "STEPS" if "EPOCHS" in own else "EPOCHS", None
        )  # a run's own length takes the place of the common one
    return Runs(run["name"], words, run.get("each", [{}]), run.get("repeats"))


def _check(preset: Preset) -> None:
    names = [runs.name for runs in preset.runs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"preset {preset.name}: two runs are called {twice}")
    for table in preset.tables:
        if table.get("kind") not in TABLES:
            raise UserError(f"preset {preset.name}: table kind={table.get('kind')}: one of: {', '.join(TABLES)}")
        for name in table.get("runs", []):
            if name not in names:
                raise UserError(f"preset {preset.name}: table {table['kind']}: no runs are called {name}")
    for claim in preset.claims:
        claims.check(claim)
    if preset.published and preset.published.get("figure") not in FIGURES:
        raise UserError(f"preset {preset.name}: published figure: one of: {', '.join(FIGURES)}")
    for name in preset.published.get("values", {}):
        if name not in names:
            raise UserError(f"preset {preset.name}: published: no runs are called {name}")
    for word, text in itertools.chain(*((runs.words | each).items() for runs in preset.runs for each in runs.each)):
        if not isinstance(text, str):
            raise UserError(f'preset {preset.name}: {word} = {text}: words are text, as {word} = "{text}"')
        values(word, text)
