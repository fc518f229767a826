"""Unix seconds that go on evenly when this machine's clock is set in mid-run (by hand, by NTP, on waking up).

Durations are differences of times of events, which ranks stamp with the machine's clock. So all of a run's times are
brought onto one axis: that of the clock as it was when the run began, carried on by the monotonic clock.

    CLOCK.begin()           at the start of each run
    CLOCK.now()             in place of time.time()
    CLOCK.steady(e.time)    of an event that has just come in
"""

import time

STEP_SECONDS = 2.0  # less is the usual drift between the two clocks


class Clock:
    """`wall` and `monotonic`: the clocks to read, in seconds."""

    def __init__(self, wall=time.time, monotonic=time.monotonic):
        self._wall, self._monotonic = wall, monotonic
        self.begin()

    def begin(self) -> float:
        """A new axis begins: the clock as it is now, which is returned."""
        self._zero = self._wall() - self._monotonic()
        self._set: list[tuple[float, float]] = []  # (what it showed before, by how much it is off the axis since)
        return self.now()

    def now(self) -> float:
        """Unix seconds on the axis."""
        return self._zero + self._monotonic()

    def look(self) -> float:
        """By how many seconds the clock was set since the last look, forward or (negative) back; 0.0: it was not."""
        off = self._wall() - self.now()
        before = self._set[-1][1] if self._set else 0.0
        if abs(off - before) < STEP_SECONDS:
            return 0.0
        self._set.append((self.now() + before, off))
        return off - before

    def steady(self, when: float) -> float:
        """A time that the machine's clock showed just now, on the axis; one that is on it already stays as it is."""
        now = self.now()
        return min((when - off for off in (0.0, *(off for _, off in self._set))), key=lambda t: abs(t - now))

    def shown(self, start: float, end: float) -> tuple[float, float]:
        """Between which of its times there may be samples of this span of the axis, which began before it was set."""
        off = self._set[-1][1] if self._set else 0.0
        return start, max(end + off, *(before for before, _ in self._set), start)

    def of_shown(self, when: float) -> float:
        """A time that Prometheus has a sample of, on the axis. It takes none that is older than one it has."""
        return when - next((off for before, off in reversed(self._set) if when > before), 0.0)


CLOCK = Clock()
