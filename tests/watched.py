"""A run that seems to go on: its folder, to which a test adds what ranks would have said and nodes have used."""

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

from report_cases import begun, write_document

from monitor.metrics.sampling import Row, _cells, _text
from monitor.results.machine import process_start
from monitor.runtime.local import LocalRuntime
from monitor.watch.facts import Facts, facts_of
from trainer import events
from trainer.events import PHASES
from trainer.spec import RunSpec

ZERO = 1_800_000_000.0  # Unix seconds of its first event
SECONDS = dict.fromkeys(PHASES, 0.1)


def ready(rank: int, steps: int, when: float = ZERO, **more) -> events.Ready:
    """The first step comes next."""
    counts = {"parameters": 1, "gradient_bytes": 4, "train_samples": 8, "test_samples": 2, "steps_per_epoch": 2}
    return events.Ready(rank=rank, time=when, steps=steps, versions={}, bf16_hint=False, **counts, **more)


def step(rank: int, number: int, when: float | None = None, loss: float | None = 1.0, **more) -> events.Step:
    """A step of half a second; by default the n-th ends n half-seconds after ZERO."""
    facts = {"epoch": 1, "accuracy": 0.5, "samples": 4, "sent_bytes": 1, "received_bytes": 1, "step_seconds": 0.5}
    when = ZERO + 0.5 * number if when is None else when
    return events.Step(rank=rank, time=when, step=number, loss=loss, **(facts | {"seconds": SECONDS} | more))


def fault(text: str, moment: str, after: int, when: float, **more) -> events.Fault:
    """A fault that took a quarter of a second to bring about."""
    return events.Fault(rank=1, time=when, fault=text, moment=moment, step=after, **({"seconds": 0.25} | more))


def row(node: str, second: float, **more) -> Row:
    """A node that uses half a core, 100 MB, and receives 2 MB and sends 1 MB a second."""
    used = {"cpu_seconds_total": 100 + 0.5 * second, "memory_working_set_bytes": 1e8}
    used |= {"network_receive_bytes_total": 2e6 * second, "network_transmit_bytes_total": 1e6 * second}
    return Row(time=ZERO + second, node=node, **(used | more))


def lines(*said: events.Event) -> list[str]:
    """Events as events.jsonl has them."""
    return [events.to_line(event) for event in said]


class Watched:
    """The folder of a run of `nodes` workers, whose orchestrator is this process."""

    def __init__(self, runs: Path, nodes: int = 2, name: str = "20260101-000000-ddp-cnn3-2n-abcdef"):
        self.folder = runs / name
        self.spec = replace(RunSpec(), nodes=nodes, model="cnn3", data="synthetic", batch=8)
        self.document = begun(name, runtime="local", spec=json.loads(self.spec.to_json()))
        self.document |= {"orchestrator_pid": os.getpid(), "orchestrator_start": process_start(os.getpid())}
        write_document(self.folder, self.document)
        (self.folder / "spec.json").write_text(self.spec.to_json())
        (self.folder / "events.jsonl").touch()
        (self.folder / "metrics.csv").write_bytes(_text([list(asdict(Row(time=0, node="")))]))

    @property
    def facts(self) -> Facts:
        """What its page begins with."""
        return facts_of(self.folder, self.spec, "made up", LocalRuntime(is_named=True))

    def say(self, *said: events.Event) -> None:
        """Ranks say this."""
        self._add("events.jsonl", "".join(line + "\n" for line in lines(*said)).encode())

    def use(self, *rows: Row) -> None:
        """Nodes have used this."""
        self._add("metrics.csv", _text(map(_cells, rows)))

    def end(self, status: str = "finished", **changes) -> None:
        """The run is over, and this is its result."""
        more = {"train_loss": 1.0, "test_loss": 1.0, "test_accuracy": 0.5, "steps": 1, "ranks": [], "seconds": {}}
        write_document(self.folder, self.document | {"status": status} | more | changes)

    def _add(self, name: str, text: bytes) -> None:
        with (self.folder / name).open("ab") as file:
            file.write(text)
