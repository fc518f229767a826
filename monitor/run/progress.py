"""What a person sees while a run goes on: a live table on a terminal, plain lines elsewhere."""

import time

from rich.console import Console
from rich.live import Live
from rich.table import Table

from monitor.conditions.faults import AT_ONCE
from monitor.results import sentences
from monitor.results.text import number, share
from monitor.statistics.joined import joined_loss
from trainer import events

BF16_PARAMETERS = 1_000_000  # in a smaller model arithmetic is too little of a step for bf16 to show
EVERY_STEPS, EVERY_SECONDS = 20, 10.0  # how often a plain line is printed; R1 prints every 20 steps


class Progress:
    """Feed it every event. Use as a context: the live table is taken down whatever happens."""

    def __init__(self, console: Console, node_names: list[str], workers: int):
        self._console, self._names, self._workers = console, node_names, workers
        self._total = self._before = 0
        self._printed = time.monotonic()
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._begin_attempt()

    def _begin_attempt(self) -> None:
        """Nothing is known of any rank."""
        self._steps: dict[int, events.Step] = {}
        self._first: float | None = None  # Unix seconds at which the first step began
        self._state = ["starting"] * len(self._names)
        self._open_steps: dict[int, list[events.Step]] = {}  # by number, of steps that not all workers have done

    def __enter__(self):
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_):
        if self._live:
            self._live.stop()

    def take(self, event: events.Event) -> None:
        """Show what this event changes."""
        self._take_state(event)
        match event:
            case events.Ready():
                self._total, self._before = event.steps, event.steps_before
                if event.rank == 0:
                    self._show_sizes(event)
            case events.Step():
                self._take_step(event)
            case events.Trained(rank=0):
                self._line("evaluating on the whole test set")
            case events.Monitored():
                score = f"loss {number(event.loss, 3)}, accuracy {share(event.accuracy)}"
                updates = "" if event.updates is None else f", {event.updates} updates"
                self._line(f"evaluation at step {event.step}{updates}: {score}")
            case events.Checkpoint():
                self._line(f"checkpoint at step {event.step}: {event.bytes / 1e6:.1f} MB")
            case events.Warning():
                self._notice(f"warning: {event.message}")
            case events.Fault(moment="end", error=None) if event.fault.startswith(AT_ONCE):
                pass  # its attempt has ended, and it was over long before
            case events.Fault():
                failure = f": {event.error}" if event.error else ""
                self._notice(f"fault {event.fault} {event.moment}s after step {event.step}{failure}")
            case events.Restart():
                self._begin_attempt()
                self._notice(f"restart {event.attempt}: {sentences.of_restart(event)}")
        if self._live:
            self._live.update(self._table(), refresh=True)

    def _take_state(self, event: events.Event) -> None:
        """What its rank does now."""
        match event:
            case events.Ready():
                self._state[event.rank] = "ready"
            case events.Step():
                self._state[event.rank] = "training"
            case events.Trained() | events.Monitored():
                self._state[event.rank] = "evaluating"
            case events.Finished():
                self._state[event.rank] = "finished"
            case events.Failed():
                self._state[event.rank] = "failed"

    def _take_step(self, step: events.Step) -> None:
        self._steps[step.rank] = step
        self._first = self._first or step.time - step.step_seconds
        parts = self._open_steps.setdefault(step.step, [])
        parts.append(step)
        if not self._live and len(parts) == self._workers:
            del self._open_steps[step.step]
            self._show_step(parts)

    def _line(self, text: str) -> None:
        """A plain line, where there is no live table."""
        if not self._live:
            self._console.print(text, highlight=False)

    def _notice(self, text: str) -> None:
        self._console.print(text, style="yellow", markup=False, highlight=False)

    def _show_sizes(self, ready: events.Ready) -> None:
        self._console.print(
            f"{ready.parameters:,} parameters, {ready.gradient_bytes / 1e6:.1f} MB of gradients, "
            f"{ready.train_samples:,} training and {ready.test_samples:,} test images, {ready.steps} steps",
            highlight=False,
        )
        if ready.bf16_hint and ready.parameters > BF16_PARAMETERS:
            self._console.print(
                "hint: this CPU has bf16 instructions; PRECISION=bf16 makes a step much shorter", highlight=False
            )

    def _show_step(self, parts: list[events.Step]) -> None:
        """Print a step that all workers have done, with the loss of their joined batch; not each, but often enough."""
        step, now = parts[-1], time.monotonic()
        due = (
            step.step % EVERY_STEPS == 0
            or step.step in (self._before + 1, self._total)
            or now - self._printed >= EVERY_SECONDS
        )
        if due:
            self._printed = now
            pace = f"{step.step_seconds:.3f} s/step  {number(self._seconds_left(step), 0)} s left"
            self._line(f"step {step.step}/{self._total}  loss {number(joined_loss(parts), 3)}  {pace}")

    def _seconds_left(self, step: events.Step) -> float | None:
        """Seconds to the last step at the pace so far."""
        if self._first is None:
            return None
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
                    number(self._seconds_left(step), 0),
                )
            table.add_row(str(rank), name, self._state[rank], *cells)
        return table
