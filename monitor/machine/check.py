"""`syncbed check`: what is wrong with a folder that was received. Nothing is written; the readers are those of all."""

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path

from monitor.data.store import complete
from monitor.errors import FAILED, UserError, refuse_unknown
from monitor.experiments import sweep
from monitor.report.load import load
from monitor.results import store
from monitor.serve import export
from monitor.text import one_line
from trainer.checkpoint_folder import FOLDER, DamagedError, complete_ones, is_folder, sha256, verify
from trainer.received import refuse_special_parts, special_files

SETTINGS = {"RUN": "folder of a run, a sweep, an export or prepared data, or a run's id in ./runs"}

NO_FOLDER = "{}: no folder itself; name the folder that it stands for"
MOST_LINES, MOST_LETTERS = 100, 2000  # about special files


def command(settings: dict[str, str], args) -> int:
    """CLI `check`: a line for each thing that is wrong; 0 when nothing is, else 1. Raises UserError for no folder."""
    refuse_unknown(settings, SETTINGS)
    word = settings.get("RUN", "")
    if not word:
        raise UserError("RUN=: which folder? as in RUN=runs/20260301-101500-ddp-vgg11-4n-3f9a1c")
    folder = Path(word) if os.path.lexists(word) else store.folder_of(word, Path("runs"))
    if not os.path.lexists(folder):
        raise UserError(f"RUN={word}: no such folder, and no run of that id in runs")
    lines = problems(folder)
    if args.json:
        print(json.dumps({"path": str(folder), "problems": lines}))
    else:
        print("\n".join(lines) or f"{folder}: nothing is wrong")
    return FAILED if lines else 0


def problems(folder: Path) -> list[str]:
    """What is wrong with the folder, a line each."""
    if not is_folder(folder):
        return [NO_FOLDER.format(folder)]
    for name, check in CHECKS.items():
        if os.path.lexists(folder / name):
            return [*_special_files(folder), *check(folder)]
    names = ", ".join(CHECKS)
    return [f"{folder}: no run, sweep, export or prepared data: it has none of {names}"]


def _special_files(folder: Path) -> list[str]:
    lines = [f"{folder}: {what}" for what in itertools.islice(special_files(folder), MOST_LINES)]
    return [one_line(line, MOST_LETTERS) for line in lines]


def _of_sweep(folder: Path) -> list[str]:
    lines = _problem(folder, sweep.load)
    runs = [path for path in sorted(folder.iterdir()) if os.path.lexists(path / "result.json")]
    for run in runs:  # which are no sweeps, whatever else they hold
        lines += _of_run(run) if is_folder(run) else [NO_FOLDER.format(run)]
    return lines


def _of_run(folder: Path) -> list[str]:
    lines = _problem(folder, load)
    for checkpoint in complete_ones(folder / FOLDER):
        lines += _problem(checkpoint, verify)
    if os.path.lexists(folder / export.FOLDER):
        lines += _problem(folder / export.FOLDER, _read_export)
    return lines


def _of_export(folder: Path) -> list[str]:
    return _problem(folder, _read_export)


def _of_data(folder: Path) -> list[str]:
    return _problem(folder, _read_data)


def _read_export(folder: Path) -> None:
    refuse_special_parts(folder)
    if sha256(folder / export.WEIGHTS) != export.read_about(folder)["sha256"]:
        raise ValueError(f"{export.WEIGHTS} is not what {export.ABOUT} says")


def _read_data(folder: Path) -> None:
    if complete(folder, verify=True) is None:
        raise ValueError("manifest.json or an array is not as it was written; prepare it again with make data")


def _problem(path: Path, read: Callable[[Path], object]) -> list[str]:
    """What `read` says against the path, in one line; nothing when it reads it."""
    try:
        read(path)
    except (UserError, DamagedError) as error:
        return [" ".join(str(error).split())]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return [f"{path}: {' '.join(str(error).split()) or type(error).__name__}"]
    return []


CHECKS: dict[str, Callable[[Path], list[str]]] = {  # by the file that tells what a folder is
    "sweep.json": _of_sweep,
    "result.json": _of_run,
    "model.json": _of_export,
    "manifest.json": _of_data,
}
