"""One rank's run: build, train step by step, evaluate.

Everything it has to say goes to `tell` as events.
"""

import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from trainer import events
from trainer.checkpoint import files as checkpoint
from trainer.checkpoint.state import capture, merge_states, restore
from trainer.checkpoint_folder import FOLDER
from trainer.data.prepared import InputError, Prepared
from trainer.layout import WORKER, roles
from trainer.models.build import autocast
from trainer.registry import SYNCS, load
from trainer.run.evaluate import Score, evaluate
from trainer.run.metrics import Metrics, NoMetrics
from trainer.run.phases import PhaseClock
from trainer.run.start import begin, digest, lasting_facts, ready
from trainer.run.tensorboard import Board, NoBoard
from trainer.spec import RunSpec
from trainer.wire.alone import AloneWire
from trainer.wire.collectives import Wire
from trainer.wire.interface import Window
from trainer.wire.traffic import total

Tell = Callable[[events.Event], None]


class Run:
    """A model, its data and a strategy on one rank.

    Built by every rank with the same spec and data.

    `out`: folder for checkpoints, None for none. `bf16_hint`: this CPU has bf16 instructions.
    `resume`: folder of a complete checkpoint to go on from, of a run with the same spec but for its
    length. `metrics`: where the live figures go. Raises InputError and WireError.
    """

    def __init__(
        self,
        spec: RunSpec,
        data: Prepared,
        wire: Wire,
        tell: Tell,
        out: Path | None = None,
        bf16_hint: bool = False,
        resume: Path | None = None,
        metrics: Metrics | NoMetrics | None = None,
    ):
        self.spec, self.data, self.tell, self.out = spec, data, tell, out
        self.model = begin(spec, data, wire)
        self.rank = wire.rank
        self.wire = wire = wire.among(roles(spec)[WORKER])
        strategy = load(SYNCS[spec.sync].place)
        self.batches = strategy.batches(data, spec.batch, spec.seed, wire.rank, wire.world_size, spec.shares)
        self.steps = spec.total_steps(self.batches.steps_per_epoch)
        self.sync = strategy(wire, spec)
        self.module = self.sync.setup(self.model)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), spec.lr, spec.momentum, weight_decay=spec.weight_decay, fused=True
        )
        self.sync.begin(self.optimizer, self.steps)
        self.metrics = metrics or NoMetrics()
        self._warned_not_finite = False
        self.steps_before = self._resume(resume) if resume else 0
        self.board = Board(out, wire.rank, self.steps_before + 1) if spec.tensorboard and out else NoBoard()
        if wire.rank == 0:
            self.board.graph(self.model, data.shape)
        self.wire.take_bytes()  # start-up traffic belongs to no step
        hint = bf16_hint and spec.precision == "fp32"
        steps = self.steps, self.batches.steps_per_epoch
        event = ready(self.rank, data, self.model, *steps, hint, self.steps_before)
        formula = partial(self.sync.step_bytes, event.gradient_bytes)
        self.metrics.begin(formula, self.steps_before, self.sync.synchronisations)
        tell(event)

    def _resume(self, folder: Path) -> int:
        """Take the state of a checkpoint; returns its step."""
        complete, state = checkpoint.load(folder, self.wire, lasting_facts(self.data, self.model))
        files = digest(str(complete.files).encode())
        self.wire.party.compare("the checkpoint", {"step": str(complete.step), "files": files})
        if complete.step >= self.steps:
            raise InputError(f"RESUME: {folder} is of step {complete.step}, this run ends at {self.steps}")
        restore(self, state)
        return complete.step

    def train(self) -> None:
        """Take all steps that are left; tells a Step each, a Checkpoint each EVERY steps, and Trained."""
        self.wire.party.meet("the first step")
        self.interface = Window()
        began = time.perf_counter()
        for step in range(self.steps_before + 1, self.steps + 1):
            self.step(step)
            if self._is_due(self.spec.every_steps, step):
                self._checkpoint(step)
            if self._is_due(self.spec.evaluate_steps, step):
                self._score(step)
        self._finish()
        seconds = time.perf_counter() - began
        self.wire.party.meet("the end of training")
        self._report_training(seconds)

    def _is_due(self, every_steps: int, step: int) -> bool:
        """Whether what comes every so many steps (0: never) is due; the last step has its own."""
        return every_steps > 0 and step % every_steps == 0 and step < self.steps

    def _finish(self) -> None:
        """Bring together what is still apart. A longer run goes on from the state before that."""
        with self.interface.left_out():
            self._last = capture(self)
        if self.sync.finish_changes_weights:
            self._last = {name: v.clone() if torch.is_tensor(v) else v for name, v in self._last.items()}
        self.sync.finish()
        self.wire = self.sync.wire  # without the workers that were lost, where the strategy goes on without them

    def _report_training(self, seconds: float) -> None:
        """Tell Trained, and the live figures what `finish` did."""
        interface = self.interface.bytes()
        traffic = self.wire.take_traffic()
        self.metrics.synchronised(traffic, self.sync.synchronisations)
        sent, received = total(traffic)
        seen_samples = self.wire.all_reduce(torch.from_numpy(self.batches.seen).to(torch.uint8))
        self.tell(
            events.Trained(
                rank=self.rank,
                seconds=seconds,
                distinct_samples=int(seen_samples.count_nonzero()),
                synchronisations=self.sync.synchronisations,
                sent_bytes=sent,
                received_bytes=received,
                interface_sent_bytes=interface[0],
                interface_received_bytes=interface[1],
                lost_workers=sorted(self.wire.party.lost),
            )
        )

    def step(self, step: int) -> None:
        """One optimizer step, timed in phases.

        The sync phase is `synchronise` and `mix`, and whatever the other phases waited for the
        wire.
        """
        clock = PhaseClock(self.wire)
        images, labels = self.batches(step)
        torch.manual_seed(self.batches.dropout_seed(step))
        clock.end("data")
        self.optimizer.zero_grad()
        with autocast(self.spec):
            logits = self.module(images)
        loss = cross_entropy(logits.float(), labels)
        clock.end("forward")
        self.sync.backward(loss)
        clock.end("backward")
        self.sync.synchronise()
        clock.end("sync")
        self.sync.step(self.optimizer)
        clock.end("optimizer")
        self.sync.mix(step)
        clock.end("sync")
        accuracy = (logits.argmax(1) == labels).double().mean().item()
        self._report(step, loss.item(), accuracy, len(labels), clock)

    def _report(self, step: int, loss: float, accuracy: float, samples: int, clock: PhaseClock) -> None:
        """Tell a Step, also to the live figures and TensorBoard. Warn once of a loss not finite."""
        traffic = self.wire.take_traffic()
        sent, received = total(traffic)
        event = events.Step(
            rank=self.rank,
            step=step,
            epoch=self.batches.epoch(step),
            loss=loss,
            accuracy=accuracy,
            samples=samples,
            seconds=clock.seconds,
            step_seconds=clock.step_seconds,
            sent_bytes=sent,
            received_bytes=received,
            staleness=self.sync.staleness,
        )
        self.tell(event)
        self.metrics.step(event)
        self.metrics.synchronised(traffic, self.sync.synchronisations)
        self.board.step(event)
        if not math.isfinite(loss) and not self._warned_not_finite:
            self._warned_not_finite = True
            text = f"the loss is not finite at step {step}; a smaller LR would do (LR={self.spec.lr:g})"
            self.tell(events.Warning(rank=self.rank, message=text))

    def _checkpoint(self, step: int) -> None:
        """Write a checkpoint between two steps: of all ranks where they take steps together, else of rank 0 alone."""
        with self.wire.uncounted():
            if self.sync.lockstep:
                wire = self.sync.together(f"the checkpoint of step {step}")
                with self.interface.left_out():
                    self._save(step, capture(self), merge_states(self.model, wire), wire)
                wire.party.meet(f"step {step + 1}")
            elif self.rank == 0:
                with self.interface.left_out():
                    self._save(step, capture(self), self.model.state_dict(), AloneWire())

    def _score(self, step: int) -> None:
        """Score on the test set what the ranks have between them, between two steps; rank 0 tells Monitored."""
        with self.wire.uncounted():
            wire = self.sync.together(f"the evaluation at step {step}")
            with self.interface.left_out():
                before = {name: value.clone() for name, value in self.model.state_dict().items()}
                self.model.load_state_dict(merge_states(self.model, wire))
                score = self._evaluated(wire, f"the score of step {step}")
                self.model.load_state_dict(before)
                self.model.train()
            wire.party.meet(f"step {step + 1} after its score")
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
        model = merge_states(self.model, self.wire)
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
