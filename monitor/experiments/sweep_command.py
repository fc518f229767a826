"""`syncbed sweep`: every combination of some settings, several times, in a folder that the same command goes on with.

    make sweep SYNC=gather_scatter,all_reduce,ddp NODES=1,2,4 REPEATS=3

sweeps/<name>/   sweep.json, and a run folder for each cell and repeat: it is a RUNS_DIR of its own

Repeats are the outer loop and every second one goes backwards, so that a machine that grows warm or busy hits all cells
alike. What is finished is read from the runs' own results; a cell that failed is tried again by the next command.
"""

import re
from pathlib import Path

from monitor import console as consoles
from monitor.errors import UserError, refuse_unknown
from monitor.experiments.carry_out import carry_out
from monitor.experiments.cells import product
from monitor.experiments.sweep import Sweep, folder_of, load_matching
from monitor.experiments.sweep_folder import has_sweep
from monitor.run import request
from monitor.runtime import choice
from monitor.runtime.choice import Place

OWN = {
    "REPEATS": "how often each combination is run; default: 1",
    "KEEP": "1: keep the checkpoints of its runs, which may be large; default: 0",
    "NAME": "name of the sweep's folder; default: made from the settings",
    "SWEEPS_DIR": "folder of sweeps; default: sweeps",
}
NOT_HERE = ("RESUME", "RUNS_DIR", "PAGES")
SETTINGS = {name: text for name, text in request.SETTINGS.items() if name not in NOT_HERE} | OWN
MAX_REPEATS = 100


def command(settings: dict[str, str], args) -> int:
    """CLI `sweep`. 0: every cell finished; 1: some failed, or it was interrupted. Raises UserError and SpecError."""
    check_settings(settings, SETTINGS)
    console = consoles.console(stderr=args.json)
    sweep_settings = {name: value for name, value in settings.items() if name not in ("NAME", "SWEEPS_DIR")}
    folder = folder_of(settings, sweep_settings)
    sweep = load_matching(folder, sweep_settings) if has_sweep(folder) else plan(folder, sweep_settings)
    code = carry_out(sweep, console)
    from monitor.experiments import publishing

    publishing.report_sweep(sweep, console, as_json=args.json)
    return code


def check_settings(settings: dict[str, str], allowed: dict[str, str]) -> None:
    """Raises UserError for a setting that is none, or that goes with single runs only."""
    for name in NOT_HERE:
        if name in settings:
            raise UserError(f"{name}={settings[name]}: goes with a single run, not with a set of them")
    refuse_unknown(settings, allowed)


def plan(folder: Path, sweep_settings: dict[str, str]) -> Sweep:
    """The sweep of a command's words. Raises UserError and SpecError before anything is written or started."""
    check_keep(sweep_settings)
    repeats = whole("REPEATS", sweep_settings.get("REPEATS", "1"), MAX_REPEATS)
    words = run_words(sweep_settings)
    cells, left_out = product(words, repeats, choice.choose(Place.of(words)))
    return Sweep(folder, sweep_settings, cells, [f"left out: {line}" for line in left_out])


def run_words(settings: dict[str, str]) -> dict[str, str]:
    """The settings that are of its runs, and not of the sweep."""
    return {name: value for name, value in settings.items() if name not in OWN}


def check_keep(settings: dict[str, str]) -> None:
    """Raise UserError unless KEEP is 0, 1 or left out."""
    if (text := settings.get("KEEP", "0")) not in ("0", "1"):
        raise UserError(f"KEEP={text}: 0 or 1")


def whole(name: str, text: str, most: int) -> int:
    """The number from 1 that the text gives. Raises UserError."""
    if not re.fullmatch(r"[0-9]{1,6}", text) or not 1 <= int(text) <= most:
        raise UserError(f"{name}={text}: a whole number from 1 to {most}")
    return int(text)
