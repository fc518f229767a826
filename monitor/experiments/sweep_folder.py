"""The folder of a sweep: whether it was begun, and that one sweep at a time works in it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from monitor.errors import UserError
from trainer.files import lock


def has_sweep(folder: Path) -> bool:
    """Whether a sweep is there. Raises UserError for a folder that cannot be looked into."""
    try:
        return (folder / "sweep.json").exists()
    except OSError as error:
        raise UserError(f"{folder}: cannot be read ({error.strerror}); SWEEPS_DIR= names another") from None


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the sweep's folder, made where it is not. Raises UserError when another sweep works in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder_lock = lock(folder / ".lock")
    except BlockingIOError:
        raise UserError(f"{folder}: another sweep works in it now; wait for it, or give this one NAME=") from None
    except OSError as error:
        raise unwritable(folder, error) from None
    with folder_lock:
        yield


def unwritable(folder: Path, error: OSError) -> UserError:
    """What to say when it cannot be written."""
    return UserError(f"{folder}: cannot be written ({error.strerror}); SWEEPS_DIR= names another")
