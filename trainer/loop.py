"""One rank's run: build, train step by step, evaluate. Everything it has to say goes to `tell` as events."""

import hashlib
import math
import platform
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from trainer import checkpoint, events
from trainer.checkpoint_folder import FOLDER
from trainer.data.prepared import InputError, Prepared
from trainer.evaluate import Score, evaluate
from trainer.flat import flatten, unflatten
from trainer.interface import Window
from trainer.layout import WORKER, roles
from trainer.metrics import NoMetrics
from trainer.registry import DATA, MODELS, SYNCS, load
from trainer.spec import RunSpec, shape_text
from trainer.state import brought_together, capture, restore
from trainer.sync.base import Sync
from trainer.tensorboard import Board, NoBoard
from trainer.traffic import total
from trainer.wire import Wire

Tell = Callable[[events.Event], None]


class Run:
    """A model, its data and a strategy on one rank. Built by every rank with the same spec and data.

    `out`: folder for checkpoints, None for none. `bf16_hint`: this CPU has bf16 instructions. `resume`: folder of a
    complete checkpoint to go on from, of a run with the same spec but for its length. `metrics`: where the live figures
    go. Raises InputError and WireError.
    """

    def __init__(
        self,
        spec: RunSpec,
        data: Prepared,
        wire: Wire,
        tell: Tell,
        out: Path | None = None,
        bf16_hint=False,
        resume: Path | None = None,
        metrics=None,
    ):
        self.spec, self.data, self.tell, self.out = spec, data, tell, out
        self.model = begin(spec, data, wire)
        self.rank = wire.rank
        self.wire = wire = wire.among(roles(spec)[WORKER])
        strategy = load(SYNCS[spec.sync].place)
        self.batches = strategy.batches(data, spec.batch, spec.seed, wire.rank, wire.world_size, spec.shares)
        self.steps = spec.steps or spec.epochs * self.batches.steps_per_epoch
        self.sync = strategy(wire, spec)
        self.module = self.sync.setup(self.model)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), spec.lr, spec.momentum, weight_decay=spec.weight_decay, fused=True
        )
        self.sync.begin(self.optimizer, self.steps)
        self.metrics = metrics or NoMetrics()
        self._told_not_finite = False
        self.steps_before = self._resume(resume) if resume else 0
        self.board = Board(out, wire.rank, self.steps_before + 1) if spec.tensorboard and out else NoBoard()
        if wire.rank == 0:
            self.board.graph(self.model, data.shape)
        self.wire.take_bytes()  # start-up traffic belongs to no step
        hint = bf16_hint and spec.precision == "fp32"
        steps = self.steps, self.batches.steps_per_epoch
        told = ready(self.rank, data, self.model, *steps, hint, self.steps_before)
        formula = partial(self.sync.step_bytes, told.gradient_bytes)
        self.metrics.begin(formula, self.steps_before, self.sync.synchronisations)
        tell(told)

    def _resume(self, folder: Path) -> int:
        """Take the state of a checkpoint; returns its step."""
        complete, state = checkpoint.load(folder, self.wire, lasting_facts(self.data, self.model))
        files = _digest(str(complete.files).encode())
        self.wire.compare("the checkpoint", {"step": str(complete.step), "files": files})
        if complete.step >= self.steps:
            raise InputError(f"RESUME: {folder} is of step {complete.step}, this run ends at {self.steps}")
        restore(self, state)
        return complete.step

    def train(self) -> None:
        """Take all steps that are left; tells a Step each, a Checkpoint each EVERY steps, and Trained."""
        self.wire.meet("the first step")
        self.interface = Window()
        began = time.perf_counter()
        for step in range(self.steps_before + 1, self.steps + 1):
            self.step(step)
            if self.spec.every_steps and step % self.spec.every_steps == 0 and step < self.steps:
                self._checkpoint(step)
            if self.spec.evaluate_steps and step % self.spec.evaluate_steps == 0 and step < self.steps:
                self._score(step)
        with self.interface.left_out():
            self._last = capture(self)  # before `finish`: a longer run goes on from here
        if type(self.sync).finish is not Sync.finish:
            self._last = {name: v.clone() if torch.is_tensor(v) else v for name, v in self._last.items()}
        self.sync.finish()
        self.wire = self.sync.wire  # without the workers that were lost, where the strategy goes on without them
        seconds = time.perf_counter() - began
        self.wire.meet("the end of training")
        interface = self.interface.bytes()
        traffic = self.wire.take_traffic()
        self.metrics.synchronised(traffic, self.sync.synchronisations)
        sent, received = total(traffic)
        seen = self.wire.all_reduce(torch.from_numpy(self.batches.seen).to(torch.uint8))
        self.tell(
            events.Trained(
                rank=self.rank,
                seconds=seconds,
                distinct_samples=int(seen.count_nonzero()),
                synchronisations=self.sync.synchronisations,
                sent_bytes=sent,
                received_bytes=received,
                interface_sent_bytes=interface[0],
                interface_received_bytes=interface[1],
                lost_workers=sorted(self.wire.peers.lost) if self.wire.peers else [],
            )
        )

    def step(self, step: int) -> None:
        """One optimizer step, timed in phases.

        The sync phase is `synchronise` and `mix`, and whatever the other phases waited for the wire, which is taken off
        theirs.
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
        torch.manual_seed(self.batches.dropout_seed(step))
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
        self.sync.mix(step)
        ends("sync")
        traffic = self.wire.take_traffic()
        sent, received = total(traffic)
        event = events.Step(
            rank=self.rank,
            step=step,
            epoch=self.batches.epoch(step),
            loss=loss.item(),
            accuracy=(logits.argmax(1) == labels).double().mean().item(),
            samples=len(labels),
            seconds=seconds,
            step_seconds=mark - began,
            sent_bytes=sent,
            received_bytes=received,
            staleness=self.sync.staleness,
        )
        self.tell(event)
        self.metrics.step(event)
        self.metrics.synchronised(traffic, self.sync.synchronisations)
        self.board.step(event)
        if not math.isfinite(event.loss) and not self._told_not_finite:
            self._told_not_finite = True
            text = f"the loss is not finite at step {step}; a smaller LR would do (LR={self.spec.lr:g})"
            self.tell(events.Warning(rank=self.rank, message=text))

    def _checkpoint(self, step: int) -> None:
        """Write a checkpoint between two steps: of all ranks where they take steps together, else of rank 0 alone."""
        with self.wire.uncounted():
            if self.sync.lockstep:
                wire = self.sync.together(f"the checkpoint of step {step}")
                with self.interface.left_out():
                    self._save(step, capture(self), brought_together(self.model, wire), wire)
                wire.meet(f"step {step + 1}")
            elif self.rank == 0:
                with self.interface.left_out():
                    self._save(step, capture(self), self.model.state_dict(), Wire())

    def _score(self, step: int) -> None:
        """Score on the test set what the ranks have between them, between two steps; rank 0 tells Monitored."""
        with self.wire.uncounted():
            wire = self.sync.together(f"the evaluation at step {step}")
            with self.interface.left_out():
                own = {name: value.clone() for name, value in self.model.state_dict().items()}
                self.model.load_state_dict(brought_together(self.model, wire))
                score = self._evaluated(wire, f"the score of step {step}")
                self.model.load_state_dict(own)
                self.model.train()
            wire.meet(f"step {step + 1} after its score")
        if self.rank == 0:
            figures = {"samples": score.samples, "loss": score.loss, "accuracy": score.accuracy}
            self.tell(events.Monitored(rank=0, step=step, **figures))

    def _evaluated(self, wire: Wire, when: str) -> Score:
        return evaluate(self.model, self.data, wire, autocast(self.spec), when, self.metrics.evaluated)

    def _save(self, step: int, state: dict, model: dict, wire: Wire) -> None:
        """Write a checkpoint of the wire's ranks, where there is a place for it; rank 0 tells Checkpoint."""
        if self.out is None:
            return
        began = time.perf_counter()
        epoch, facts = self.batches.epoch(step), lasting_facts(self.data, self.model)
        inputs = self.data.inputs
        saved = checkpoint.save(self.out / FOLDER, wire, self.spec, step, epoch, state, model, inputs, facts)
        if saved:
            seconds = time.perf_counter() - began
            self.tell(
                events.Checkpoint(rank=0, step=step, path=f"{FOLDER}/{saved[0]}", bytes=saved[1], seconds=seconds)
            )

    def evaluate(self) -> None:
        """Checkpoint the final state and score its model on the test set; rank 0 tells Evaluated."""
        self.board.close()
        model = brought_together(self.model, self.wire)
        self._save(self.steps, self._last, model, self.wire)
        self.model.load_state_dict(model)
        began = time.perf_counter()
        score = self._evaluated(self.wire, "evaluation")
        if self.rank == 0:
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


def begin(spec: RunSpec, data: Prepared, wire: Wire) -> torch.nn.Module:
    """Every rank, whatever its role: check that all are in the same run; the model, with rank 0's weights."""
    if data.shape != spec.shape:
        has, wants = shape_text(data.shape), shape_text(spec.shape)
        raise InputError(f"{data.name}: its images are {has}, the run is of {wants}; prepare DATA={spec.data}")
    model = build(spec, len(data.classes))
    settings = {name: str(value) for name, value in asdict(spec).items()}
    wire.compare("the run", settings | lasting_facts(data, model))
    share_weights(model, wire)
    return model


def lasting_facts(data: Prepared, model: torch.nn.Module) -> dict[str, str]:
    """What all ranks must agree on besides the spec, and what a run that goes on with this one must agree with."""
    shapes = str([(name, tuple(p.shape)) for name, p in model.named_parameters()])
    splits = {"train": data.train.labels, "test": data.test.labels}
    return {
        "model shapes": _digest(shapes.encode()),
        **{f"{split} labels": f"{len(labels)} {_digest(labels.tobytes())}" for split, labels in splits.items()},
    }


def ready(
    rank: int, data: Prepared, model, steps: int, steps_per_epoch: int, bf16_hint=False, steps_before: int = 0
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
    epoch = len(data.train) // spec.batch
    return spec.steps or spec.epochs * epoch, epoch


def build(spec: RunSpec, classes: int) -> torch.nn.Module:
    """The model with weights drawn from the spec's seed, channels last; its size is held against the registry."""
    torch.manual_seed(spec.seed)
    model = load(MODELS[spec.model].place)(classes, spec.shape)
    if classes == DATA[spec.data].classes == 10:
        count, told = sum(p.numel() for p in model.parameters()), MODELS[spec.model].parameters[spec.shape]
        assert count == told, f"{spec.model} has {count} parameters, the registry says {told}"
    return model.to(memory_format=torch.channels_last)


def share_weights(model, wire: Wire) -> None:
    """Give every rank rank 0's weights: drawn from one seed they are equal already, unless the CPUs differ."""
    unflatten(wire.broadcast(flatten(model.parameters())), model.parameters())


def autocast(spec: RunSpec):
    """The context of forward passes: bf16 arithmetic over fp32 weights, or as is."""
    return torch.autocast("cpu", torch.bfloat16) if spec.precision == "bf16" else nullcontext()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
