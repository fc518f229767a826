"""Figures of runs side by side: step times with their phases, bytes, speed-up, time and bytes to an accuracy.

A Group is the runs of one spec on one runtime: repeats. Step figures leave each run's first step out, as results do.
Speed-up is of samples per second, so that it holds for any batch and for workers at their own pace; its baseline is one
node with the same model, data, precision, runtime and limits. "Without synchronisation" takes the exposed part of it
off both.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from monitor.errors import UserError
from monitor.experiments.grouping import Group
from monitor.results.attempts import spent_until, without_repeats
from monitor.results.result import Result
from monitor.results.text import mean as mean_of_known
from monitor.results.words import flat
from monitor.statistics.estimate import Estimate, ratio
from trainer import events
from trainer.events import PHASES
from trainer.layout import SERVER
from trainer.received import received_lines
from trainer.registry import SYNCS

SecondsOf = Literal["step", "training"]
RateOf = Literal["step", "without_sync", "training"]


def step_seconds(result: Result) -> float | None:
    """Mean over the workers of their mean step, s. None for a run of one step, which is left out."""
    return mean_of_known(rank.step_seconds.mean for rank in result.workers)


def phase_seconds(result: Result) -> dict[str, float | None]:
    """Mean over the workers of each phase of a step, s."""
    seconds = [rank.phase_seconds.by_phase() for rank in result.workers]
    return {phase: mean_of_known(of_rank[phase] for of_rank in seconds) for phase in PHASES}


def step_megabytes(result: Result) -> float | None:
    """Payload that all ranks together sent, per step, MB. What is sent once at the end is spread over the steps."""
    steps = max((rank.steps for rank in result.workers), default=0)
    return sum(rank.sent_bytes for rank in result.ranks) / steps / 1e6 if steps else None


def samples_per_second(result: Result, without_sync: bool = False) -> float | None:
    """Training samples per second of all workers, first step left out; without_sync: as if nothing had been exposed.

    A worker that was lost on the way counts for the part of the steps that it did.
    """
    rate = 0.0
    ranks = [rank for rank in result.ranks if rank.is_worker]
    shares = result.spec.shares or [1] * len(ranks)
    most = max((rank.steps for rank in ranks), default=0)
    for rank, share in zip(ranks, shares, strict=True):
        if not rank.steps:
            continue
        step, exposed = rank.step_seconds.mean, rank.phase_seconds.sync
        if step is None or exposed is None:
            return None
        if without_sync:
            step -= exposed
        rate += result.spec.batch * share / sum(shares) / step * rank.steps / most
    return rate or None


def training_samples_per_second(result: Result) -> float | None:
    """Training samples over seconds of training: with the first step, and with what is done once at the end."""
    seconds = training_seconds(result)
    return result.samples_seen / seconds if seconds and result.samples_seen is not None else None


def training_seconds(result: Result) -> float | None:
    """From the first step to the end of the last, checkpoints and evaluations between them included."""
    return result.seconds.training


def node_seconds(result: Result) -> float | None:
    """Nodes times seconds of training: what the steps cost."""
    training = training_seconds(result)
    return None if training is None else result.spec.nodes * training


def baseline(group: Group, groups: Iterable[Group]) -> Group | None:
    """The one-node runs to hold a group against: of the nearest batch, of one replica where there are such."""
    alike = ("model", "precision", "runtime", "data", "cpus", "memory")
    ours = flat(group.results[0])
    one_node = [
        g
        for g in groups
        if g.results
        and g.nodes == 1
        and g.spec.nproc == 1
        and all(flat(g.results[0])[name] == ours[name] for name in alike)
    ]

    def distance(candidate: Group) -> tuple[int, int]:
        sync = candidate.spec.sync
        order = 1 if sync == group.spec.sync else 2
        if sync in SYNCS and not SYNCS[sync].distributed:
            order = 0
        return abs(candidate.spec.batch - group.spec.batch), order

    return min(one_node, key=distance, default=None)


SECONDS: dict[SecondsOf, Callable[[Result], float | None]] = {"step": step_seconds, "training": training_seconds}
RATES: dict[RateOf, Callable[[Result], float | None]] = {
    "step": samples_per_second,
    "without_sync": lambda result: samples_per_second(result, without_sync=True),
    "training": training_samples_per_second,
}


def speed_up(group: Group, base: Group, what: RateOf = "step") -> Estimate | None:
    """Samples per second, one of RATES, of the group over those of the baseline. None where runs are too short to tell.

    Of a baseline over itself it is 1, and no interval says otherwise.
    """
    if group is base:
        return Estimate(1.0, None, None, len(group.results))
    above, below = (g.each(RATES[what]) for g in (group, base))
    return ratio(above, below) if above and below else None


@dataclass(frozen=True)
class Reached:
    """An accuracy on the test set, and what it took: training alone, evaluations and start-up not counted."""

    step: int
    accuracy: float
    seconds: float
    sent_bytes: int


def reached(result: Result, folder: Path, goal: float) -> Reached | None:
    """The first score of at least `goal`, of those on the way (EVALUATE=, EVALUATOR=1) and the last; None for none.

    Seconds are those of the slowest worker's steps: the score is of what it had done by then. Bytes are what all ranks
    sent in these steps. The last score is of what was brought together at the end, which counts too. Steps that a
    restart lost were spent as well; the time in which no step went on was not. Of a run that went on from a checkpoint
    only its own part is seen. Raises UserError.
    """
    score = _first_score(result, goal)
    if score is None:
        return None
    step, accuracy = score
    recorded = spent_until(events_of(folder), step)
    steps = [event for event in recorded if isinstance(event, events.Step)]
    is_last = result.steps is not None and step >= result.steps
    ends = [event for event in recorded if isinstance(event, events.Trained) and is_last]
    sent = sum(event.sent_bytes for event in (*steps, *ends))
    if any(rank.role == SERVER for rank in result.ranks):
        # Servers say what they sent at the very end only; until then it is what workers got from them.
        sent += sum(event.received_bytes for event in (*steps, *ends))
    return Reached(step, accuracy, _slowest_seconds(steps, ends), sent)


def _first_score(result: Result, goal: float) -> tuple[int, float] | None:
    """Step and accuracy of the first score of at least `goal`; None for none."""
    scores = [(score.step, score.accuracy) for score in result.evaluations]
    if result.test_accuracy is not None and result.steps is not None:
        scores.append((result.steps, result.test_accuracy))
    return next(((step, accuracy) for step, accuracy in sorted(scores) if accuracy >= goal), None)


def _slowest_seconds(steps: list[events.Step], ends: list[events.Trained]) -> float:
    """Seconds of the steps of the slowest rank, and of bringing together at the end what was still apart."""
    seconds: dict[int, float] = {}
    for step in steps:
        seconds[step.rank] = seconds.get(step.rank, 0.0) + step.step_seconds
    slowest = max(seconds.values(), default=0.0)
    if any(end.sent_bytes for end in ends):
        last = {step.rank: step.time for step in steps}
        slowest += max(end.time - last.get(end.rank, end.time) for end in ends)
    return slowest


def events_of(folder: Path) -> list[events.Event]:
    """Every event that a run recorded. Raises UserError."""
    try:
        lines = received_lines(folder / "events.jsonl")
        return [event for line in lines if (event := events.parse(line))]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"run {folder.name}: events.jsonl cannot be read ({error})") from None


def steps_of(folder: Path) -> list[events.Step]:
    """Every step that a run recorded, once: as it was done last. Raises UserError."""
    return [event for event in without_repeats(events_of(folder)) if isinstance(event, events.Step)]
