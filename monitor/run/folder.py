"""A run's folder and its name."""

import secrets
from datetime import datetime, timezone
from pathlib import Path

from monitor.errors import UserError
from trainer.names import in_folder
from trainer.spec import RunSpec


def make_folder(runs: Path, spec: RunSpec) -> Path:
    """A new folder named by the time in UTC, what runs, and a random part: nodes know a run by this name, and two
    orchestrators with different `runs` may use the same nodes. Raises UserError when `runs` cannot be written.
    """
    stamp = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
    folder = in_folder(runs, f"{stamp}-{spec.sync}-{spec.model}-{spec.nodes}n-{secrets.token_hex(3)}")
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"RUNS_DIR={runs}: cannot be written ({error.strerror}); name another with RUNS_DIR=") from None
    return folder
