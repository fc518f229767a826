"""What a rank prints on its way to the supervisor, within a budget: a rank may print without end."""

from dataclasses import dataclass
from queue import Queue

from monitor.runtime.base import Lines, Output
from node.signature import ForgedError, Verifier
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
    """Bytes of a rank's two streams in, Output for the supervisor out. Past the budget all is dropped.

    `key`: of its launcher, whose lines on the rank's standard output it signs.
    """

    def __init__(self, rank: int, output: Queue[Output], key: str, budget: Budget = SHORT_RUN):
        self._rank, self._output, self._budget = rank, output, budget
        self._verifier = Verifier(key)
        self._lines = {name: Lines(LINE_BYTES) for name in STREAMS}
        self._bytes = self._count = 0
        self._spent = False

    def feed(self, stream: str, data: bytes) -> None:
        """Pass on the lines that this piece completes, or the first breach, after which nothing comes."""
        if self._spent:
            return
        lines = self._lines[stream].feed(data)
        self._bytes += len(data)
        self._count += len(lines)
        if breach := self._breach(stream):
            self._end_with(stream, breach)
        self._pass_on(stream, lines)

    def _pass_on(self, stream: str, lines: list[str]) -> None:
        for line in lines:
            if self._spent:
                return
            try:
                text = self._verifier.text(line) if stream == "stdout" else None
            except ForgedError as error:
                self._end_with(stream, str(error))
            else:
                if text is not None:
                    self._output.put(Output(self._rank, "launcher", text))
                elif line or stream == "stderr":  # a launcher ends what its rank may have left open
                    self._output.put(Output(self._rank, stream, line))

    def _end_with(self, stream: str, breach: str) -> None:
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

    def end(self) -> None:
        """Both streams have ended: pass on their last lines, when those had no end, and say so."""
        for stream in STREAMS:
            self._pass_on(stream, self._lines[stream].end())
        self._output.put(Output(self._rank, "stdout", None))
