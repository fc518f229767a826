"""What happened in a run so far, as its live page shows it: points of curves, marks of faults, lines of text.

    story = Story(facts)
    story.take(line)          # of events.jsonl
    story.take_rows(rows)     # of the nodes
    story.since(place)        # what a reader who has come so far has to be told

Items are only added. When some have to go (a restart loses steps, a long run is thinned) a new telling begins, and
readers begin anew. However long a run is, there are at most MOST_STEPS steps and MOST_ROWS rows of a node.
"""

import re
import secrets
from collections.abc import Iterable
from itertools import pairwise

from monitor.conditions.faults import AT_ONCE
from monitor.metrics.rates import LONG_GAP_SECONDS, SHORT_SECONDS, rate
from monitor.metrics.sampling import Row
from monitor.results import sentences
from monitor.results.text import share
from monitor.statistics.joined import joined_loss
from monitor.watch.facts import Facts
from monitor.watch.ranks import Ranks
from trainer import events
from trainer.events import PHASES
from trainer.layout import WORKER

MOST_STEPS = 1000
MOST_ROWS = 1000
MOST_LINES = 200  # of text; later ones are counted
PATIENCE_SECONDS = 10.0  # a worker that did no step for so long, and for three of the others' steps, is not waited for
_STEP = re.compile(r'\{"event": "step", "rank": (\d{1,9}), "time": [^,]{1,30}, "step": (\d{1,9}),')  # as we write it

Place = tuple[str, int]  # a telling, and how many of its items were told
Item = list


class Story:
    """One run. Times of items are seconds since its first event."""

    def __init__(self, facts: Facts):
        self.facts = facts
        self.ranks = Ranks(facts)
        self._workers = [rank for rank, _, role in facts.ranks if role == WORKER]
        self._token, self._telling = secrets.token_hex(4), 0  # another process does not go on where this one was
        self._items: list[Item] = []
        self._rows: dict[str, list[Row]] = {name: [] for name in facts.nodes}
        self._every = 1.0  # seconds between two rows that are kept
        self._began: float | None = None  # Unix seconds of the first event
        self._zero: float | None = None  # of the beginning of the first step
        self._stride = 1  # of so many steps one is shown
        self._last = self._before = 0
        self._marks: list[str] = []  # the faults that are in force; "" for what else is marked
        self._lines = 0
        self._begin_attempt(0)

    def _begin_attempt(self, step: int) -> None:
        """The run goes on from this step."""
        self._shown = step
        self._open: dict[int, dict[int, events.Step]] = {}  # by number, of steps that not all workers have done
        self._seen: dict[int, float] = {}  # by worker: when it did its last step

    def take(self, line: str) -> None:
        """A line of events.jsonl. Steps that are not shown are not even parsed."""
        if (step := _STEP.match(line)) and not self._is_shown(int(step[2])):
            self.ranks.reach(int(step[1]), int(step[2]))
        elif event := events.parse(line):
            self._take_event(event)

    def _is_shown(self, step: int) -> bool:
        return step % self._stride == 0 or step in (self._before + 1, self._last)

    def _take_event(self, event: events.Event) -> None:
        if self._began is None:
            self._began = event.time
        self.ranks.take(event)
        match event:
            case events.Ready():
                self._last, self._before = event.steps, event.steps_before
                self._stride = max(1, -(-(event.steps - event.steps_before) // MOST_STEPS))
            case events.Step():
                self._take_step(event)
            case events.Monitored():
                self._items.append(["score", event.step, _rounded(event.loss)])
                self._tell(event, f"test set at step {event.step}: accuracy {share(event.accuracy)}")
            case events.Evaluated():
                self._items.append(["score", self._last, _rounded(event.loss)])
                self._tell(event, f"test set after the last step: accuracy {share(event.accuracy)}")
            case events.Checkpoint():
                self._tell(event, f"checkpoint at step {event.step}: {event.bytes / 1e6:.1f} MB")
            case events.Warning():
                self._tell(event, f"warning: {event.message}")
            case events.Failed():
                self._tell(event, f"rank {event.rank} failed: {event.message}")
            case events.Fault():
                self._take_fault(event)
            case events.Restart():
                self._take_restart(event)

    def _take_step(self, step: events.Step) -> None:
        if self._zero is None:
            self._zero = step.time - step.step_seconds
        if step.step <= self._shown or step.samples < 1:
            return  # its line was drawn without this rank
        if not self._seen:
            self._seen = dict.fromkeys(self._workers, step.time)
        self._seen[step.rank] = step.time
        self._open.setdefault(step.step, {})[step.rank] = step
        patience = PATIENCE_SECONDS + 3 * self._stride * step.step_seconds
        waited_for = {rank for rank, when in self._seen.items() if when > step.time - patience}
        for number in sorted(self._open):
            if not waited_for <= self._open[number].keys():
                return
            self._show(number, list(self._open.pop(number).values()))

    def _show(self, number: int, parts: list[events.Step]) -> None:
        """A step, by those who did it: the loss of their joined batch, and mean seconds by phase."""
        self._shown = number
        phases = [sum(part.seconds.get(phase, 0.0) for part in parts) / len(parts) for phase in PHASES]
        self._items.append(["step", number, _rounded(joined_loss(parts)), *map(_rounded, phases)])

    def _take_fault(self, event: events.Fault) -> None:
        lasts = not event.fault.startswith(AT_ONCE)
        if event.moment == "begin":
            self._mark(event.fault, event.fault.split("@")[0], lasts, event.step, event.time - event.seconds)
        elif lasts and event.fault in self._marks:
            number = self._marks.index(event.fault)
            self._marks[number] = ""  # another one of the same words comes later
            self._items.append(["over", number, event.step, self._at(event.time)])
        if event.moment == "begin" or lasts:
            failure = f": {event.error}" if event.error else ""
            self._tell(event, f"fault {event.fault} {event.moment}s after step {event.step}{failure}")

    def _mark(self, name: str, label: str, lasts: bool, step: int, when: float) -> None:
        """A mark in all plots: at a step, and at a time."""
        self._items.append(["mark", len(self._marks), label, lasts, step, self._at(when)])
        self._marks.append(name)

    def _take_restart(self, event: events.Restart) -> None:
        def is_lost(item: Item) -> bool:
            return item[0] in ("step", "score") and item[1] > event.from_step

        self._begin_attempt(event.from_step)
        self._retell([item for item in self._items if not is_lost(item)])
        self._mark("", "restart", False, event.from_step, event.time)
        self._tell(event, f"restart {event.attempt}: {sentences.of_restart(event)}")

    def _tell(self, event: events.Event, text: str) -> None:
        """A line of text."""
        self._lines += 1
        if self._lines <= MOST_LINES:
            self._items.append(["line", self._at(event.time), text])
        elif self._lines == MOST_LINES + 1:
            self._items.append(["line", self._at(event.time), "more was said; events.jsonl has all of it"])

    def _at(self, when: float) -> float:
        return round(when - (self._began or when), 2)

    def take_rows(self, rows: Iterable[Row]) -> None:
        """Rows of the nodes, each node's in order of time. Rows of other nodes are passed over."""
        for row in rows:
            rows_before = self._rows.get(row.node)
            if rows_before is None or (rows_before and row.time - rows_before[-1].time < self._every - SHORT_SECONDS):
                continue
            if self._began is None:
                self._began = row.time
            self._items.append(self._row_item(rows_before[-1] if rows_before else row, row))
            rows_before.append(row)
            if len(rows_before) > MOST_ROWS:
                self._thin()

    def _row_item(self, before: Row, row: Row) -> Item:
        def grown(column: str, scale: float) -> float | None:
            return _rounded(rate(before, row, column, scale, self.gap_seconds)) if before is not row else None

        memory = row.memory_working_set_bytes
        return [
            "row",
            self.facts.nodes.index(row.node),
            self._at(row.time),
            grown("cpu_seconds_total", 100),
            None if memory is None else _rounded(memory / 1e6),
            grown("network_receive_bytes_total", 1e-6),
            grown("network_transmit_bytes_total", 1e-6),
        ]

    @property
    def gap_seconds(self) -> float:
        """Between two rows of a node: a longer time is a gap in its curves."""
        return LONG_GAP_SECONDS + self._every - 1.0

    def _thin(self) -> None:
        """Keep every second row; rates are then of twice the time."""
        self._every *= 2
        items = [item for item in self._items if item[0] != "row"]
        for name, rows in self._rows.items():
            thinned = rows[::2]
            self._rows[name] = thinned
            items += [self._row_item(before, row) for before, row in pairwise([*thinned[:1], *thinned])]
        self._retell(items)

    def _retell(self, items: list[Item]) -> None:
        self._items, self._telling = items, self._telling + 1

    @property
    def telling(self) -> str:
        """The name of the present one."""
        return f"{self._token}-{self._telling}"

    def since(self, place: Place | None) -> tuple[bool, list[Item], Place]:
        """What comes after this place: whether it begins anew, its items, and the place after them."""
        anew = place is None or place[0] != self.telling or not 0 <= place[1] <= len(self._items)
        items = self._items if anew or place is None else self._items[place[1] :]
        return anew, items, (self.telling, len(self._items))

    def head(self) -> dict:
        """What a telling begins with."""
        facts = self.facts
        return {
            "run": facts.run,
            "what": facts.what,
            "nodes": facts.nodes,
            "remark": facts.remark,
            "gap": self.gap_seconds,
        }

    def now(self) -> dict:
        """How far the run is, in words and by rank. Only the newest counts."""
        zero = None if self._zero is None else self._at(self._zero)
        return {"zero": zero, "text": self.ranks.text(self._zero), "ranks": self.ranks.table()}


def _rounded(value: float | None) -> float | None:
    """With five digits: a curve shows no more."""
    return None if value is None else float(f"{value:.5g}")
