"""A checkpoint on disk, as both sides know it.

No torch here; trainer/checkpoint reads and writes what is inside.

checkpoints/step-000040/
    model.pt              what an evaluation or a server of predictions needs
    rank-0.pt, rank-1.pt  what each rank needs besides to go on as if it had never stopped
    complete.json         written last: step, spec, size and SHA-256 of each file. Without it the folder does not count
"""

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from trainer.names import is_checkpoint, is_checkpoint_file, is_sha256
from trainer.received import ReceivedError, load_json, open_received, refuse_special_parts

SCHEMA = 2  # 1 was a single file, which cannot be resumed
FOLDER, COMPLETE, MODEL = "checkpoints", "complete.json", "model.pt"
MOST_BYTES = 8 << 30  # of a file: a sparse one of any size costs nothing to send


class DamagedError(Exception):
    """A checkpoint that cannot be used. str() is one line."""


@dataclass(frozen=True)
class Complete:
    """What complete.json says."""

    step: int
    epoch: int
    world_size: int
    spec: dict  # fields of the RunSpec
    facts: dict[str, str]  # what the data and the model must agree with
    files: dict[str, dict]  # {"bytes", "sha256"} by name
    schema: int = SCHEMA


def name_of(step: int) -> str:
    """The folder's name; names sort by step."""
    return f"step-{step:06d}"


def rank_file(rank: int) -> str:
    """The name of a rank's file."""
    return f"rank-{rank}.pt"


def complete_ones(checkpoints: Path) -> list[Path]:
    """The complete checkpoints in a run's folder of them, by step."""
    if not is_folder(checkpoints):
        return []
    candidates = [path for path in checkpoints.iterdir() if is_checkpoint(path.name)]  # and no copy of one
    whole = [path for path in candidates if is_folder(path) and os.path.lexists(path / COMPLETE)]
    return sorted(whole, key=lambda path: int(path.name[5:]))


def files_of(folder: Path) -> list[Path]:
    """The files of a complete checkpoint, complete.json last, and nothing else that lies there. Raises DamagedError."""
    return [*(folder / name for name in read(folder).files), folder / COMPLETE]


def is_folder(path: Path) -> bool:
    """Whether this is a folder itself, and no link to one."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def read(folder: Path) -> Complete:
    """What complete.json says. Raises DamagedError."""
    path = folder / COMPLETE
    try:
        refuse_special_parts(folder)
        values = load_json(path)
        if values["schema"] != SCHEMA:
            raise DamagedError(f"{path}: schema {values['schema']}, this syncbed reads {SCHEMA}")
        complete = Complete(**values)
        _check(complete)
        return complete
    except FileNotFoundError:
        raise DamagedError(f"{folder}: no complete checkpoint, it has no {COMPLETE}") from None
    except ReceivedError as error:
        raise DamagedError(f"{folder}: {error}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"{path}: cannot be read ({error})") from None


def _check(complete: Complete) -> None:
    """Raise ValueError for fields of other types, and for files that no checkpoint has."""
    counts = (complete.step, complete.epoch, complete.world_size)
    if not all(type(count) is int and count >= 0 for count in counts):
        raise ValueError("step, epoch and world_size are whole numbers")
    if not all(isinstance(part, dict) for part in (complete.spec, complete.facts, complete.files)):
        raise ValueError("spec, facts and files are objects")
    for name, file in complete.files.items():
        if not is_checkpoint_file(name):
            raise ValueError(f"{name[:80]!r} is no file of a checkpoint; model.pt and rank-<n>.pt are")
        size, digest = (file.get("bytes"), file.get("sha256")) if isinstance(file, dict) else (None, None)
        if type(size) is not int or not 0 <= size <= MOST_BYTES or not is_sha256(digest):
            raise ValueError(f"{name} needs a SHA-256, and a size of at most {MOST_BYTES} bytes")


def verify(folder: Path, names: list[str] | None = None) -> Complete:
    """Compare size and SHA-256 of the files (all of them, or `names`) with complete.json.

    Raises DamagedError.
    """
    complete = read(folder)
    for name in names or complete.files:
        path, file = folder / name, complete.files.get(name)
        try:
            if file is None or os.lstat(path).st_size != file["bytes"] or sha256(path) != file["sha256"]:
                raise DamagedError(f"{path}: damaged, it is not what {COMPLETE} says")
        except OSError as error:
            raise DamagedError(f"{path}: cannot be read ({error.strerror or error})") from None
    return complete


def sha256(path: Path, *, may_be_link: bool = False) -> str:
    """Hexadecimal digest of a plain file. Raises OSError."""
    digest = hashlib.sha256()
    with open_received(path, may_be_link=may_be_link) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
