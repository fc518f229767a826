"""`syncbed sweep`: every combination of some settings, several times, in a folder that the same command goes on with.

    make sweep SYNC=gather_scatter,all_reduce,ddp NODES=1,2,4 REPEATS=3

sweeps/<name>/   sweep.json, and a run folder for each cell and repeat: it is a RUNS_DIR of its own

Repeats are the outer loop and every second one goes backwards, so that a machine that grows warm or busy hits all cells
alike. What is finished is read from the runs' own results; a cell that failed is tried again by the next command.
"""

import re
from pathlib import Path

from monitor import console
from monitor.errors import UserError, refuse_unknown
from monitor.experiments.carry_out import carry_out
from monitor.experiments.cells import product
from monitor.experiments.sweep import Sweep, goes_on, named
from monitor.experiments.sweep_folder import begun
from monitor.run import request
from monitor.runtime import choice
from trainer.spec import RunSpec

OWN = {
    "REPEATS": "how often each combination is run; default: 1",
    "KEEP": "1: keep the checkpoints of its runs, which may be large; default: 0",
    "NAME": "name of the sweep's folder; default: made from the settings",
    "SWEEPS_DIR": "folder of sweeps; default: sweeps",
}
NOT_HERE = ("RESUME", "RUNS_DIR", "PAGES")
SETTINGS = {n: what for n, what in (RunSpec.settings_help() | request.NOT_IN_SPEC).items() if n not in NOT_HERE} | OWN
MAX_REPEATS = 100


def command(settings: dict[str, str], args) -> int:
    """CLI `sweep`. 0: every cell finished; 1: some failed, or it was interrupted. Raises UserError and SpecError."""
    known(settings, SETTINGS)
    say = console.console(stderr=args.json)
    asked = {name: value for name, value in settings.items() if name not in ("NAME", "SWEEPS_DIR")}
    folder = named(settings, asked)
    sweep = goes_on(folder, asked) if begun(folder) else plan(folder, asked)
    code = carry_out(sweep, say)
    from monitor.experiments import publishing

    publishing.report_sweep(sweep, say, as_json=args.json)
    return code


def known(settings: dict[str, str], allowed: dict[str, str]) -> None:
    """Raises UserError for a setting that is none, or that goes with single runs only."""
    for name in NOT_HERE:
        if name in settings:
            raise UserError(f"{name}={settings[name]}: goes with a single run, not with a set of them")
    refuse_unknown(settings, allowed)


def plan(folder: Path, asked: dict[str, str]) -> Sweep:
    """The sweep of a command's words. Raises UserError and SpecError before anything is written or started."""
    words = dict(asked)
    keep(words)
    repeats = whole("REPEATS", words.pop("REPEATS", "1"), MAX_REPEATS)
    cells, left_out = product(words, repeats, place_of(words))
    return Sweep(folder, asked, cells, [f"left out: {line}" for line in left_out])


def place_of(words: dict[str, str]):
    """The runtime that RUNTIME= names, or that a run would choose. Raises UserError."""
    return choice.choose({name: words[name] for name in ("RUNTIME", "PROJECT") if name in words})


def keep(words: dict[str, str]) -> None:
    """Take KEEP out of the words. Raises UserError."""
    if (text := words.pop("KEEP", "0")) not in ("0", "1"):
        raise UserError(f"KEEP={text}: 0 or 1")


def whole(name: str, text: str, most: int) -> int:
    """The number from 1 that the text gives. Raises UserError."""
    if not re.fullmatch(r"[0-9]{1,6}", text) or not 1 <= int(text) <= most:
        raise UserError(f"{name}={text}: a whole number from 1 to {most}")
    return int(text)
