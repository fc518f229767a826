"""`syncbed tensorboard`: TensorBoard over what runs with TENSORBOARD=1 wrote."""

import os
import sys
from pathlib import Path

from monitor.conditions.amounts import whole
from monitor.errors import UserError, refuse_unknown
from monitor.ports import check_port

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
    os.execv(program, [str(program), "--logdir", str(runs), "--host", "127.0.0.1", "--port", str(port)])
