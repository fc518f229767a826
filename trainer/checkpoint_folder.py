"""A checkpoint on disk, as both sides know it.

No torch here; trainer/checkpoint reads and writes what is inside.

checkpoints/step-000040/
    model.pt              what an evaluation or a server of predictions needs
    rank-0.pt, rank-1.pt  what each rank needs besides to go on as if it had never stopped
    complete.json         written last: step, spec, size and SHA-256 of each file. Without it the folder does not count
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

SCHEMA = 2  # 1 was a single file, which cannot be resumed
FOLDER, COMPLETE, MODEL = "checkpoints", "complete.json", "model.pt"


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
    folders = [path.parent for path in checkpoints.glob(f"step-*/{COMPLETE}")]
    numbered = [path for path in folders if path.name[5:].isascii() and path.name[5:].isdigit()]  # and no copy of one
    return sorted(numbered, key=lambda path: int(path.name[5:]))


def read(folder: Path) -> Complete:
    """What complete.json says. Raises DamagedError."""
    path = folder / COMPLETE
    try:
        values = json.loads(path.read_text())
        if values["schema"] != SCHEMA:
            raise DamagedError(f"{path}: schema {values['schema']}, this syncbed reads {SCHEMA}")
        return Complete(**values)
    except FileNotFoundError:
        raise DamagedError(f"{folder}: no complete checkpoint, it has no {COMPLETE}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"{path}: cannot be read ({error})") from None


def verify(folder: Path, names: list[str] | None = None) -> Complete:
    """Compare size and SHA-256 of the files (all of them, or `names`) with complete.json.

    Raises DamagedError.
    """
    complete = read(folder)
    for name in names or complete.files:
        path, file = folder / name, complete.files.get(name)
        try:
            if file is None or path.stat().st_size != file["bytes"] or sha256(path) != file["sha256"]:
                raise DamagedError(f"{path}: damaged, it is not what {COMPLETE} says")
        except OSError as error:
            raise DamagedError(f"{path}: cannot be read ({error.strerror or error})") from None
    return complete


def sha256(path: Path) -> str:
    """Hexadecimal digest of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
