"""Intervals against textbook values, against scipy's own tests of means, and where they are awkward."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from monitor.statistics.estimate import Estimate, mean, ratio, trend

TIMES = st.lists(st.floats(0.1, 100), min_size=2, max_size=6)


def test_a_mean_with_the_textbooks_t():
    # t(0.975, 2) = 4.302653; the standard deviation of 1, 2, 3 is 1
    found = mean([11.0, 12.0, 13.0])
    assert found.value == 12
    assert found.high - 12 == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    assert found.low + found.high == pytest.approx(24)


def test_what_is_never_negative_has_no_interval_below_nothing():
    assert mean([1.0, 2.0, 3.0]).low == 0
    assert mean([-1.0, 2.0, 3.0]).low < -1


def test_one_repeat_gives_a_figure_and_no_interval():
    for found in (mean([1.5]), ratio([3.0], [2.0]), ratio([3.0], [2.0, 2.0])):
        assert found.value == pytest.approx(1.5)
        assert (found.low, found.high, found.repeats) == (None, None, 1)
        assert not found.above(0)
        assert not found.below(9)
        assert found.text(2) == "1.50 (one repeat)"


def test_no_variance_is_an_interval_of_no_width():
    assert mean([2.0, 2.0]) == Estimate(2, 2, 2, 2)
    found = ratio([3.0, 3.0], [2.0, 2.0, 2.0])
    assert (found.low, found.high) == (found.value, found.value)
    assert found.value == pytest.approx(1.5)
    assert found.above(1.49)
    assert not found.above(1.51)


def test_no_values_are_refused():
    for measure in (lambda: mean([]), lambda: ratio([], [1.0]), lambda: ratio([1.0], [])):
        with pytest.raises(ValueError):
            measure()


@given(TIMES, TIMES)
def test_a_ratio_is_welchs_interval_on_logarithms(above, below):
    found = ratio(above, below)
    logs = [[math.log(v) for v in side] for side in (above, below)]
    if max(map(lambda side: max(side) - min(side), logs)) < 1e-3:
        return  # scipy gives nan where nothing varies
    theirs = stats.ttest_ind(*logs, equal_var=False).confidence_interval(0.95)
    assert math.log(found.low) == pytest.approx(theirs.low, rel=1e-6, abs=1e-6)
    assert math.log(found.high) == pytest.approx(theirs.high, rel=1e-6, abs=1e-6)


@given(TIMES, TIMES)
def test_the_inverse_ratio_is_the_inverse(above, below):
    one, other = ratio(above, below), ratio(below, above)
    assert one.value * other.value == pytest.approx(1)
    assert one.low * other.high == pytest.approx(1, rel=1e-6)


def test_the_interval_holds_the_truth_as_often_as_it_says():
    draw = random.Random(1)
    hits = 0
    for _ in range(2000):
        above, below = ([math.exp(draw.gauss(centre, 0.1)) for _ in range(4)] for centre in (0.3, 0.0))
        found = ratio(above, below)
        hits += found.low <= math.exp(0.3) <= found.high
    assert 0.94 < hits / 2000 < 0.965


def test_a_trend_is_the_slope_per_place_with_its_interval():
    """By hand: 1, 2, 2, 3 has slope 0.6, residuals of sum 0.2, spread 5; t of 2 degrees is 4.303."""
    found = trend([1.0, 2.0, 2.0, 3.0])
    assert found.value == pytest.approx(0.6)
    assert found.high - found.value == pytest.approx(4.303 * (0.2 / 2 / 5) ** 0.5, rel=1e-3)
    assert trend([5.0, 7.0]) == Estimate(2.0, None, None, 2)
    assert (trend([4.0] * 9).value, trend([4.0] * 9).low) == (0.0, 0.0)
    assert trend([1.0, 2.0, 3.0, 4.0, 5.01]).above(0.0)
