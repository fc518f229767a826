"""How long the phases of a step take."""

import time

from trainer.events import PHASES
from trainer.wire.collectives import Wire


class PhaseClock:
    """Starts with a step.

    What another phase waited for the wire is taken off it, and counts as sync.
    """

    def __init__(self, wire: Wire):
        self.seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        self._wire, self._waited = wire, wire.waited_seconds
        self._began = self._mark = time.perf_counter()

    def end(self, phase: str) -> None:
        """The phase ends now, and the next one begins."""
        now, waited = time.perf_counter(), self._wire.waited_seconds
        exposed = 0.0 if phase == "sync" else waited - self._waited
        self.seconds[phase] += now - self._mark - exposed
        self.seconds["sync"] += exposed
        self._mark, self._waited = now, waited

    @property
    def step_seconds(self) -> float:
        """From the start of the step to the end of the latest phase."""
        return self._mark - self._began
