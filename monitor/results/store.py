"""result.json on disk: written whole or not at all, found, and read."""

import json
import os
from pathlib import Path
from typing import Any

import psutil
from pydantic import ValidationError

from monitor.errors import UserError
from monitor.results.machine import process_start
from monitor.results.parts import Error
from monitor.results.problem import first_problem
from monitor.results.result import FAILED, RUNNING, SCHEMA, Result
from monitor.results.upgrade import upgrade
from trainer import files
from trainer.names import is_run
from trainer.received import ReceivedError, load_json, refuse_special_parts

MOST_PID = 1 << 31
KILLED = Error(
    kind="orchestrator",
    message="the orchestrator was killed before it could write a result",
    rank=None,
    last_lines=[],
    traceback="",
)


def reserve(folder: Path, classes: int) -> None:
    """Take room on the disk for the next `save`, so that a disk which fills up during a run has some for its result.

    Raises OSError when there is too little.
    """
    files.reserve(folder / "result.json", 65536 + 16 * classes**2)  # a confusion matrix is the largest part


def save(result: Result, folder: Path) -> None:
    """Write result.json whole or not at all, into the room that was reserved. Raises OSError."""
    text = json.dumps(result.document(), indent=1, allow_nan=False) + "\n"
    files.write_whole(folder / "result.json", text, reserved=True)


def load(run: str, runs: Path) -> Result:
    """The result of a run by id, or of the latest. Raises UserError in one line when it cannot be read.

    Its `id` is what the document says, as a copy under another name keeps it, but no path is built of that.
    """
    folder = folder_of(run, runs)
    result = parse(run, read(run, runs))
    return result if is_run(result.id) else result.model_copy(update={"id": folder.name})


def folder_of(run: str, runs: Path) -> Path:
    """The folder of a run by id, or of the latest, whose name is the run's id; it need not be there.

    A link is followed only where it names a plain folder beside it: what was received may point anywhere.
    Raises UserError.
    """
    folder = runs / run
    try:
        name = os.readlink(folder)  # noqa: PTH115 (a Path would tidy the text up)
    except (OSError, ValueError):  # no link
        return folder
    if not is_run(name) or (folder.parent / name).is_symlink():
        raise UserError(f"run {run}: {folder} points to {ascii(name)[:80]}, which is no run beside it; remove the link")
    return folder.parent / name


def read(run: str, runs: Path) -> dict[str, Any]:
    """The JSON document of a run by id, or of the latest, as it was written. Raises UserError in one line."""
    folder = folder_of(run, runs)
    try:
        refuse_special_parts(folder)
        document = load_json(folder / "result.json", has_types=True)
        schema = document.get("schema") if isinstance(document, dict) else None
        if not isinstance(schema, int) or schema < 1:
            raise ValueError("not a result of syncbed")
    except FileNotFoundError:
        raise _not_found(run, runs) from None
    except ReceivedError as error:
        raise UserError(f"run {run}: {error}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"run {run}: result.json cannot be read ({error})") from None
    if schema > SCHEMA:
        raise UserError(
            f"run {run}: result schema {schema} is newer than this syncbed reads ({SCHEMA}); update syncbed"
        )
    return document


def parse(run: str, document: dict[str, Any]) -> Result:
    """The result that a document holds. One that says "running" after its orchestrator has gone is a failed one.

    Raises UserError in one line, which names the first wrong field.
    """
    try:
        result = Result.model_validate(upgrade(document))
    except ValidationError as error:
        raise UserError(
            f"run {run}: its result.json is not one that syncbed wrote ({first_problem(error)}); restore or remove it"
        ) from None
    if result.status == RUNNING and not _goes_on(result):
        result = result.model_copy(update={"status": FAILED, "error": KILLED})
    return result


def _not_found(run: str, runs: Path) -> UserError:
    newest = ", ".join(path.name for path in folders(runs)[:3]) or "none yet"
    sweep = next((f for f in sorted(Path("sweeps").glob("*")) if (f / run / "result.json").is_file()), None)
    more = f"; RUNS_DIR={sweep} has it" if sweep else ""
    return UserError(f"run {run}: not found in {runs} (newest: {newest}){more}")


def _goes_on(result: Result) -> bool:
    """Whether the orchestrator that began this run lives. Where its start is not known, its id has to do.

    Process 1 always lives: a received run that names it would go on for ever.
    """
    pid, start = result.orchestrator_pid, result.orchestrator_start
    if pid is None or not 0 < pid < MOST_PID:
        return False
    return process_start(pid) == start if start else pid > 1 and psutil.pid_exists(pid)


def folders(runs: Path) -> list[Path]:
    """The run folders, newest first. Ids begin with the time, so names sort by age. Raises UserError."""
    try:
        paths = [path for path in runs.iterdir() if _has_result(path)] if runs.is_dir() else []
    except OSError as error:
        raise UserError(f"RUNS_DIR={runs}: cannot be read ({error.strerror or error})") from None
    return sorted((path for path in paths if not path.is_symlink()), key=lambda path: path.name, reverse=True)


def _has_result(folder: Path) -> bool:
    """Whether the folder has something called result.json. One that cannot be looked into is listed too."""
    try:
        os.lstat(folder / "result.json")
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return folder.is_dir()
    return True
