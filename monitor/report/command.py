"""`syncbed report`: a run's pages, written anew. They are written after each run too."""

from pathlib import Path

from monitor.errors import UserError, refuse_unknown
from monitor.report.load import load
from monitor.report.page import write_page
from monitor.report.run_page import run_page

SETTINGS = {"RUNS_DIR": "folder of results; default: runs"}


def command(settings: dict[str, str], args) -> int:
    """CLI `report`. Raises UserError in one line."""
    refuse_unknown(settings, SETTINGS)
    print(write(Path(settings.get("RUNS_DIR", "runs")) / args.run))
    return 0


def write(folder: Path) -> Path:
    """Write report.html, report.md and report/ of a run. Raises UserError in one line."""
    page = run_page(load(folder))
    try:
        return write_page(folder, "report", page)
    except OSError as error:
        raise UserError(f"{folder}: the report cannot be written ({error.strerror or error})") from None
