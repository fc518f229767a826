"""`syncbed tensorboard`: TensorBoard over what runs with TENSORBOARD=1 wrote."""

import os
import sys
from pathlib import Path

from monitor.conditions.amounts import whole
from monitor.errors import UserError, refuse_unknown
from monitor.ports import check_port
from monitor.results import store
from monitor.text import one_line
from trainer.received import special_files

SETTINGS = {"PORT": "port on 127.0.0.1; default: 6006", "RUNS_DIR": "folder of results; default: runs"}


def command(settings: dict[str, str], args) -> None:
    """Become TensorBoard, on 127.0.0.1, until Ctrl-C. Raises UserError when there is nothing to show or no port."""
    refuse_unknown(settings, SETTINGS)
    port = whole("PORT", settings.get("PORT", "6006"), 1, 65535)
    runs = Path(settings.get("RUNS_DIR", "runs"))
    if not runs.is_dir():
        raise UserError(f"RUNS_DIR={runs}: no such folder; `make run TENSORBOARD=1` makes a run to look at")
    program = Path(sys.executable).with_name("tensorboard")
    if not program.exists():
        raise UserError("tensorboard is not installed here; `make tensorboard` installs it")
    check_port("PORT", port)
    _refuse_special_files(runs)
    os.execv(program, [str(program), "--logdir", str(runs), "--host", "127.0.0.1", "--port", str(port)])


def _refuse_special_files(runs: Path) -> None:
    """Raise UserError where there is a link or a pipe: TensorBoard opens all that it finds, wherever it leads.

    `latest` may be a link, to a run beside it.
    """
    for path in sorted(runs.iterdir()):
        if path.is_symlink():
            store.folder_of(path.name, runs)
        elif what := next(special_files(path), None):
            raise UserError(f"{path}: {one_line(what, 400)}; remove it")
