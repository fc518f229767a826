"""TODO monitor.run.outcome."""

import os
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from monitor.metrics.sampling import Row, summarise
from monitor.results.machine import host, own_version, process_start
from monitor.results.result import FAILED, FINISHED, RUNNING, SCHEMA
from monitor.results.scores import joined_loss, per_class, percentile
from monitor.run.recovery import Attempt
from monitor.run.verdict import Failure, RankState
from trainer.events import PHASES, Evaluated, finite
from trainer.spec import RunSpec


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


def train_loss(ranks: list[RankState]) -> float | None:
    """Mean loss of the last step's global batch, weighted by each rank's samples, before that step's update."""
    last = [rank.steps[-1] for rank in ranks if rank.steps and not rank.lost]
    return joined_loss(last) if len({step.step for step in last}) == 1 else None


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
