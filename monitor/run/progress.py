"""What a person sees while a run goes on: a live table on a terminal, plain lines elsewhere."""

import time

from rich.console import Console
from rich.live import Live
from rich.table import Table

from monitor.conditions.faults import AT_ONCE
from monitor.results import sentences
from monitor.results.scores import joined_loss
from monitor.results.text import number, share
from trainer import events

BF16_PARAMETERS = 1_000_000  # in a smaller model arithmetic is too little of a step for bf16 to show
EVERY_STEPS, EVERY_SECONDS = 20, 10.0  # how often a plain line is printed; R1 prints every 20 steps


class Progress:
    """Feed it every event. Use as a context: the live table is taken down whatever happens."""

    def __init__(self, console: Console, node_names: list[str], workers: int):
        self._console, self._names, self._workers = console, node_names, workers
        self._steps: dict[int, events.Step] = {}
        self._total = self._before = 0
        self._first: float | None = None
        self._state = ["starting"] * len(node_names)
        self._told: dict[int, list[events.Step]] = {}  # by number, of the steps that not all workers have told yet
        self._printed = time.monotonic()
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def __enter__(self):
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_):
        if self._live:
            self._live.stop()

    def take(self, event: events.Event) -> None:
        """Show what this event changes."""
        match event:
            case events.Ready():
                self._total, self._before = event.steps, event.steps_before
                self._state[event.rank] = "ready"
                if event.rank == 0:
                    self._tell_once(event)
            case events.Step():
                self._steps[event.rank] = event
                self._first = self._first or event.time - event.step_seconds
                self._state[event.rank] = "training"
                self._told.setdefault(event.step, []).append(event)
                if not self._live and len(self._told[event.step]) == self._workers:
                    self._line(self._told.pop(event.step))
            case events.Trained():
                self._state[event.rank] = "evaluating"
                if not self._live and event.rank == 0:
                    self._console.print("evaluating on the whole test set", highlight=False)
            case events.Monitored():
                self._state[event.rank] = "evaluating"
                if not self._live:
                    scored = f"loss {number(event.loss, 3)}, accuracy {share(event.accuracy)}"
                    updates = "" if event.updates is None else f", {event.updates} updates"
                    self._console.print(f"evaluation at step {event.step}{updates}: {scored}", highlight=False)
            case events.Checkpoint():
                if not self._live:
                    self._console.print(f"checkpoint at step {event.step}: {event.bytes / 1e6:.1f} MB", highlight=False)
            case events.Warning():
                self._console.print(f"warning: {event.message}", style="yellow", markup=False, highlight=False)
            case events.Fault(moment="end", error=None) if event.fault.startswith(AT_ONCE):
                pass  # its attempt has ended, and it was over long before
            case events.Fault():
                told = f"fault {event.fault} {event.moment}s after step {event.step}"
                told += f": {event.error}" if event.error else ""
                self._console.print(told, style="yellow", markup=False, highlight=False)
            case events.Restart():
                self._steps, self._told, self._first = {}, {}, None
                self._state = ["starting"] * len(self._names)
                told = f"restart {event.attempt}: {sentences.of_restart(event)}"
                self._console.print(told, style="yellow", markup=False, highlight=False)
            case events.Finished():
                self._state[event.rank] = "finished"
            case events.Failed():
                self._state[event.rank] = "failed"
        if self._live:
            self._live.update(self._table(), refresh=True)

    def _tell_once(self, ready: events.Ready) -> None:
        self._console.print(
            f"{ready.parameters:,} parameters, {ready.gradient_bytes / 1e6:.1f} MB of gradients, "
            f"{ready.train_samples:,} training and {ready.test_samples:,} test images, {ready.steps} steps",
            highlight=False,
        )
        if ready.bf16_hint and ready.parameters > BF16_PARAMETERS:
            self._console.print(
                "hint: this CPU has bf16 instructions; PRECISION=bf16 makes a step much shorter", highlight=False
            )

    def _line(self, told: list[events.Step]) -> None:
        """Print a step that all workers have done, with the loss of their joined batch; not each, but often enough."""
        step, now = told[-1], time.monotonic()
        due = (
            step.step % EVERY_STEPS == 0
            or step.step in (self._before + 1, self._total)
            or now - self._printed >= EVERY_SECONDS
        )
        if due:
            self._printed = now
            pace = f"{step.step_seconds:.3f} s/step  {number(self._left(step), 0)} s left"
            line = f"step {step.step}/{self._total}  loss {number(joined_loss(told), 3)}  {pace}"
            self._console.print(line, highlight=False)

    def _left(self, step: events.Step) -> float:
        """Seconds to the last step at the pace so far."""
        return (step.time - self._first) / (step.step - self._before) * (self._total - step.step)

    def _table(self) -> Table:
        table = Table(box=None, header_style="bold", pad_edge=False)
        for heading in ("rank", "node", "state", "step", "loss", "accuracy", "samples/s", "s/step", "s left"):
            table.add_column(heading, justify="left" if heading in ("rank", "node", "state") else "right", min_width=6)
        for rank, name in enumerate(self._names):
            step = self._steps.get(rank)
            cells = ("", "", "", "", "", "")
            if step:
                cells = (
                    f"{step.step}/{self._total}",
                    number(step.loss, 3),
                    share(step.accuracy),
                    number(step.samples / step.step_seconds, 1),
                    number(step.step_seconds, 3),
                    number(self._left(step), 0),
                )
            table.add_row(str(rank), name, self._state[rank], *cells)
        return table
