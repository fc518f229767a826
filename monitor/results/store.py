"""result.json on disk: written whole or not at all, found, and read."""

import json
from pathlib import Path

import psutil

from monitor.errors import UserError
from monitor.results.machine import process_start
from monitor.results.result import FAILED, RUNNING, SCHEMA
from trainer import files

WHOLE = {"id", "runtime", "spec", "data", "host", "ranks", "steps", "evaluations", "seconds"}
WHOLE |= {"train_loss", "test_loss", "test_accuracy"}
RANK = {"steps", "step_seconds", "phase_seconds", "sent_bytes"}


def reserve(folder: Path, classes: int) -> None:
    """Take room on the disk for the next `save`, so that a disk which fills up during a run has some for its result.

    Raises OSError when there is too little.
    """
    files.reserve(folder / "result.json", 65536 + 16 * classes**2)  # a confusion matrix is the largest part


def save(result: dict, folder: Path) -> None:
    """Write result.json whole or not at all, into the room that was reserved. Raises OSError."""
    text = json.dumps(result, indent=1, allow_nan=False) + "\n"
    files.write_whole(folder / "result.json", text, reserved=True)


def load(run: str, runs: Path) -> dict:
    """The result of a run by id, or of the latest. Raises UserError in one line when it cannot be read."""
    folder = runs / run
    try:
        result = json.loads((folder / "result.json").read_text())
        if not isinstance(result, dict) or not isinstance(result.get("schema"), int):
            raise ValueError("not a result of syncbed")
    except FileNotFoundError:
        have = ", ".join(path.name for path in folders(runs)[:3]) or "none yet"
        swept = next((f for f in sorted(Path("sweeps").glob("*")) if (f / run / "result.json").is_file()), None)
        more = f"; RUNS_DIR={swept} has it" if swept else ""
        raise UserError(f"run {run}: not found in {runs} (newest: {have}){more}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"run {run}: result.json cannot be read ({error})") from None
    if result["schema"] > SCHEMA:
        raise UserError(
            f"run {run}: result schema {result['schema']} is newer than this syncbed reads ({SCHEMA}); update syncbed"
        )
    if not isinstance(result.get("status"), str):
        raise UserError(f"run {run}: result.json cannot be read (it has no status)")
    if result["status"] == RUNNING and not _goes_on(result):
        error = {"kind": "orchestrator", "message": "the orchestrator was killed before it could write a result"}
        result |= {"status": FAILED, "error": error | {"rank": None, "last_lines": [], "traceback": ""}}
    return result


def _goes_on(result: dict) -> bool:
    """Whether the orchestrator that began this run lives. Where its start is not known, its id has to do."""
    pid, start = result.get("orchestrator_pid"), result.get("orchestrator_start")
    if not (isinstance(pid, int) and pid > 0):
        return False
    return process_start(pid) == start if start else psutil.pid_exists(pid)


def whole(result: dict) -> bool:
    """Whether a result has what `complete` writes. One that does not is of a run that has not ended, or is damaged."""
    parts = {"ranks": list, "spec": dict, "seconds": dict}
    if not result.keys() >= WHOLE or any(not isinstance(result[name], kind) for name, kind in parts.items()):
        return False
    ranks = all(isinstance(rank, dict) and rank.keys() >= RANK for rank in result["ranks"])
    return ranks and "training" in result["seconds"]


def folders(runs: Path) -> list[Path]:
    """The run folders, newest first. Ids begin with the time, so names sort by age. Raises UserError."""
    try:
        found = [path for path in runs.iterdir() if (path / "result.json").exists()] if runs.is_dir() else []
    except OSError as error:
        raise UserError(f"RUNS_DIR={runs}: cannot be read ({error.strerror or error})") from None
    return sorted((path for path in found if not path.is_symlink()), key=lambda path: path.name, reverse=True)
