"""What the soak test makes of its series; no run, no cluster."""

import pytest

from benchmarks.soak import figure, judged
from monitor.statistics.estimate import Estimate


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([100.0] * 20, "flat"),
        ([100.0 + (-1) ** n for n in range(20)], "flat"),
        ([100.0 + 0.01 * n for n in range(20)], "flat"),  # surely a slope, and surely none that matters
        ([100.0 + n for n in range(20)], "growing"),
        ([100.0 - n for n in range(20)], "flat"),
        ([50.0, 70.0, 90.0, *[100.0] * 17], "flat"),  # what fills at first is left out
    ],
)
def test_growth_is_a_sure_slope_that_matters(values, verdict):
    assert judged(values)["verdict"] == verdict


def test_slope_and_level_are_of_the_warm_runs():
    found = judged([0.0, 0.0, 0.0, 10.0, 12.0, 14.0])
    assert found["level"] == 12
    assert Estimate(**found["slope_per_run"]).value == pytest.approx(2)


def test_the_figure_has_every_series():
    text = figure({"containers": [6.0, 6.0, 6.0], "none of it": [0.0, 0.0, 0.0]})
    assert text.startswith("<svg")
    assert all(name in text for name in ("containers", "none of it"))
