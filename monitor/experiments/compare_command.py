"""`syncbed compare`: runs side by side, named one by one or as a sweep."""

import json
import re
from pathlib import Path

from monitor import console
from monitor.errors import UserError, refuse_unknown
from monitor.experiments import grouping, sweep
from monitor.experiments.comparison import records
from monitor.experiments.grouping import Group, cell_groups
from monitor.experiments.publishing import show
from monitor.results import store
from monitor.results.result import FINISHED

SETTINGS = {
    "RUNS": "ids of runs, parted by spaces or commas",
    "SWEEP": "name of a sweep, instead of RUNS",
    "GOAL": "an accuracy on the test set, from 0 to 1: what it took to reach it",
    "RUNS_DIR": "folder of results; default: runs",
    "SWEEPS_DIR": "folder of sweeps; default: sweeps",
}


def command(settings: dict[str, str], args) -> int:
    """CLI `compare`. Raises UserError in one line."""
    refuse_unknown(settings, SETTINGS)
    goal = goal_of(settings)
    if ("RUNS" in settings) == ("SWEEP" in settings):
        raise UserError('RUNS= or SWEEP=: give one of them, as in RUNS="id id"')
    if "SWEEP" in settings:
        groups = cell_groups(sweep.load(sweep.folder_of({"NAME": settings["SWEEP"]} | settings, {})))
    else:
        groups = named_runs(settings["RUNS"], Path(settings.get("RUNS_DIR", "runs")))
    if args.json:
        print(json.dumps(records(groups, goal), indent=1))
    else:
        show(groups, console.console(), goal)
    return 0


def goal_of(settings: dict[str, str]) -> float | None:
    """GOAL= as a number. Raises UserError."""
    text = settings.get("GOAL")
    if text is None:
        return None
    if not re.fullmatch(r"0?\.[0-9]+|[01](\.0*)?", text):
        raise UserError(f"GOAL={text}: an accuracy from 0 to 1, as in GOAL=0.8")
    return float(text)


def named_runs(text: str, folder: Path) -> list[Group]:
    """The groups of the runs that RUNS= names. Raises UserError for one that cannot be read or failed."""
    ids = re.split(r"[\s,]+", text.strip())
    if ids == [""]:
        raise UserError('RUNS=: an empty list; as in RUNS="id id"; `make runs` lists them')
    paths = [(folder / run).resolve() for run in ids]
    if twice := next((run for i, run in enumerate(ids) if paths[i] in paths[:i]), None):
        raise UserError(f"RUNS={text}: {twice} stands there twice")
    runs = []
    for run in ids:
        result = store.load(run, folder)
        if result.status != FINISHED:
            raise UserError(f"RUNS={run}: it is {result.status}, only finished runs can be compared")
        runs.append((result, folder / run))
    return grouping.grouped(runs)
