"""Checkpoints: the complete state of a run, written whole or not at all, and loadable without executing code from them.

torch.load("checkpoints/step-000040/model.pt", weights_only=True)
    -> {"schema", "spec", "step", "epoch", "model", "inputs"}

A rank's state is one flat dictionary of tensors and plain values (state.py). Where ranks hold the
same, it is written once: rank 0's file leaves out what model.pt holds, the other files leave out
what rank 0's state holds.
"""

import json
import os
import zipfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import torch

from trainer.checkpoint.state import MODEL_PART, digest, same
from trainer.checkpoint_folder import COMPLETE, MODEL, SCHEMA, Complete, DamagedError, name_of, rank_file, verify
from trainer.data.prepared import InputError
from trainer.files import HashingFile, whole_file
from trainer.pickles import check_pickle
from trainer.received import open_received
from trainer.spec import RunSpec
from trainer.wire.collectives import Wire

PICKLE, MOST_PICKLE = ".pkl", 64 << 20  # of an archive's member: all but the numbers of tensors, bytes
MOST_VALUES = 100_000  # in one file: a name and a tensor for each parameter, and the spec
PLAIN = (str, int, float, bool, type(None))


class CheckpointError(Exception):
    """The checkpoint could not be written. str() is one line; no partial file is left."""


def save(
    checkpoints: Path,
    wire: Wire,
    spec: RunSpec,
    step: int,
    epoch: int,
    state: dict,
    model: dict,
    inputs: dict,
    facts: dict[str, str],
) -> tuple[str, int] | None:
    """All ranks together: write the folder of `step` into `checkpoints`, complete.json last.

    `state`: this rank's. `model`: the bare module's state for model.pt, the same on every rank.
    `inputs`: what images it takes, see Prepared.inputs. Returns the folder's name and its bytes on
    rank 0, None on the others. Raises CheckpointError.
    """
    folder = checkpoints / name_of(step)
    digests = {name: digest(value) for name, value in state.items()} if wire.world_size > 1 else {}
    first = json.loads(wire.party.tell_all("state to save", json.dumps(digests))[0])
    files = {}
    if wire.rank == 0:
        content = {"schema": SCHEMA, "spec": asdict(spec), "step": step, "epoch": epoch}
        content["model"] = {name: _compact(value) for name, value in model.items()}
        content["inputs"] = inputs
        files[MODEL] = write(folder / MODEL, lambda file: torch.save(content, file))
        elsewhere = [n for n, v in state.items() if n.startswith(MODEL_PART) and same(v, model[n[len(MODEL_PART) :]])]
    else:
        elsewhere = [name for name, value in digests.items() if value == first.get(name)]
    files[rank_file(wire.rank)] = _write_rank(folder, wire.rank, step, state, elsewhere)
    files_of_ranks = wire.party.tell_all("files saved", json.dumps(files))
    if wire.rank != 0:
        return None
    for text in files_of_ranks[1:]:
        files |= json.loads(text)
    complete = Complete(step, epoch, wire.world_size, asdict(spec), facts, files)
    text = json.dumps(asdict(complete), indent=1) + "\n"
    record = write(folder / COMPLETE, lambda file: file.write(text.encode()))
    return folder.name, record["bytes"] + sum(file["bytes"] for file in files.values())


def _write_rank(folder: Path, rank: int, step: int, state: dict, elsewhere: list[str]) -> dict:
    """Write the rank's own file: its state, but for the names that are `elsewhere`.

    Returns as `write`.
    """
    here = {name: _compact(value) for name, value in state.items() if name not in set(elsewhere)}
    content = {"schema": SCHEMA, "rank": rank, "step": step, "own": here, "elsewhere": elsewhere}
    return write(folder / rank_file(rank), lambda file: torch.save(content, file))


def load(folder: Path, wire: Wire, facts: dict[str, str]) -> tuple[Complete, dict]:
    """This rank's state from the folder of one step.

    Raises InputError when it is damaged or not of this job.

    `facts` must equal those that were saved.
    """
    name, first = rank_file(wire.rank), rank_file(0)
    try:
        complete = verify(folder, sorted({MODEL, first, name}))
    except DamagedError as error:
        raise InputError(f"RESUME: {error}") from None
    if complete.world_size != wire.world_size:
        raise InputError(f"RESUME: {folder} is of {complete.world_size} ranks, this run has {wire.world_size}")
    for fact, value in facts.items():
        if complete.facts.get(fact) != value:
            raise InputError(f"RESUME: {fact} are {value}, in {folder} they were {complete.facts.get(fact)}")
    try:
        model = {MODEL_PART + key: value for key, value in read(folder / MODEL)["model"].items()}
        state = _resolve(read(folder / first), model)
        if wire.rank != 0:
            state = _resolve(read(folder / name), state)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"RESUME: {folder}: no checkpoint of syncbed ({error})") from None
    return complete, state


def read(path: Path) -> dict:
    """One file of a checkpoint; only tensors and plain values are accepted. Raises OSError, ValueError for others.

    A small file stays small: nothing in it is compressed, there twice, or larger than it is stored.
    """
    with open_received(path) as file:
        _check_parts(file, path)
        try:
            content = torch.load(file, weights_only=True)
        except Exception as error:  # broken files raise nearly anything
            reason = str(error).split("\n")[0] or type(error).__name__
            raise ValueError(f"{path}: damaged, or more than tensors and plain values ({reason})") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: holds no dictionary")
    _check_values(content, path)
    return content


def _check_parts(file: BinaryIO, path: Path) -> None:
    """Raise ValueError unless the file is an archive, as torch.save writes it, whose parts are as large as the file."""
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            size = os.fstat(file.fileno()).st_size
            if any(m.compress_type != zipfile.ZIP_STORED for m in members) or sum(m.file_size for m in members) > size:
                raise ValueError("its parts are compressed or overlap, which those of no checkpoint of syncbed do")
            for member in members:
                if member.filename.endswith(PICKLE):
                    if member.file_size > MOST_PICKLE:
                        raise ValueError(f"{member.file_size} bytes of names and spec; {MOST_PICKLE} are the most")
                    check_pickle(archive.read(member))
    except (zipfile.BadZipFile, ValueError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"{path}: no checkpoint of syncbed ({error})") from None
    file.seek(0)


def _check_values(content: dict, path: Path) -> None:
    """Raise ValueError for values that are not plain, that are too many, or that are larger than what they are of.

    A list that holds another ten times costs a few bytes and is ten times as long, at each level.
    """
    values: list[Any] = [content]
    count = 0
    while values:
        value = values.pop()
        count += 1
        if isinstance(value, dict | list | tuple):
            parts = [*value, *value.values()] if isinstance(value, dict) else value
            count += len(parts)
            values += parts if count <= MOST_VALUES else ()
        elif isinstance(value, torch.Tensor):
            if value.layout != torch.strided or value.nbytes > value.untyped_storage().nbytes():
                raise ValueError(f"{path}: has a tensor that is larger than what is stored of it")
        elif not isinstance(value, PLAIN):
            raise ValueError(f"{path}: has a value of type {type(value).__name__}")
        if count > MOST_VALUES:
            raise ValueError(f"{path}: has more than {MOST_VALUES} values")


def _resolve(content: dict, elsewhere: dict) -> dict:
    return content["own"] | {name: elsewhere[name] for name in content["elsewhere"]}


def _compact(value):
    """A view as a tensor of its own: torch.save writes the whole storage of what it is given."""
    if isinstance(value, torch.Tensor) and value.untyped_storage().nbytes() > value.nbytes:
        return value.clone()
    return value


def write(path: Path, fill: Callable) -> dict:
    """Have `fill` write a file, then move it into place. Returns its {"bytes", "sha256"}. Raises CheckpointError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            sink = HashingFile(file)
            try:
                fill(sink)
            except RuntimeError as error:  # torch's way of passing on that a write failed
                raise sink.error or error from None
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error).split("\n")[0]
        raise CheckpointError(f"checkpoint {path}: {reason[0].lower() + reason[1:]}") from error
    return {"bytes": sink.bytes, "sha256": sink.sha256}
