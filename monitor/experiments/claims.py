"""Claims of a report, tested on our own runs: holds, does not hold, or cannot be told here, with the figures.

A claim of a preset names its `test`, one of TESTS, and what that needs. Losses are computed, not measured: they are
compared to a tolerance. Times are measured: a verdict needs the whole 95 % interval on one side, so one repeat, or runs
that scatter, conclude nothing.
"""

import inspect
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveFloat, create_model

from monitor.errors import UserError
from monitor.experiments import figures
from monitor.experiments.figures import RateOf, SecondsOf
from monitor.experiments.grouping import Group
from monitor.results.result import Result
from monitor.statistics.estimate import Estimate, ratio
from monitor.statistics.joined import joined_loss

HOLDS, FAILS, UNKNOWN = "holds", "does not hold", "cannot be told here"
Several = Annotated[list[str], Field(min_length=2)]  # names of runs


class Strict(BaseModel):
    """A part of a preset: every value is of the type that is said, and nothing else is there."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class AnyClaim(Strict):
    """What all claims have; beside it, what their test takes."""

    text: str
    test: str


@dataclass(frozen=True)
class Verdict:
    claim: str
    verdict: str
    figures: str
    reason: str


class NotThere(Exception):
    """A run that the claim needs is missing; str() is the reason."""


def judge(claim: "Claim", groups: dict[str, Group]) -> Verdict:
    """The verdict on a claim. `groups`: by label. Raises UserError for a claim of runs that do not exist."""
    needs = dict(claim)
    text, test = needs.pop("text"), needs.pop("test")
    try:
        for name in _run_names(needs):
            _find(groups, name)
        return Verdict(text, *TESTS[test](lambda name: _finished(groups, name), **needs))
    except NotThere as missing:
        return Verdict(text, UNKNOWN, "", str(missing))
    except KeyError as error:
        raise UserError(f"claim {text!r}: {error.args[0]}") from None


def _run_names(needs: dict) -> list[str]:
    """The runs that a claim is about."""
    values = [needs[key] for key in ("of", "over", "than", "alone", "without", "with_it") if key in needs]
    return [name for value in values for name in (value if isinstance(value, list) else [value])]


def _find(groups: dict[str, Group], name: str) -> Group:
    """The group of this label, or by "name | WORD=value" the only one of that name with these words among its own."""
    part, _, rest = name.partition("|")
    part, words = part.strip(), set(rest.split())
    matches = [group for label, group in groups.items() if label == part and not words]
    if not matches:
        for label, group in groups.items():
            more = set(label.removeprefix(part).split())
            if label.startswith(part + " ") and words <= more and all("=" in word for word in more):
                matches.append(group)
    if len(matches) != 1:
        raise KeyError(f"{len(matches) or 'no'} runs are called {name!r}")
    return matches[0]


def _finished(groups: dict[str, Group], name: str) -> Group:
    group = _find(groups, name)
    if not group.results:
        raise NotThere(f"no run of {name} finished")
    return group


def same_loss(get, of: Several, tolerance: NonNegativeFloat = 0.01):
    """The same loss of the last step, to a relative tolerance, on data that each rank has its own part of."""
    groups = {name: get(name) for name in of}
    losses: list[float] = []
    samples: set[int | None] = set()
    firsts = []
    for name, group in groups.items():
        values = group.each(lambda result: result.train_loss)
        if len(values) < len(group.results):
            raise NotThere("a loss is not finite")
        losses += values
        samples |= {result.distinct_samples for result in group.results}
        firsts.append(f"{name} {values[0]:.4f}")
    text = ", ".join(firsts)
    for name, group in groups.items():
        if reason := next(filter(None, map(_why_not_sharded, group.results)), None):
            return UNKNOWN, text, f"the ranks of {name} {reason}"
    apart = (max(losses) - min(losses)) / (max(abs(loss) for loss in losses) or 1)
    count = samples.pop() if len(samples) == 1 else None
    about = "sharded data" if count is None else f"{count:,} distinct training samples, each rank its own"
    verdict = HOLDS if apart <= tolerance else FAILS
    return verdict, text, f"they differ by {100 * apart:.2g} % of the largest, {100 * tolerance:g} % would do; {about}"


def _why_not_sharded(result: Result) -> str | None:
    """Why it cannot be told that each rank had samples of its own; None where it had."""
    train_samples, samples_seen = result.data.train_samples, result.samples_seen
    distinct_samples = result.distinct_samples
    if train_samples is None or samples_seen is None or distinct_samples is None:
        return "did not count their samples"
    epoch, workers = train_samples - train_samples % result.spec.batch, len(result.workers)
    if distinct_samples < min(samples_seen, epoch):
        return "saw the same samples"
    if workers > 1 and samples_seen / workers >= epoch:
        return "trained so long that each may have seen every sample"
    return None


def faster(get, of: Several):
    """Shorter steps, in this order: the first is the fastest."""
    texts, verdicts = [], []
    for fast, slow in pairwise(of):
        times = _ratio(get(slow), get(fast), figures.step_seconds)
        texts.append(f"{slow} takes {times.text(3)} times {fast}")
        verdict = UNKNOWN
        if times.above(1):
            verdict = HOLDS
        elif times.below(1):
            verdict = FAILS
        verdicts.append(verdict)
    text = "; ".join(texts)
    if FAILS in verdicts:
        return FAILS, text, f"{texts[verdicts.index(FAILS)]}: the whole interval is below 1"
    if UNKNOWN in verdicts:
        return UNKNOWN, text, _why_open(texts[verdicts.index(UNKNOWN)], 1)
    return HOLDS, text, "every interval is above 1"


def speed_up(
    get, of: str, over: str, below: PositiveFloat, what: RateOf = "step", published: PositiveFloat | None = None
):
    """Faster than one node, but by less than `below`, which perfect scaling would give."""
    estimate = figures.speed_up(get(of), get(over), what)
    if estimate is None:
        raise NotThere("the runs have too few steps")
    beside = f" (published: {published:g})" if published else ""
    text = f"speed-up {estimate.text(2)}{beside}"
    if estimate.above(1) and estimate.below(below):
        return HOLDS, text, f"the whole interval is above 1 and below {below:g}"
    if estimate.below(1):
        return FAILS, text, "here it is slower than one node"
    if estimate.above(below):
        return FAILS, text, f"the whole interval is above {below:g}"
    return UNKNOWN, text, _why_open(text, 1 if estimate.low is None or estimate.low <= 1 else below)


def apart_without(get, alone: str, without: str, with_it: str, tolerance: NonNegativeFloat = 1e-3):
    """The loss of step 1, before any update, is that of one node `with_it` and is another `without`."""
    one, bare, synced = (_first_loss(get(name)) for name in (alone, without, with_it))
    text = f"first loss: {alone} {one:.5f}, {without} {bare:.5f}, {with_it} {synced:.5f}"
    if abs(synced - one) > tolerance * abs(one):
        return UNKNOWN, text, f"{with_it} should give the loss of {alone} and does not"
    if abs(bare - one) > tolerance * abs(one):
        return HOLDS, text, f"{without} is off by more than {100 * tolerance:g} %, {with_it} is not"
    return FAILS, text, "both give the loss of one node"


def fewer_bytes(get, of: str, than: str, factor: PositiveFloat = 1.0):
    """Less payload per step, by more than `factor`. Bytes are counted, so one run tells."""
    few, many = (get(name).estimate(figures.step_megabytes).value for name in (of, than))
    times = f": {many / few:.2f} times fewer" if few else ""
    text = f"{few:.3f} against {many:.3f} MB per step of all ranks{times}"
    return (HOLDS if few * factor < many else FAILS), text, "bytes are counted, not estimated"


def costs_little(get, of: str, over: str, most: PositiveFloat = 1.05, what: SecondsOf = "training"):
    """Seconds of training, or of a step, at most `most` times the other's."""
    times = _ratio(get(of), get(over), figures.SECONDS[what])
    text = f"{times.text(3)} times the seconds of {'a step' if what == 'step' else what}"
    if times.below(most):
        return HOLDS, text, f"the whole interval is below {most:g}"
    if times.above(most):
        return FAILS, text, f"the whole interval is above {most:g}"
    return UNKNOWN, text, _why_open(text, most)


def cannot_be_told(get, reason: str):
    """What this testbed cannot bring about yet; the reason says what is missing."""
    return UNKNOWN, "", reason


def _ratio(above: Group, below: Group, figure) -> Estimate:
    sides = above.each(figure), below.each(figure)
    if not all(sides):
        raise NotThere("the runs have too few steps")
    return ratio(*sides)


def _first_loss(group: Group) -> float:
    """The loss of step 1 over the joined batch."""
    first = [step for step in figures.steps_of(group.folders[0]) if step.step == 1]
    loss = joined_loss(first) if first else None
    if loss is None:
        raise NotThere("the first step's loss is not known")
    return loss


def _why_open(text: str, bound: float) -> str:
    if "one repeat" in text:
        return "one repeat gives no interval; REPEATS=3 would"
    return f"the interval holds {bound:g}: the runs scatter too much; more REPEATS, or a quieter machine, would tell"


TESTS = {
    test.__name__: test
    for test in (same_loss, faster, speed_up, apart_without, fewer_bytes, costs_little, cannot_be_told)
}


def _model(test) -> type[AnyClaim]:
    """What a claim with this test holds: `text`, `test`, and what the test's function takes."""
    takes = list(inspect.signature(test).parameters.values())[1:]  # without `get`
    fields: dict[str, Any] = {p.name: (p.annotation, ... if p.default is p.empty else p.default) for p in takes}
    fields["test"] = (Literal[test.__name__], ...)
    return create_model(test.__name__, __base__=AnyClaim, **fields)


if TYPE_CHECKING:
    Claim = AnyClaim
else:
    Claim = Annotated[Union[tuple(map(_model, TESTS.values()))], Field(discriminator="test")]  # noqa: UP007
