"""The result of a run, from what the orchestrator knows of it when it begins and when it has ended."""

import math
import os
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from monitor.metrics.sampling import Row, summarise
from monitor.results.machine import host, own_version, process_start
from monitor.results.parts import (
    MOST,
    MOST_LINES,
    CheckpointEntry,
    DataInfo,
    Error,
    Evaluation,
    FaultRecord,
    Limits,
    Link,
    LostWorker,
    PhaseSeconds,
    Rank,
    Restart,
    ResumedFrom,
    Seconds,
    Spec,
    Staleness,
    StartupParts,
    StepSeconds,
)
from monitor.results.result import FAILED, FINISHED, RUNNING, SCHEMA, Result
from monitor.results.scores import class_scores, percentile
from monitor.run.attempts import Attempt
from monitor.run.rank_state import RankState
from monitor.run.verdict import Failure
from monitor.statistics.joined import joined_loss
from trainer.events import PHASES, Evaluated, Ready, Step, Trained
from trainer.spec import RunSpec


@dataclass(frozen=True)
class RunRecord:
    """What the recorder knows of a run that has ended. Times are Unix seconds.

    `node_names`, `roles` and `ranks` are by rank. `ranks`: what counts of all attempts; `first`: the attempt with the
    first step; `links`: what was asked for and what was measured.
    """

    node_names: Sequence[str]
    roles: Sequence[str]
    ranks: Sequence[RankState]
    first: Attempt
    restarts: Sequence[Restart]
    links: Sequence[Mapping]
    faults: Sequence[FaultRecord]
    failure: Failure | None
    evaluated: Evaluated | None
    checkpoints: Sequence[CheckpointEntry]
    warnings: Sequence[str]
    rows: Sequence[Row]
    began: float
    ended: float

    @property
    def ready(self) -> Ready | None:
        """What a rank said when it had built its model; None when none came that far."""
        return next((rank.ready for rank in self.ranks if rank.ready), None)

    @property
    def trained(self) -> Trained | None:
        """What a rank said after its last step."""
        return next((rank.trained for rank in self.ranks if rank.trained), None)


def begin(
    run_id: str,
    runtime: str,
    spec: RunSpec,
    data: DataInfo,
    *,
    limits: Sequence[Mapping],
    links: Sequence[Mapping],
    faults: Sequence[FaultRecord] = (),
    resumed_from: ResumedFrom | None = None,
) -> Result:
    """The result of a run that has only just begun: what `runs` shows should the orchestrator be killed.

    `limits` and `links` are of each node, as a Runtime has them.
    """
    return Result(
        schema_=SCHEMA,
        id=run_id,
        status=RUNNING,
        error=None,
        runtime=runtime,
        spec=Spec.of(spec),
        limits=[Limits.model_validate(limit) for limit in limits],
        links=[Link.model_validate(link) for link in links],
        faults=list(faults),
        resumed_from=resumed_from,
        data=data,
        orchestrator_pid=os.getpid(),
        orchestrator_start=process_start(os.getpid()),
        host=host(),
    )


def complete(start: Result, record: RunRecord) -> Result:
    """The whole result of a run that began as `start`. Every value that is not known is None."""
    ready, trained, evaluated, failure = record.ready, record.trained, record.evaluated, record.failure
    samples = (ready.train_samples, ready.test_samples) if ready else (None, None)
    return Result(
        schema_=SCHEMA,
        id=start.id,
        status=FAILED if failure else FINISHED,
        error=error(failure) if failure else None,
        runtime=start.runtime,
        spec=start.spec,
        limits=start.limits,
        links=[Link.model_validate(link) for link in record.links],
        faults=list(record.faults),
        resumed_from=start.resumed_from,
        data=DataInfo(label=start.data.label, key=start.data.key, train_samples=samples[0], test_samples=samples[1]),
        host=start.host,
        versions={"syncbed": own_version()} | (ready.versions if ready else {}),
        parameters=ready.parameters if ready else None,
        gradient_bytes=ready.gradient_bytes if ready else None,
        steps=ready.steps if ready else None,
        ranks=ranks(record),
        train_loss=_finite(train_loss(record.ranks)),
        test_loss=_finite(evaluated.loss) if evaluated else None,
        test_accuracy=_finite(evaluated.accuracy) if evaluated else None,
        test_samples_counted=evaluated.samples if evaluated else None,
        classes=evaluated.classes if evaluated else None,
        per_class=class_scores(evaluated.confusion_matrix, evaluated.classes) if evaluated else None,
        confusion_matrix=evaluated.confusion_matrix if evaluated else None,
        distinct_samples=trained.distinct_samples if trained else None,
        samples_seen=sum(step.samples for rank in record.ranks for step in rank.steps),
        synchronisations=trained.synchronisations if trained else None,
        lost_workers=lost_workers(record.ranks),
        evaluations=evaluations(record),
        checkpoints=list(record.checkpoints)[-MOST:],
        warnings=few(record.warnings),
        restarts=list(record.restarts),
        seconds=seconds(record),
    )


def few(warnings: Sequence[str]) -> list[str]:
    """As many as a result holds; the last says how many more there were."""
    if len(warnings) <= MOST_LINES:
        return list(warnings)
    kept = list(warnings[: MOST_LINES - 1])
    return [*kept, f"{len(warnings) - len(kept)} more warnings, which are in events.jsonl"]


def error(failure: Failure) -> Error:
    """Why the run failed, as a result says it."""
    return Error(
        kind=failure.kind,
        message=failure.message,
        rank=failure.rank,
        last_lines=list(failure.last_lines),
        traceback=failure.traceback,
    )


def ranks(record: RunRecord) -> list[Rank]:
    """What each rank did."""
    restarts = [restart.from_step for restart in record.restarts]
    each = zip(record.node_names, record.roles, record.ranks, strict=True)
    return [rank_summary(rank, *of_rank, record.rows, restarts) for rank, of_rank in enumerate(each)]


def rank_summary(
    rank: int, node: str, role: str, state: RankState, rows: Sequence[Row], restarts: Sequence[int] = ()
) -> Rank:
    """One rank's figures. Bytes are payload of its collectives; CPU, throttling and network are its node's.

    `restarts`: the steps that the run was restarted from; the first one after each is left out as the very first is.
    """
    counted = [step for step in state.steps[1:] if step.step - 1 not in restarts]
    traffic = [event for event in (*state.steps, state.trained, state.served, state.watched) if event]
    window = None if restarts else state.trained or state.served  # which tell of the last attempt alone
    figures = summarise([row for row in rows if row.node == node], node)
    return Rank(
        rank=rank,
        node=node,
        role=role,
        steps=len(state.steps),
        step_seconds=step_seconds(counted),
        phase_seconds=phase_seconds(counted),
        sent_bytes=sum(event.sent_bytes for event in traffic),
        received_bytes=sum(event.received_bytes for event in traffic),
        interface_sent_bytes=window.interface_sent_bytes if window else None,
        interface_received_bytes=window.interface_received_bytes if window else None,
        updates=state.served.updates if state.served else None,
        staleness=staleness(state),
        peak_memory_bytes=state.finished.peak_memory_bytes if state.finished else None,
        cpu_seconds=state.finished.cpu_seconds if state.finished else None,
        peak_cpu_percent=figures["peak_cpu_percent"],
        throttled_seconds=figures["throttled_seconds"],
        node_peak_memory_bytes=figures["peak_memory_bytes"],
        network_received_bytes=figures["network_received_bytes"],
        network_sent_bytes=figures["network_sent_bytes"],
    )


def step_seconds(steps: Sequence[Step]) -> StepSeconds:
    """Wall time of these steps."""
    values = [step.step_seconds for step in steps]
    return StepSeconds(
        mean=statistics.fmean(values) if values else None,
        median=statistics.median(values) if values else None,
        p95=percentile(values, 95),
    )


def phase_seconds(steps: Sequence[Step]) -> PhaseSeconds:
    """Mean seconds of each phase of these steps."""
    means = {phase: statistics.fmean(step.seconds[phase] for step in steps) if steps else None for phase in PHASES}
    return PhaseSeconds(**means)


def staleness(state: RankState) -> Staleness | None:
    """How stale a worker's updates were, where there is such a thing. In the histogram rounded to whole updates."""
    values = [step.staleness for step in state.steps if step.staleness is not None]
    if not values:
        return None
    histogram = {str(count): times for count, times in sorted(Counter(map(round, values)).items())}
    return Staleness(mean=statistics.fmean(values), max=max(values), histogram=histogram)


def train_loss(ranks: Sequence[RankState]) -> float | None:
    """Mean loss of the last step's global batch, weighted by each rank's samples, before that step's update."""
    last = [rank.steps[-1] for rank in ranks if rank.steps and not rank.lost_reason]
    return joined_loss(last) if len({step.step for step in last}) == 1 else None


def lost_workers(ranks: Sequence[RankState]) -> list[LostWorker]:
    """The workers that the others went on without."""
    return [
        LostWorker(rank=rank, step=state.steps[-1].step, reason=state.lost_reason)
        for rank, state in enumerate(ranks)
        if state.lost_reason
    ]


def evaluations(record: RunRecord) -> list[Evaluation]:
    """The last scores while training went on, as many as a result holds, with seconds since the command."""
    scores = [
        Evaluation(
            step=event.step,
            updates=event.updates,
            loss=_finite(event.loss),
            accuracy=event.accuracy,
            seconds=event.time - record.began,
        )
        for rank in record.ranks
        for event in rank.evaluations
    ]
    return scores[-MOST:]


def seconds(record: RunRecord) -> Seconds:
    """Where the time went. Start-up ends when the first step begins; its parts add up to it.

    Training is from there to the end of the last step, with what was lost to restarts: `recovery` of it.
    """
    start = record.first.first_step
    startup = parts = training = None
    if start is not None:
        launched = max((rank.started.time for rank in record.first.ranks if rank.started), default=start)
        startup = start - record.began
        parts = StartupParts(prepare_and_launch=launched - record.began, import_and_build=start - launched)
        ends = [rank.trained for rank in record.ranks if rank.trained]
        spans = [end.time - start if record.restarts else end.seconds for end in ends]
        training = max(spans, default=None)
    return Seconds(
        startup=startup,
        startup_parts=parts,
        training=training,
        recovery=sum(restart.lost_seconds + (restart.startup_seconds or 0.0) for restart in record.restarts),
        evaluation=record.evaluated.seconds if record.evaluated else None,
        total=record.ended - record.began,
    )


def _finite(value: float | None) -> float | None:
    """The value; None for one that is not finite, which JSON cannot hold."""
    return value if value is not None and math.isfinite(value) else None
