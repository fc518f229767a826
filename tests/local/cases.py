"""What ranks of a Group do in tests of algebra, and the same computed plainly, with nothing of ours but the batches."""

from dataclasses import dataclass
from pathlib import Path

import injected  # noqa: F401  the test-only models must be known to every rank
import numpy as np
import torch
from torch.nn.functional import cross_entropy

from trainer.data.batches import Batches, evaluation_batches
from trainer.data.prepared import load
from trainer.events import Event, Step
from trainer.flat import flatten
from trainer.layout import SERVER, WORKER, seats
from trainer.registry import MODELS
from trainer.registry import load as load_place
from trainer.run.loop import Run
from trainer.run.metrics import NoMetrics
from trainer.servers.evaluator import watch
from trainer.servers.server import Server
from trainer.spec import RunSpec
from trainer.sync.replicas import momentum
from trainer.wire.traffic import DIRECTIONS


class Listener(NoMetrics):
    """Adds up what the live figures are told."""

    def __init__(self):
        self.expected: tuple[float, float] | None = None  # bytes per step, before the first one
        self.bytes: dict[str, list[int]] = {}  # sent and received in all, by collective

    def begin(self, step_bytes, steps_before, synchronisations_before):
        self.expected = step_bytes()

    def synchronised(self, traffic, synchronisations):
        for (collective, direction), amount in traffic.items():
            self.bytes.setdefault(collective, [0, 0])[DIRECTIONS.index(direction)] += amount


@dataclass(frozen=True)
class Trained:
    """One rank's run: what it told, its weights and buffers, the formula's bytes per step, sent and received, and what
    the live figures were told.
    """

    events: list[Event]
    state: dict[str, np.ndarray]
    step_bytes: tuple[float, float]
    live: Listener

    def of(self, kind) -> list:
        return [e for e in self.events if isinstance(e, kind)]

    @property
    def bytes(self) -> tuple[int, int]:
        """Sent and received over all steps, as the wire counted."""
        steps = self.of(Step)
        return sum(s.sent_bytes for s in steps), sum(s.received_bytes for s in steps)


def train(
    wire, spec: RunSpec, data: Path, out: Path | None = None, evaluate: bool = False, resume: Path | None = None
) -> Trained:
    """The trainer's own Run; a parameter server or evaluator gives back a Trained without weights."""
    told, role = [], seats(spec)[wire.rank].role
    if role != WORKER:
        if role == SERVER:
            Server(spec, load(data), wire, told.append).run()
        else:
            watch(spec, load(data), wire, told.append)
        return Trained(told, {}, (0, 0), Listener())
    live = Listener()
    run = Run(spec, load(data), wire, told.append, out, resume=resume, metrics=live)
    run.train()
    state = {name: tensor.detach().clone().numpy() for name, tensor in run.model.state_dict().items()}
    if evaluate:
        run.evaluate()
    step_bytes = run.sync.step_bytes(sum(p.nbytes for p in run.model.parameters()))
    return Trained(told, state, step_bytes, live)


@dataclass(frozen=True)
class Plain:
    losses: list[float]
    state: dict[str, np.ndarray]
    test_loss: float
    test_accuracy: float
    distinct: int


def plain(spec: RunSpec, data: Path) -> Plain:
    """SGD on one replica with the joined batch."""
    prepared = load(data)
    torch.manual_seed(spec.seed)
    model = load_place(MODELS[spec.model].place)(10)
    optimizer = torch.optim.SGD(model.parameters(), spec.lr, spec.momentum, weight_decay=spec.weight_decay)
    batches, losses = Batches(prepared, spec.batch, spec.seed), []
    for step in range(1, spec.steps + 1):
        images, labels = batches(step)
        optimizer.zero_grad()
        loss = cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        images, labels = next(evaluation_batches(prepared, 0, 1))
        logits = model(images)
    accuracy = (logits.argmax(1) == labels).double().mean().item()
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    return Plain(losses, state, cross_entropy(logits, labels).item(), accuracy, int(batches.seen.sum()))


def plain_ddp(wire, spec: RunSpec, data: Path) -> dict[str, np.ndarray]:
    """torch's DistributedDataParallel with the trainer's model and batches only; the weights."""
    torch.manual_seed(spec.seed)
    model = load_place(MODELS[spec.model].place)(10).to(memory_format=torch.channels_last)
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), spec.lr, spec.momentum, weight_decay=spec.weight_decay, fused=True)
    batches = Batches(load(data), spec.batch, spec.seed, wire.rank, wire.world_size)
    for step in range(1, spec.steps + 1):
        images, labels = batches(step)
        optimizer.zero_grad()
        cross_entropy(ddp(images), labels).backward()
        optimizer.step()
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}


@dataclass
class Traced:
    """One rank's run, followed step by step. Weights are flat, float32 (parameters,)."""

    events: list[Event]
    weights: list[np.ndarray]  # of this rank after each step
    momentum: np.ndarray | None  # after the last step
    final: np.ndarray  # after evaluation
    step_bytes: tuple[float, float]
    files: list[str]  # files of ours that this process has open or mapped

    def of(self, kind) -> list:
        return [e for e in self.events if isinstance(e, kind)]


def trace(wire, spec: RunSpec, data: Path, out: Path, in_turn: bool = False) -> Traced:
    """The trainer's own Run, evaluated. `in_turn`: ranks take each step one after the other, in rank order."""
    told, weights = [], []

    class Followed(Run):
        def step(self, step):
            for rank in range(wire.world_size) if in_turn else [wire.rank]:
                if rank == wire.rank:
                    super().step(step)
                if in_turn:
                    wire.party.meet(f"turn {step}.{rank}")
            weights.append(flatten(self.model.parameters()).numpy())
            if in_turn:
                wire.party.meet(f"step {step} is written down")

    run = Followed(spec, load(data), wire, told.append, out)
    run.train()
    buffers = momentum(run.optimizer, list(run.model.parameters()))
    kept = flatten(buffers).numpy() if buffers else None
    final = flatten(run.model.parameters()).clone().numpy()  # before `evaluate`, which would make one model of many
    run.evaluate()
    step_bytes = run.sync.step_bytes(sum(p.nbytes for p in run.model.parameters()))
    mapped = [line.split(None, 5)[-1] for line in Path("/proc/self/maps").read_text().splitlines()]
    opened = [f"open: {f.readlink()}" for f in Path("/proc/self/fd").iterdir() if f.is_symlink()]
    files = [name for name in mapped + opened if "syncbed-" in name]
    return Traced(told, weights, kept, final, step_bytes, files)
