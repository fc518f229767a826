"""What repeated measurements say: a mean, a ratio, and how far off it may be.

Intervals are Student's t at 95 % over independent repeats of a run. Steps of one run are not independent (a busy
neighbour slows a hundred of them), so one repeat gives a figure and no interval, and nothing is concluded from it.
Ratios are of geometric means: the interval is taken on logarithms, with Welch's degrees of freedom, so that a over b
and b over a agree. Sources: Welch, Biometrika 34 (1947); Fleming and Wallace, CACM 29 (1986).
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A value with its interval; `low` and `high` are None where one measurement gives none."""

    value: float
    low: float | None
    high: float | None
    repeats: int  # of the smaller side, for a ratio

    @property
    def known(self) -> bool:
        """Whether there is an interval."""
        return self.low is not None

    def above(self, bound: float) -> bool:
        """Whether the whole interval is above."""
        return self.low is not None and self.low > bound

    def below(self, bound: float) -> bool:
        """Whether the whole interval is below."""
        return self.high is not None and self.high < bound

    def text(self, places: int = 3) -> str:
        """As people read it: 1.234 [1.200, 1.270], or 1.234 (one repeat)."""
        value = f"{self.value:,.{places}f}"
        return f"{value} [{self.low:,.{places}f}, {self.high:,.{places}f}]" if self.known else f"{value} (one repeat)"


def mean(values: Sequence[float]) -> Estimate:
    """Arithmetic mean. Values that do not differ give an interval of no width; that of what is never negative (times,
    bytes, shares) ends at 0. Raises ValueError for no values.
    """
    value, repeats = statistics.fmean(values), len(values)
    if repeats == 1:
        return Estimate(value, None, None, 1)
    half = _quantile(repeats - 1) * statistics.stdev(values) / math.sqrt(repeats)
    low = value - half if min(values) < 0 else max(value - half, 0.0)
    return Estimate(value, low, value + half, repeats)


def ratio(above: Sequence[float], below: Sequence[float]) -> Estimate:
    """Geometric mean of `above` over that of `below`; all values positive. Raises ValueError for no values."""
    tops, bottoms = [math.log(v) for v in above], [math.log(v) for v in below]
    centre, repeats = statistics.fmean(tops) - statistics.fmean(bottoms), min(len(tops), len(bottoms))
    if repeats == 1:
        return Estimate(math.exp(centre), None, None, 1)
    spreads = [statistics.variance(side) / len(side) for side in (tops, bottoms)]
    error = math.sqrt(sum(spreads))
    if error:
        weights = sum(s**2 / (len(side) - 1) for s, side in zip(spreads, (tops, bottoms), strict=True))
        error *= _quantile(sum(spreads) ** 2 / weights)
    return Estimate(math.exp(centre), math.exp(centre - error), math.exp(centre + error), repeats)


def trend(values: Sequence[float]) -> Estimate:
    """Least squares' slope of values over their place in the row, per place. Two values or fewer give no interval.

    Neighbours are taken to be independent; where they are not, the interval is too narrow, never the slope wrong.
    Raises ValueError for fewer than two.
    """
    places, count = range(len(values)), len(values)
    slope, level = statistics.linear_regression(places, values)
    if count < 3:
        return Estimate(slope, None, None, count)
    rest = sum((value - level - slope * place) ** 2 for place, value in zip(places, values, strict=True))
    spread = sum((place - (count - 1) / 2) ** 2 for place in places)
    half = _quantile(count - 2) * math.sqrt(rest / (count - 2) / spread)
    return Estimate(slope, slope - half, slope + half, count)


def _quantile(freedom: float) -> float:
    from scipy.special import stdtrit  # takes half a second, and commands that only show results need none

    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))
