"""Checkpoints: written whole or not at all, and loadable without executing code from them.

torch.load(path, weights_only=True) -> {"schema", "spec", "step", "epoch", "model", "optimizer", "rng"}
"""

import os
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import torch

from trainer.spec import RunSpec

SCHEMA = 1


class CheckpointError(Exception):
    """The checkpoint could not be written. str() is one line; no partial file is left."""


def save(folder: Path, spec: RunSpec, step: int, epoch: int, model, optimizer) -> tuple[Path, int, float]:
    """Write step-<step>.pt into `folder`. Returns its path, bytes, and the seconds it took. Raises CheckpointError.

    `model` is the bare module: the keys of its state have no prefix of a strategy's wrapper.
    """
    began = time.perf_counter()
    path = folder / f"step-{step:06d}.pt"
    temporary = path.with_suffix(".tmp")
    state = {
        "schema": SCHEMA,
        "spec": asdict(spec),
        "step": step,
        "epoch": epoch,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng": torch.get_rng_state(),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            sink = _Sink(file)
            try:
                torch.save(state, sink)
            except RuntimeError as error:  # torch's way of passing on that a write failed
                raise sink.error or error from None
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        temporary.replace(path)
    except (OSError, RuntimeError) as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        reason = getattr(error, "strerror", None) or str(error).split("\n")[0]
        raise CheckpointError(f"checkpoint {path}: {reason[0].lower() + reason[1:]}") from error
    return path, size, time.perf_counter() - began


class _Sink:
    """A file for torch.save that remembers why a write failed: torch reports only that it did."""

    def __init__(self, file):
        self.file, self.error = file, None

    def write(self, data) -> int:
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self.file.flush()


def load(path: Path) -> dict:
    """Read a checkpoint; only tensors and plain values are accepted."""
    return torch.load(path, weights_only=True)
