"""What each rank does now, and how far the run is."""

from dataclasses import dataclass

from monitor.results.text import duration, number
from monitor.watch.facts import Facts
from trainer import events


@dataclass
class RankNow:
    """One rank. `loss` and `seconds`: of the last step that was looked at."""

    state: str = "starting"
    step: int = 0
    loss: float | None = None
    seconds: float | None = None


class Ranks:
    """All ranks of a run."""

    def __init__(self, facts: Facts):
        self._seats = facts.ranks
        self._nodes = facts.nodes
        self._now = {rank: RankNow() for rank, _, _ in facts.ranks}
        self._steps = self._before = 0
        self._newest: events.Step | None = None

    def reach(self, rank: int, step: int) -> None:
        """A rank did a step of which no more is known."""
        if now := self._now.get(rank):
            now.step = step

    def take(self, event: events.Event) -> None:
        """What an event changes."""
        if isinstance(event, events.Restart):
            self._now = {rank: RankNow(step=event.from_step) for rank in self._now}
            return
        now = self._now.get(event.rank)
        if now is None:
            return
        match event:
            case events.Ready():
                now.state, self._steps, self._before = "ready", event.steps, event.steps_before
            case events.Step():
                now.state, now.step, now.loss, now.seconds = "training", event.step, event.loss, event.step_seconds
                self._newest = event
            case events.Trained() | events.Monitored():
                now.state = "evaluating"
            case events.Finished():
                now.state = "finished"
            case events.Failed():
                now.state = "failed"
            case events.Exited() if now.state not in ("finished", "failed"):
                now.state = "ended"

    def text(self, zero: float | None) -> str:
        """How far the run is. `zero`: Unix seconds at which the first step began."""
        states = {now.state for now in self._now.values()}
        if "evaluating" in states and "training" not in states:
            return "evaluating on the test set"
        if self._newest is None or zero is None:
            return "ready" if states == {"ready"} else "starting"
        step = max(now.step for now in self._now.values())
        text = f"step {step} of {self._steps}"
        done = self._newest.step - self._before
        if done > 0 and step < self._steps:
            left = (self._newest.time - zero) / done * (self._steps - step)
            text += f", {number(self._newest.step_seconds, 3)} s a step, about {duration(left)} left"
        return text

    def table(self) -> list[list]:
        """A row for each rank: its number, role, node, state, step, loss, seconds of a step."""
        rows = []
        for rank, node, role in self._seats:
            now = self._now[rank]
            name = self._nodes[node] if node < len(self._nodes) else str(node)
            figures = [number(now.loss, 3), number(now.seconds, 3)]
            rows.append([rank, role, name, now.state, now.step or "-", *figures])
        return rows
