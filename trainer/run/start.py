"""How a rank begins, whatever its role: all agree on the run, and hold rank 0's weights."""

import hashlib
import platform
from dataclasses import asdict

import numpy as np
import torch

from trainer import events
from trainer.data.prepared import InputError, Prepared
from trainer.flat import flatten, unflatten
from trainer.models.build import build
from trainer.registry import shape_text
from trainer.spec import RunSpec
from trainer.wire.collectives import Wire


def begin(spec: RunSpec, data: Prepared, wire: Wire) -> torch.nn.Module:
    """Check that all ranks are in the same run. Returns the model, with rank 0's weights.

    Raises InputError for data of another image shape, and WireError.
    """
    if data.shape != spec.shape:
        has, wants = shape_text(data.shape), shape_text(spec.shape)
        raise InputError(f"{data.name}: its images are {has}, the run is of {wants}; prepare DATA={spec.data}")
    model = build(spec, len(data.classes))
    settings = {name: str(value) for name, value in asdict(spec).items()}
    wire.party.compare("the run", settings | lasting_facts(data, model))
    share_weights(model, wire)
    return model


def lasting_facts(data: Prepared, model: torch.nn.Module) -> dict[str, str]:
    """What all ranks must agree on besides the spec, and what a run that goes on with this one must agree with."""
    shapes = str([(name, tuple(p.shape)) for name, p in model.named_parameters()])
    facts = {"model shapes": digest(shapes.encode())}
    for split, labels in (("train", data.train.labels), ("test", data.test.labels)):
        facts[f"{split} labels"] = f"{len(labels)} {digest(labels.tobytes())}"
    return facts


def share_weights(model: torch.nn.Module, wire: Wire) -> None:
    """Give every rank rank 0's weights: drawn from one seed they are equal already, unless the CPUs differ."""
    unflatten(wire.broadcast(flatten(model.parameters())), model.parameters())


def ready(
    rank: int,
    data: Prepared,
    model: torch.nn.Module,
    steps: int,
    steps_per_epoch: int,
    bf16_hint: bool = False,
    steps_before: int = 0,
) -> events.Ready:
    """The event of a rank that has all it needs."""
    parameters = list(model.parameters())
    return events.Ready(
        rank=rank,
        parameters=sum(p.numel() for p in parameters),
        gradient_bytes=sum(p.nbytes for p in parameters if p.requires_grad),
        train_samples=len(data.train),
        test_samples=len(data.test),
        steps=steps,
        steps_per_epoch=steps_per_epoch,
        versions={"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
        bf16_hint=bf16_hint,
        steps_before=steps_before,
    )


def length(spec: RunSpec, data: Prepared) -> tuple[int, int]:
    """Steps of the run and steps of an epoch, for ranks that deal out no batches."""
    steps_per_epoch = len(data.train) // spec.batch
    return spec.total_steps(steps_per_epoch), steps_per_epoch


def digest(data: bytes) -> str:
    """16 hexadecimal digits of SHA-256."""
    return hashlib.sha256(data).hexdigest()[:16]
