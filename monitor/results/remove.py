"""`syncbed rm`: remove runs, and nothing else."""

import os
import re
from pathlib import Path

from monitor.errors import UserError, refuse_unknown
from monitor.results import store
from monitor.results.result import RUNNING
from trainer.files import remove_folder, replace_link

SETTINGS = {"RUN": "ids of runs, parted by spaces or commas; or latest", "RUNS_DIR": "folder of results; default: runs"}


def command(settings: dict[str, str], args) -> int:
    """CLI `rm`. Raises UserError in one line before anything is removed."""
    refuse_unknown(settings, SETTINGS)
    runs = Path(settings.get("RUNS_DIR", "runs")).expanduser()
    names = [name for name in re.split(r"[\s,]+", settings.get("RUN", "")) if name]
    if not names:
        raise UserError('RUN=: which runs? as in RUN="id id"; `make runs` lists them')
    folders = dict.fromkeys(folder_of(name, runs) for name in names)
    try:
        for folder in folders:
            remove_folder(folder)
            print(f"removed {folder}")
        mend_latest(runs)
    except OSError as error:
        raise UserError(f"{error.filename}: cannot be removed ({error.strerror}); make it writable") from None
    return 0


def folder_of(name: str, runs: Path) -> Path:
    """The folder of a run that is in `runs` itself and not going on. Raises UserError."""
    folder = store.folder_of(name, runs) if name == "latest" else runs / name
    is_link = os.path.islink(folder)  # noqa: PTH114 (a Path raises for a name that is too long)
    if "/" in name or name in (".", "..") or is_link or not _has_record(folder):
        newest = ", ".join(path.name for path in store.folders(runs)[:3]) or "none yet"
        raise UserError(f"RUN={name}: no run of that id in {runs} (newest: {newest})")
    try:
        status = store.load(folder.name, runs).status
    except UserError:
        status = None  # one that cannot be read may go
    if status == RUNNING:
        raise UserError(f"RUN={name}: it is running; stop it with Ctrl-C there first")
    return folder


def _has_record(folder: Path) -> bool:
    """Whether a run was recorded there, if only in part."""
    return any(os.path.lexists(folder / name) for name in ("result.json", "spec.json", "events.jsonl"))


def mend_latest(runs: Path) -> None:
    """Let `latest` point to the newest run that is left; away with it when none is."""
    latest = runs / "latest"
    if latest.is_symlink() and not latest.exists():
        latest.unlink()
        if others := store.folders(runs):
            replace_link(latest, others[0].name)
