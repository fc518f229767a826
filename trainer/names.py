"""Names that files and links from elsewhere may hold: the forms that we write ourselves, in one place.

A name is checked before a path is built of it. `$` is not used: it would let a newline through.
"""

import re
from pathlib import Path

RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")  # one plain name of a folder
SHA256 = re.compile(r"[0-9a-f]{64}")
CHECKPOINT = re.compile(r"step-[0-9]{6,18}")
CHECKPOINT_FILE = re.compile(r"model\.pt|rank-(?:0|[1-9][0-9]{0,5})\.pt")


def is_run(name: object) -> bool:
    """Whether this may be the name of a run's folder."""
    return isinstance(name, str) and RUN.fullmatch(name) is not None


def is_sha256(name: object) -> bool:
    """Whether this may be a SHA-256, in hexadecimal digits."""
    return isinstance(name, str) and SHA256.fullmatch(name) is not None


def is_checkpoint(name: str) -> bool:
    """Whether this may be the name of a checkpoint's folder."""
    return CHECKPOINT.fullmatch(name) is not None


def is_checkpoint_file(name: object) -> bool:
    """Whether this may be the name of a file of a checkpoint that complete.json lists."""
    return isinstance(name, str) and CHECKPOINT_FILE.fullmatch(name) is not None


def in_folder(folder: Path, name: str) -> Path:
    """The path of what has this name in the folder itself. Raises ValueError for a name that leads elsewhere.

    For names that are put together of others: tests/unit/project/test_file_rules.py refuses them in other paths.
    """
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"{ascii(name)[:80]} is no name of anything in a folder")
    return folder / name
