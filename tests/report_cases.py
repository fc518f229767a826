"""Run folders with known contents, for tests of reports: no training, no clock."""

import json
from dataclasses import asdict
from pathlib import Path

from monitor.metrics.sampling import Row, write_csv
from monitor.results import scores
from monitor.results.result import SCHEMA
from trainer import events
from trainer.events import PHASES
from trainer.spec import RunSpec

ZERO = 1_800_000_000.0  # when the first step begins
SECONDS = dict.fromkeys(PHASES, 0.1) | {"sync": 0.2}


def write_run(folder: Path, nodes: int = 2, steps: int = 4, **changes) -> Path:
    """A run of `nodes` ranks with steps of 0.6 s each, of which loss falls by 0.5 each; `changes` to its result."""
    folder.mkdir(parents=True)
    spec = RunSpec.from_settings({"MODEL": "cnn3", "DATA": "synthetic", "NODES": str(nodes), "BATCH": str(6 * nodes)})
    lines = []
    for step in range(1, steps + 1):
        for rank in range(nodes):
            event = events.Step(
                **{"rank": rank, "step": step, "epoch": 1, "samples": 6, "seconds": SECONDS, "step_seconds": 0.6},
                **{"loss": 3.0 - 0.5 * step + rank, "accuracy": 0.25 * (rank + 1)},
                **{"sent_bytes": 1000, "received_bytes": 1000},
            )
            lines.append(events.to_line(_at(event, ZERO + 0.6 * step)))
    for rank in range(nodes):
        end = events.Trained(
            **{"rank": rank, "seconds": 0.6 * steps, "distinct_samples": 6 * nodes * steps, "synchronisations": steps},
            **{"sent_bytes": 0, "received_bytes": 0, "interface_sent_bytes": 1, "interface_received_bytes": 1},
            lost_workers=[],
        )
        lines.append(events.to_line(_at(end, ZERO + 0.6 * steps)))
    (folder / "events.jsonl").write_text("\n".join(lines) + "\n")
    write_csv(folder / "metrics.csv", rows(nodes))
    write_document(folder, document(folder.name, spec, nodes, steps) | changes)
    return folder


def rows(nodes: int) -> list[Row]:
    """A scrape each second from 2 s before the first step to 8 s after it, with a hole from 3 to 7 in the last node."""
    return [
        Row(
            time=ZERO + second,
            node=f"trainer-{node}",
            cpu_seconds_total=100 + 0.5 * second,
            memory_working_set_bytes=1e6 * (100 + node),
            network_receive_bytes_total=2e6 * second + 1e7,
            network_transmit_bytes_total=1e6 * second + 1e7,
            network_receive_packets_total=10.0 * second + 100,
            network_transmit_packets_total=20.0 * second + 100,
        )
        for second in range(-2, 9)
        for node in range(nodes)
        if node < nodes - 1 or not 3 < second < 7
    ]


def write_document(folder: Path, document: dict) -> None:
    """Write result.json of a run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps(document))


def begun(run_id: str, status: str = "running", **changes) -> dict:
    """What result.json says of a run of which nothing is known but how it began. `changes` to it."""
    spec = json.loads(RunSpec().to_json())
    return {
        **{"schema": SCHEMA, "id": run_id, "status": status, "error": None, "runtime": "docker", "spec": spec},
        **{"limits": [], "links": [], "faults": [], "resumed_from": None, "data": {"label": "made up", "key": "k"}},
        **{"host": {"system": "Linux", "cpu": "a & b", "cores": 2, "memory_bytes": 2**33}},
        **changes,
    }


def ended(run_id: str, **changes) -> dict:
    """What result.json says of a finished run without a rank. `changes` to it."""
    scores = {"train_loss": None, "test_loss": None, "test_accuracy": None}
    return begun(run_id, "finished") | {"steps": 1, "ranks": [], "seconds": {}} | scores | changes


def document(run_id: str, spec: RunSpec, nodes: int, steps: int) -> dict:
    """What result.json says of such a run."""
    matrix = [[2, 1], [0, 3]]
    return begun(run_id, "finished") | {
        **{"spec": asdict(spec), "data": {"key": "k", "label": "made <b>up</b>", "train_samples": 100}},
        "versions": {"torch": "2"},
        **{"parameters": 29186, "gradient_bytes": 116744, "steps": steps, "train_loss": 1.5, "test_loss": 1.25},
        **{"test_accuracy": 5 / 6, "test_samples_counted": 6, "classes": ["<script>", "b"], "confusion_matrix": matrix},
        **{"per_class": per_class(matrix, ["<script>", "b"]), "warnings": [], "lost_workers": []},
        **{"distinct_samples": 48, "samples_seen": 48, "synchronisations": steps, "evaluations": [], "checkpoints": []},
        "seconds": {"startup": 2.0, "training": 0.6 * steps, "evaluation": 0.5, "total": 6.0},
        "ranks": [rank_result(rank, steps) for rank in range(nodes)],
    }


def per_class(matrix: list, names: list[str]) -> list[dict]:
    """The scores of each class as result.json has them."""
    return [score.model_dump(by_alias=True) for score in scores.class_scores(matrix, names)]


def rank_result(rank: int, steps: int) -> dict:
    """One rank's figures."""
    return {
        **{"rank": rank, "node": f"trainer-{rank}", "role": "worker", "steps": steps, "staleness": None},
        **{"step_seconds": {"mean": 0.6, "median": 0.6, "p95": 0.6}, "phase_seconds": SECONDS, "updates": None},
        **{"sent_bytes": 1_000_000 * steps, "received_bytes": 0, "peak_memory_bytes": 500_000_000, "cpu_seconds": 1.0},
        **{"peak_cpu_percent": 50.0 + rank, "throttled_seconds": 0.0, "node_peak_memory_bytes": 101_000_000 + rank},
        **{"network_received_bytes": 20_000_000, "network_sent_bytes": 10_000_000},
    }


def _at(event: events.Event, when: float) -> events.Event:
    return events.parse(json.dumps({"event": type(event).__name__.lower(), **asdict(event), "time": when}))
