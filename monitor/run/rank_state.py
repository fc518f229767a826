"""All that is known of one rank of a run, from its events and from the stream that carries them."""

from collections import deque
from dataclasses import dataclass, field

from monitor.runtime.base import RankHandle
from trainer import events

TAIL_LINES = 20
NO_MEMORY = "ran out of memory"
# The last event of each of these is kept, in this field.
LAST_OF_ITS_KIND = {
    events.Started: "started",
    events.Ready: "ready",
    events.Trained: "trained",
    events.Served: "served",
    events.Watched: "watched",
    events.Finished: "finished",
    events.Failed: "failed",
    events.Exited: "exited",
}


@dataclass
class RankState:
    """All that is known of one rank."""

    last_sign: float  # monotonic seconds of its last sign of life
    handle: RankHandle | None = None
    started: events.Started | None = None
    ready: events.Ready | None = None
    steps: list[events.Step] = field(default_factory=list)
    trained: events.Trained | None = None
    served: events.Served | None = None
    watched: events.Watched | None = None
    evaluations: list[events.Monitored] = field(default_factory=list)
    finished: events.Finished | None = None
    failed: events.Failed | None = None
    breach: str | None = None  # what it sent and may not: all that it says after that is dropped
    exited: events.Exited | None = None
    busy: str | None = None  # the run that holds its node
    silence: float = 0.0  # seconds without a sign of life, once they are too many
    ended: bool = False  # its stream is closed
    stopped: bool = False  # we ended it: how it went is no evidence
    lost_reason: str | None = None  # why, when the run went on without it
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))

    def record(self, event: events.Event) -> None:
        """Keep what this event of the rank says."""
        match event:
            case events.Step():
                self.steps.append(event)
            case events.Monitored():
                self.evaluations.append(event)
            case events.Busy():
                self.busy = event.run
            case _ if name := LAST_OF_ITS_KIND.get(type(event)):
                setattr(self, name, event)

    @property
    def went_well(self) -> bool:
        """Whether it did all it had to."""
        return bool(self.finished and self.exited and self.exited.code == 0 and not self.breach)

    @property
    def vanished(self) -> bool:
        """Whether its stream ended without a word from its launcher."""
        return self.ended and not self.exited and not self.stopped

    @property
    def in_trouble(self) -> bool:
        """Whether it shows that the run will not finish."""
        died = self.exited is not None and self.exited.code != 0
        trouble = self.failed or self.breach or self.silence or self.busy
        return bool(trouble or died or (self.ended and not self.finished))

    def end(self) -> str:
        """What became of a rank that did not finish, by the surest evidence."""
        if self.exited and self.exited.out_of_memory:
            return f"{NO_MEMORY}: {memory_limit(self.exited)}"
        if self.exited and self.exited.signal:
            return f"was killed by {self.exited.signal}"
        if self.vanished:
            return f"is gone: {self.handle.end_reason() if self.handle else 'it was never started'}"
        if self.failed:
            return f"failed: {self.failed.message}"
        if self.exited and self.exited.code:
            return f"ended with exit code {self.exited.code}"
        if self.silence and self.finished:
            return f"has finished, but its launcher is frozen: no sign of life for {self.silence:g} s"
        return f"is frozen: no sign of life for {self.silence:g} s" if self.silence else "ended before it had finished"


def memory_limit(exited: events.Exited) -> str:
    """What killed a rank that ran out of memory."""
    limit, peak = exited.memory_limit_bytes, exited.memory_peak_bytes
    size = f" of {limit / 2**20:.0f} MiB" if limit else ""
    return f"the node's limit{size} killed it" + (f"; peak {peak / 2**20:.0f} MiB" if peak else "")
