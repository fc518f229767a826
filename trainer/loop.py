"""One rank's run: build, train step by step, evaluate. Everything it has to say goes to `tell` as events."""

import hashlib
import math
import platform
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from trainer import checkpoint, events
from trainer.data.batches import Batches
from trainer.data.prepared import Prepared
from trainer.evaluate import average_statistics, evaluate
from trainer.metrics import metrics
from trainer.registry import DATA, MODELS, SYNCS, load
from trainer.spec import RunSpec
from trainer.wire import Wire

Tell = Callable[[events.Event], None]


class Run:
    """A model, its data and a strategy on one rank. Built by every rank with the same spec and data.

    `out`: folder for checkpoints, None for none. `bf16_hint`: this CPU has bf16 instructions.
    Raises InputError and WireError.
    """

    def __init__(self, spec: RunSpec, data: Prepared, wire: Wire, tell: Tell, out: Path | None = None, bf16_hint=False):
        self.spec, self.data, self.wire, self.tell, self.out = spec, data, wire, tell, out
        self.batches = Batches(data, spec.batch, spec.seed, wire.rank, wire.world_size)
        self.steps = spec.steps or spec.epochs * self.batches.steps_per_epoch
        self.model = build(spec, len(data.classes))
        wire.compare("the run", self._facts())
        share_weights(self.model, wire)
        self.sync = load(SYNCS[spec.sync].place)(wire, spec)
        self.module = self.sync.setup(self.model)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), spec.lr, spec.momentum, weight_decay=spec.weight_decay, fused=True
        )
        self.metrics = metrics(wire.rank)
        self._told_not_finite = False
        self._ready(bf16_hint and spec.precision == "fp32")

    def _facts(self) -> dict[str, str]:
        """What all ranks must agree on."""
        shapes = str([(name, tuple(p.shape)) for name, p in self.model.named_parameters()])
        data = {"train": self.data.train.labels, "test": self.data.test.labels}
        return {
            **{name: str(value) for name, value in asdict(self.spec).items()},
            "model shapes": _digest(shapes.encode()),
            **{f"{split} labels": f"{len(labels)} {_digest(labels.tobytes())}" for split, labels in data.items()},
        }

    def _ready(self, hint: bool) -> None:
        parameters = list(self.model.parameters())
        self.wire.take_bytes()  # start-up traffic belongs to no step
        self.tell(
            events.Ready(
                rank=self.wire.rank,
                parameters=sum(p.numel() for p in parameters),
                gradient_bytes=sum(p.nbytes for p in parameters if p.requires_grad),
                train_samples=len(self.data.train),
                test_samples=len(self.data.test),
                steps=self.steps,
                steps_per_epoch=self.batches.steps_per_epoch,
                versions={"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
                bf16_hint=hint,
            )
        )

    def train(self) -> None:
        """Take all steps; tells a Step each, a Checkpoint each EVERY steps, and Trained."""
        self.wire.meet("the first step")
        began = time.perf_counter()
        for step in range(1, self.steps + 1):
            self.step(step)
            if self.spec.every_steps and step % self.spec.every_steps == 0 and step < self.steps:
                self.checkpoint(step)
                self.wire.meet(f"step {step + 1}")
        self.sync.finish()
        seconds = time.perf_counter() - began
        self.wire.meet("the end of training")
        seen = self.wire.all_reduce(torch.from_numpy(self.batches.seen).to(torch.uint8))
        self.tell(
            events.Trained(
                rank=self.wire.rank,
                seconds=seconds,
                distinct_samples=int(seen.count_nonzero()),
                synchronisations=self.sync.synchronisations,
            )
        )

    def step(self, step: int) -> None:
        """One optimizer step, timed in phases.

        The sync phase is `synchronise` and whatever the other phases waited for the wire, which is taken off theirs.
        """
        seconds = dict.fromkeys(events.PHASES, 0.0)
        waited = self.wire.waited_seconds
        mark = began = time.perf_counter()

        def ends(phase):
            nonlocal mark, waited
            now = time.perf_counter()
            exposed = 0.0 if phase == "sync" else self.wire.waited_seconds - waited
            seconds[phase] += now - mark - exposed
            seconds["sync"] += exposed
            mark, waited = now, self.wire.waited_seconds

        images, labels = self.batches(step)
        ends("data")
        self.optimizer.zero_grad()
        with autocast(self.spec):
            logits = self.module(images)
        loss = cross_entropy(logits.float(), labels)
        ends("forward")
        self.sync.backward(loss)
        ends("backward")
        self.sync.synchronise()
        ends("sync")
        self.sync.step(self.optimizer)
        ends("optimizer")
        sent, received = self.wire.take_bytes()
        event = events.Step(
            rank=self.wire.rank,
            step=step,
            epoch=self.batches.epoch(step),
            loss=loss.item(),
            accuracy=(logits.argmax(1) == labels).double().mean().item(),
            samples=len(labels),
            seconds=seconds,
            step_seconds=mark - began,
            sent_bytes=sent,
            received_bytes=received,
        )
        self.tell(event)
        self.metrics.step(event)
        if not math.isfinite(event.loss) and not self._told_not_finite:
            self._told_not_finite = True
            text = f"the loss is not finite at step {step}; a smaller LR would do (LR={self.spec.lr:g})"
            self.tell(events.Warning(rank=self.wire.rank, message=text))

    def checkpoint(self, step: int) -> None:
        """Bring the batch-norm statistics together, then rank 0 writes, where there is a place for it."""
        average_statistics(self.model, self.wire)
        self.wire.take_bytes()
        if self.wire.rank == 0 and self.out is not None:
            epoch = self.batches.epoch(step)
            path, size, seconds = checkpoint.save(
                self.out / "checkpoints", self.spec, step, epoch, self.model, self.optimizer
            )
            self.tell(events.Checkpoint(rank=0, step=step, path=str(path), bytes=size, seconds=seconds))

    def evaluate(self) -> None:
        """Checkpoint the final state and score it on the test set; rank 0 tells Evaluated."""
        self.checkpoint(self.steps)
        began = time.perf_counter()
        score = evaluate(self.model, self.data, self.wire, autocast(self.spec))
        if self.wire.rank == 0:
            self.tell(
                events.Evaluated(
                    rank=0,
                    samples=score.samples,
                    loss=score.loss,
                    accuracy=score.accuracy,
                    confusion_matrix=score.confusion.tolist(),
                    classes=list(self.data.classes),
                    seconds=time.perf_counter() - began,
                )
            )


def build(spec: RunSpec, classes: int) -> torch.nn.Module:
    """The model with weights drawn from the spec's seed, channels last; its size is held against the registry."""
    torch.manual_seed(spec.seed)
    model = load(MODELS[spec.model].place)(classes)
    if classes == DATA[spec.data].classes == 10:
        count, told = sum(p.numel() for p in model.parameters()), MODELS[spec.model].parameters
        assert count == told, f"{spec.model} has {count} parameters, the registry says {told}"
    return model.to(memory_format=torch.channels_last)


def share_weights(model, wire: Wire) -> None:
    """Give every rank rank 0's weights: drawn from one seed they are equal already, unless the CPUs differ."""
    with torch.no_grad():
        weights = list(model.parameters())
        flat = wire.broadcast(torch.cat([w.detach().reshape(-1) for w in weights]))
        for weight, same in zip(weights, flat.split([w.numel() for w in weights]), strict=True):
            weight.copy_(same.view(weight.shape))


def autocast(spec: RunSpec):
    """The context of forward passes: bf16 arithmetic over fp32 weights, or as is."""
    return torch.autocast("cpu", torch.bfloat16) if spec.precision == "bf16" else nullcontext()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
