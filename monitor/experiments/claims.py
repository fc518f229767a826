"""Claims of a report, tested on our own runs: holds, does not hold, or cannot be told here, with the figures.

A claim of a preset names its `test`, one of TESTS, and what that needs. Losses are computed, not measured: they are
compared to a tolerance. Times are measured: a verdict needs the whole 95 % interval on one side, so one repeat, or runs
that scatter, conclude nothing.
"""

import inspect
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal, Union

from pydantic import BaseModel, Field, NonNegativeFloat, PositiveFloat, ValidationError, create_model

from monitor.errors import UserError
from monitor.experiments import figures
from monitor.experiments.grouping import Group
from monitor.results import scores
from monitor.results.scores import joined_loss
from monitor.statistics.estimate import Estimate, ratio

HOLDS, FAILS, UNKNOWN = "holds", "does not hold", "cannot be told here"
Several = Annotated[list[str], Field(min_length=2)]  # names of runs
Seconds = Literal[tuple(figures.SECONDS)]
Rate = Literal[tuple(figures.RATES)]


class Strict(BaseModel, strict=True, extra="forbid", frozen=True):
    """A part of a preset: every value is of the type that is said, and nothing else is there."""


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
        for name in _named(needs):
            _find(groups, name)
        return Verdict(text, *TESTS[test](lambda name: _finished(groups, name), **needs))
    except NotThere as missing:
        return Verdict(text, UNKNOWN, "", str(missing))
    except KeyError as error:
        raise UserError(f"claim {text!r}: {error.args[0]}") from None


def _named(needs: dict) -> list[str]:
    """The runs that a claim is about."""
    values = [needs[key] for key in ("of", "over", "than", "alone", "without", "with_it") if key in needs]
    return [name for value in values for name in (value if isinstance(value, list) else [value])]


def _find(groups: dict[str, Group], name: str) -> Group:
    """The group of this label, or by "name | WORD=value" the only one of that name with these words among its own."""
    part, _, rest = name.partition("|")
    part, words = part.strip(), set(rest.split())
    found = [g for label, g in groups.items() if label == part and not words]
    if not found:
        found = [
            g
            for label, g in groups.items()
            if label.startswith(part + " ")
            and words <= (own := set(label.removeprefix(part).split()))
            and all("=" in w for w in own)
        ]
    if len(found) != 1:
        raise KeyError(f"{len(found) or 'no'} runs are called {name!r}")
    return found[0]


def _finished(groups: dict[str, Group], name: str) -> Group:
    found = _find(groups, name)
    if not found.results:
        raise NotThere(f"no run of {name} finished")
    return found


def same_loss(get, of: Several, tolerance: NonNegativeFloat = 0.01):
    """The same loss of the last step, to a relative tolerance, on data that each rank has its own part of."""
    groups = [get(name) for name in of]
    losses = [[r["train_loss"] for r in g.results] for g in groups]
    if any(loss is None for own in losses for loss in own):
        raise NotThere("a loss is not finite")
    told = ", ".join(f"{name} {own[0]:.4f}" for name, own in zip(of, losses, strict=True))
    for name, result in ((name, r) for name, g in zip(of, groups, strict=True) for r in g.results):
        known = sharded(result)
        if not known:
            why = "saw the same samples" if known is False else "trained so long that each may have seen every sample"
            return UNKNOWN, told, f"the ranks of {name} {why}"
    every = [loss for own in losses for loss in own]
    apart = (max(every) - min(every)) / (max(abs(loss) for loss in every) or 1)
    seen = {r["distinct_samples"] for g in groups for r in g.results}
    about = f"{min(seen):,} distinct training samples, each rank its own" if len(seen) == 1 else "sharded data"
    verdict = HOLDS if apart <= tolerance else FAILS
    return verdict, told, f"they differ by {100 * apart:.2g} % of the largest, {100 * tolerance:g} % would do; {about}"


def sharded(result: dict) -> bool | None:
    """Whether each rank had samples of its own. None where ranks that share theirs would have seen as many."""
    train, batch = result["data"]["train_samples"], result["spec"]["batch"]
    epoch, seen, distinct = train - train % batch, result["samples_seen"], result["distinct_samples"]
    if distinct < min(seen, epoch):
        return False
    ranks = len(scores.workers(result))
    return True if ranks == 1 or seen / ranks < epoch else None


def faster(get, of: Several):
    """Shorter steps, in this order: the first is the fastest."""
    told, verdicts = [], []
    for fast, slow in pairwise(of):
        found = _ratio(get(slow), get(fast), figures.step_seconds)
        told.append(f"{slow} takes {found.text(3)} times {fast}")
        verdicts.append(HOLDS if found.above(1) else FAILS if found.below(1) else UNKNOWN)
    if FAILS in verdicts:
        return FAILS, "; ".join(told), f"{told[verdicts.index(FAILS)]}: the whole interval is below 1"
    if UNKNOWN in verdicts:
        return UNKNOWN, "; ".join(told), _why_open(told[verdicts.index(UNKNOWN)], 1)
    return HOLDS, "; ".join(told), "every interval is above 1"


def speed_up(
    get, of: str, over: str, below: PositiveFloat, what: Rate = "step", published: PositiveFloat | None = None
):
    """Faster than one node, but by less than `below`, which perfect scaling would give."""
    found = figures.speed_up(get(of), get(over), what)
    if found is None:
        raise NotThere("the runs have too few steps")
    beside = f" (published: {published:g})" if published else ""
    told = f"speed-up {found.text(2)}{beside}"
    if found.above(1) and found.below(below):
        return HOLDS, told, f"the whole interval is above 1 and below {below:g}"
    if found.below(1):
        return FAILS, told, "here it is slower than one node"
    if found.above(below):
        return FAILS, told, f"the whole interval is above {below:g}"
    return UNKNOWN, told, _why_open(told, 1 if found.low is None or found.low <= 1 else below)


def apart_without(get, alone: str, without: str, with_it: str, tolerance: NonNegativeFloat = 1e-3):
    """The loss of step 1, before any update, is that of one node `with_it` and is another `without`."""
    one, bare, synced = (_first_loss(get(name)) for name in (alone, without, with_it))
    told = f"first loss: {alone} {one:.5f}, {without} {bare:.5f}, {with_it} {synced:.5f}"
    if abs(synced - one) > tolerance * abs(one):
        return UNKNOWN, told, f"{with_it} should give the loss of {alone} and does not"
    if abs(bare - one) > tolerance * abs(one):
        return HOLDS, told, f"{without} is off by more than {100 * tolerance:g} %, {with_it} is not"
    return FAILS, told, "both give the loss of one node"


def fewer_bytes(get, of: str, than: str, factor: PositiveFloat = 1.0):
    """Less payload per step, by more than `factor`. Bytes are counted, so one run tells."""
    few, many = (get(name).estimate(figures.step_megabytes).value for name in (of, than))
    times = f": {many / few:.2f} times fewer" if few else ""
    told = f"{few:.3f} against {many:.3f} MB per step of all ranks{times}"
    return (HOLDS if few * factor < many else FAILS), told, "bytes are counted, not estimated"


def costs_little(get, of: str, over: str, most: PositiveFloat = 1.05, what: Seconds = "training"):
    """Seconds of training, or of a step, at most `most` times the other's."""
    found = _ratio(get(of), get(over), figures.SECONDS[what])
    told = f"{found.text(3)} times the seconds of {'a step' if what == 'step' else what}"
    if found.below(most):
        return HOLDS, told, f"the whole interval is below {most:g}"
    if found.above(most):
        return FAILS, told, f"the whole interval is above {most:g}"
    return UNKNOWN, told, _why_open(told, most)


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


def _why_open(told: str, bound: float) -> str:
    if "one repeat" in told:
        return "one repeat gives no interval; REPEATS=3 would"
    return f"the interval holds {bound:g}: the runs scatter too much; more REPEATS, or a quieter machine, would tell"


TESTS = {
    test.__name__: test
    for test in (same_loss, faster, speed_up, apart_without, fewer_bytes, costs_little, cannot_be_told)
}


def _model(test) -> type[Strict]:
    """What a claim with this test holds: `text`, `test`, and what the test's function takes."""
    takes = list(inspect.signature(test).parameters.values())[1:]  # without `get`
    fields = {p.name: (p.annotation, ... if p.default is p.empty else p.default) for p in takes}
    return create_model(test.__name__, __base__=Strict, text=(str, ...), test=(Literal[test.__name__], ...), **fields)


Claim = Annotated[Union[tuple(map(_model, TESTS.values()))], Field(discriminator="test")]  # noqa: UP007


def told(error: ValidationError) -> str:
    """The first thing that is wrong, in one line: where, what stands there, and what would do."""
    first = error.errors(include_url=False)[0]
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
    shown = "" if isinstance(first["input"], dict | list) else f" = {first['input']!r}"
    return " ".join(f"{where}{shown}: {first['msg'][0].lower()}{first['msg'][1:]}".split())
