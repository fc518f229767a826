"""What a rank prints on its way to the supervisor, within a budget: a rank may print without end."""

from dataclasses import dataclass
from queue import Queue

from monitor.runtime.base import Lines, Output
from trainer.events import LINE_BYTES
from trainer.spec import RunSpec

STREAMS = ("stdout", "stderr")
MOST_SAMPLES = 1_000_000  # of training; no data set has as many
STEP_BYTES, STEP_LINES = 4096, 8  # a step's event, score and checkpoint take 1 kB and 3 lines


@dataclass(frozen=True)
class Budget:
    """What a rank may print in one attempt, on both streams together. Heartbeats alone take 3 MB a day."""

    bytes: int = 1 << 26
    lines: int = 1_000_000


SHORT_RUN = Budget()


def most_steps(spec: RunSpec) -> int:
    """No run of this spec has more steps."""
    return spec.steps or (spec.epochs or 0) * max(1, -(-MOST_SAMPLES // spec.batch))


def budget_of(spec: RunSpec) -> Budget:
    """It grows with the steps of the run."""
    steps = most_steps(spec)
    return Budget(Budget.bytes + STEP_BYTES * steps, Budget.lines + STEP_LINES * steps)


class RankOutput:
    """Bytes of a rank's two streams in, Output for the supervisor out. Past the budget all is dropped."""

    def __init__(self, rank: int, output: Queue[Output], budget: Budget):
        self._rank, self._output, self._budget = rank, output, budget
        self._lines = {name: Lines(LINE_BYTES) for name in STREAMS}
        self._bytes = self._count = 0
        self._spent = False

    def feed(self, stream: str, data: bytes) -> None:
        """Pass on the lines that this piece completes, or the breach of the budget, once."""
        if self._spent:
            return
        lines = self._lines[stream].feed(data)
        self._bytes += len(data)
        self._count += len(lines)
        breach = self._breach(stream)
        for line in lines if breach is None else ():
            self._output.put(Output(self._rank, stream, line))
        if breach:
            self._spent = True
            self._output.put(Output(self._rank, stream, "", breach))

    def _breach(self, stream: str) -> str | None:
        if self._bytes > self._budget.bytes:
            return f"it printed more than {self._budget.bytes / 1e6:.0f} MB"
        if self._count > self._budget.lines:
            return f"it printed more than {self._budget.lines} lines"
        if stream == "stdout" and self._lines[stream].cut:
            return f"it sent a line of more than {LINE_BYTES} bytes"
        return None

    def end(self, stream: str) -> None:
        """Pass on the last line, when it had no end."""
        for line in () if self._spent else self._lines[stream].end():
            self._output.put(Output(self._rank, stream, line))
