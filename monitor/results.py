"""result.json: what a run came to. Built from events and node figures only; schema in docs/result.md.

Step statistics leave the first step out, as the reports do: it pays for memory allocation and warm caches.
"""

import errno
import json
import math
import os
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import psutil

from monitor.errors import UserError
from monitor.machine import host, own_version, process_start
from monitor.recovery import Attempt
from monitor.sampling import Row, summarise
from monitor.verdict import Failure, RankState
from trainer.events import PHASES, Evaluated, Step, finite
from trainer.spec import RunSpec

SCHEMA = 1
RUNNING, FINISHED, FAILED = "running", "finished", "failed"
WHOLE = {"id", "runtime", "spec", "data", "host", "ranks", "steps", "evaluations", "seconds"}
WHOLE |= {"train_loss", "test_loss", "test_accuracy"}
RANK = {"steps", "step_seconds", "phase_seconds", "sent_bytes"}


def begin(
    run_id: str, runtime: str, spec: RunSpec, data: dict, conditions: dict, resumed_from: dict | None = None
) -> dict:
    """The result of a run that has only just begun: what `runs` shows should the orchestrator be killed.

    `conditions`: `limits` and `links`, as a Runtime has them.
    """
    return {
        "schema": SCHEMA,
        "id": run_id,
        "status": RUNNING,
        "error": None,
        "runtime": runtime,
        "spec": asdict(spec),
        **conditions,
        "resumed_from": resumed_from,
        "data": data,
        "orchestrator_pid": os.getpid(),
        "orchestrator_start": process_start(os.getpid()),
        "host": host(),
    }


def complete(
    result: dict,
    *,
    ranks: list[RankState],
    first: Attempt,
    restarts: list[dict],
    node_names: list[str],
    roles: list[str],
    failure: Failure | None,
    evaluated: Evaluated | None,
    checkpoints: list[dict],
    warnings: list[str],
    rows: list[Row],
    began: float,
    ended: float,
) -> dict:
    """The whole result. `began` and `ended` are Unix seconds of the command; every value that is not known is None.

    `ranks`: what counts of all attempts; `first`: the one with the first step.
    """
    result = {key: value for key, value in result.items() if not key.startswith("orchestrator_")}
    ready = next((rank.ready for rank in ranks if rank.ready), None)
    trained = next((rank.trained for rank in ranks if rank.trained), None)
    result |= {
        "status": FAILED if failure else FINISHED,
        "error": asdict(failure) if failure else None,
        "data": result["data"]
        | {
            "train_samples": ready.train_samples if ready else None,
            "test_samples": ready.test_samples if ready else None,
        },
        "versions": {"syncbed": own_version()} | (ready.versions if ready else {}),
        "parameters": ready.parameters if ready else None,
        "gradient_bytes": ready.gradient_bytes if ready else None,
        "steps": ready.steps if ready else None,
        "ranks": [
            rank_summary(rank, *who, rows, [one["from_step"] for one in restarts])
            for rank, who in enumerate(zip(node_names, roles, ranks, strict=True))
        ],
        "train_loss": train_loss(ranks),
        "test_loss": evaluated.loss if evaluated else None,
        "test_accuracy": evaluated.accuracy if evaluated else None,
        "test_samples_counted": evaluated.samples if evaluated else None,
        "classes": evaluated.classes if evaluated else None,
        "per_class": per_class(evaluated.confusion_matrix, evaluated.classes) if evaluated else None,
        "confusion_matrix": evaluated.confusion_matrix if evaluated else None,
        "distinct_samples": trained.distinct_samples if trained else None,
        "samples_seen": sum(step.samples for rank in ranks for step in rank.steps),
        "synchronisations": trained.synchronisations if trained else None,
        "lost_workers": [
            {"rank": rank, "step": state.steps[-1].step, "reason": state.lost}
            for rank, state in enumerate(ranks)
            if state.lost
        ],
        "evaluations": [
            {"step": e.step, "updates": e.updates, "loss": e.loss, "accuracy": e.accuracy, "seconds": e.time - began}
            for rank in ranks
            for e in rank.evaluations
        ],
        "checkpoints": checkpoints,
        "warnings": warnings,
        "restarts": restarts,
        "seconds": seconds(ranks, first, restarts, evaluated, began, ended),
    }
    return finite(result)


def rank_summary(
    rank: int, node: str, role: str, state: RankState, rows: list[Row], restarted: Sequence[int] = ()
) -> dict:
    """One rank's figures. Bytes are payload of its collectives; CPU, throttling and network are its node's.

    `restarted`: the steps that the run was restarted from; the first one after each is left out as the very first is.
    """
    counted = [step for step in state.steps[1:] if step.step - 1 not in restarted]
    whole = [step.step_seconds for step in counted]
    traffic = [event for event in (*state.steps, state.trained, state.served, state.watched) if event]
    window = None if restarted else state.trained or state.served  # which tell of the last attempt alone
    own = summarise([row for row in rows if row.node == node], node)
    return {
        "rank": rank,
        "node": node,
        "role": role,
        "steps": len(state.steps),
        "step_seconds": {
            "mean": statistics.fmean(whole) if whole else None,
            "median": statistics.median(whole) if whole else None,
            "p95": percentile(whole, 95),
        },
        "phase_seconds": {p: statistics.fmean(s.seconds[p] for s in counted) if counted else None for p in PHASES},
        "sent_bytes": sum(event.sent_bytes for event in traffic),
        "received_bytes": sum(event.received_bytes for event in traffic),
        "interface_sent_bytes": window.interface_sent_bytes if window else None,
        "interface_received_bytes": window.interface_received_bytes if window else None,
        "updates": state.served.updates if state.served else None,
        "staleness": staleness(state),
        "peak_memory_bytes": state.finished.peak_memory_bytes if state.finished else None,
        "cpu_seconds": state.finished.cpu_seconds if state.finished else None,
        "peak_cpu_percent": own["peak_cpu_percent"],
        "throttled_seconds": own["throttled_seconds"],
        "node_peak_memory_bytes": own["peak_memory_bytes"],
        "network_received_bytes": own["network_received_bytes"],
        "network_sent_bytes": own["network_sent_bytes"],
    }


def staleness(state: RankState) -> dict | None:
    """How stale a worker's updates were, where there is such a thing. In the histogram rounded to whole updates."""
    values = [step.staleness for step in state.steps if step.staleness is not None]
    if not values:
        return None
    histogram = {str(count): times for count, times in sorted(Counter(map(round, values)).items())}
    return {"mean": statistics.fmean(values), "max": max(values), "histogram": histogram}


def percentile(values: list[float], percent: float) -> float | None:
    """The nearest-rank percentile: a value that was measured, never one in between. None for no values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)] if ordered else None


def train_loss(ranks: list[RankState]) -> float | None:
    """Mean loss of the last step's global batch, weighted by each rank's samples, before that step's update."""
    last = [rank.steps[-1] for rank in ranks if rank.steps and not rank.lost]
    return joined_loss(last) if len({step.step for step in last}) == 1 else None


def joined_loss(steps: list[Step]) -> float | None:
    """The loss of the workers' joined batch: their mean, weighted by samples. None where one of them is not finite."""
    if any(step.loss is None for step in steps):
        return None
    return sum(step.loss * step.samples for step in steps) / sum(step.samples for step in steps)


def per_class(matrix: list[list[int]], classes: list[str]) -> list[dict]:
    """Precision, recall, F1 and support of each class from a confusion matrix [true][predicted]. 0 / 0 counts as 0."""
    report = []
    for k, name in enumerate(classes):
        hits, support, claimed = matrix[k][k], sum(matrix[k]), sum(row[k] for row in matrix)
        precision, recall = hits / claimed if claimed else 0.0, hits / support if support else 0.0
        f1 = 2 * precision * recall / (precision + recall) if hits else 0.0
        report.append({"class": name, "precision": precision, "recall": recall, "f1": f1, "support": support})
    return report


def seconds(
    ranks: list[RankState],
    first: Attempt,
    restarts: list[dict],
    evaluated: Evaluated | None,
    began: float,
    ended: float,
) -> dict:
    """Where the time went. Start-up ends when the first step begins; its parts add up to it.

    Training is from there to the end of the last step, with what was lost to restarts: `recovery` of it.
    """
    start = first.first_step
    parts = None
    if start is not None:
        launched = max(rank.started.time for rank in first.ranks if rank.started)
        parts = {"prepare_and_launch": launched - began, "import_and_build": start - launched}
    trained = [rank.trained.time - start if restarts else rank.trained.seconds for rank in ranks if rank.trained]
    return {
        "startup": start - began if parts else None,
        "startup_parts": parts,
        "training": max(trained) if trained else None,
        "recovery": sum(one["lost_seconds"] + (one["startup_seconds"] or 0.0) for one in restarts),
        "evaluation": evaluated.seconds if evaluated else None,
        "total": ended - began,
    }


def reserve(folder: Path, classes: int) -> None:
    """Take room on the disk for the next `save`, so that a disk which fills up during a run has some for its result.

    Raises OSError when there is too little.
    """
    with _part(folder).open("wb") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, 65536 + 16 * classes**2)  # a confusion matrix is the largest part
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                _part(folder).unlink()
                raise  # other errors: this file system cannot reserve


def save(result: dict, folder: Path) -> None:
    """Write result.json whole or not at all, into the room that was reserved. Raises OSError."""
    part = _part(folder)
    text = json.dumps(result, indent=1, allow_nan=False) + "\n"
    try:
        with part.open("r+" if part.exists() else "w", encoding="utf-8") as file:
            file.write(text)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
        part.replace(folder / "result.json")
    except OSError:
        part.unlink(missing_ok=True)
        raise


def _part(folder: Path) -> Path:
    return folder / "result.json.part"


def load(run: str, runs: Path) -> dict:
    """The result of a run by id, or of the latest. Raises UserError in one line when it cannot be read."""
    folder = runs / run
    try:
        result = json.loads((folder / "result.json").read_text())
        if not isinstance(result, dict) or not isinstance(result.get("schema"), int):
            raise ValueError("not a result of syncbed")
    except FileNotFoundError:
        have = ", ".join(path.name for path in folders(runs)[:3]) or "none yet"
        swept = next((f for f in sorted(Path("sweeps").glob("*")) if (f / run / "result.json").is_file()), None)
        more = f"; RUNS_DIR={swept} has it" if swept else ""
        raise UserError(f"run {run}: not found in {runs} (newest: {have}){more}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"run {run}: result.json cannot be read ({error})") from None
    if result["schema"] > SCHEMA:
        raise UserError(
            f"run {run}: result schema {result['schema']} is newer than this syncbed reads ({SCHEMA}); update syncbed"
        )
    if not isinstance(result.get("status"), str):
        raise UserError(f"run {run}: result.json cannot be read (it has no status)")
    if result["status"] == RUNNING and not _goes_on(result):
        error = {"kind": "orchestrator", "message": "the orchestrator was killed before it could write a result"}
        result |= {"status": FAILED, "error": error | {"rank": None, "last_lines": [], "traceback": ""}}
    return result


def _goes_on(result: dict) -> bool:
    """Whether the orchestrator that began this run lives. Where its start is not known, its id has to do."""
    pid, start = result.get("orchestrator_pid"), result.get("orchestrator_start")
    if not (isinstance(pid, int) and pid > 0):
        return False
    return process_start(pid) == start if start else psutil.pid_exists(pid)


def whole(result: dict) -> bool:
    """Whether a result has what `complete` writes. One that does not is of a run that has not ended, or is damaged."""
    parts = {"ranks": list, "spec": dict, "seconds": dict}
    if not result.keys() >= WHOLE or any(not isinstance(result[name], kind) for name, kind in parts.items()):
        return False
    ranks = all(isinstance(rank, dict) and rank.keys() >= RANK for rank in result["ranks"])
    return ranks and "training" in result["seconds"]


def folders(runs: Path) -> list[Path]:
    """The run folders, newest first. Ids begin with the time, so names sort by age. Raises UserError."""
    try:
        found = [path for path in runs.iterdir() if (path / "result.json").exists()] if runs.is_dir() else []
    except OSError as error:
        raise UserError(f"RUNS_DIR={runs}: cannot be read ({error.strerror or error})") from None
    return sorted((path for path in found if not path.is_symlink()), key=lambda path: path.name, reverse=True)
