"""What the agent writes is, byte for byte, what prometheus-client would have written."""

import math
import os
import subprocess
import sys
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
from agent_scrape import rank, samples
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector

from node.exposition import page, series
from node.training_metrics import TrainingCollector


def of_the_library(*metrics: Metric) -> bytes:
    return generate_latest(SimpleNamespace(collect=lambda: metrics))


@pytest.mark.parametrize("value", [0, 1, 17, 0.1, -2.5, 1e6, 1234567.0, 1e-7, 2**60, math.inf, -math.inf, math.nan])
def test_values(value):
    gauge = GaugeMetricFamily("x_bytes", "Bytes.", value=value)
    for _ in range(2):  # the second time from what is kept of the first
        assert page([(series("gauge", "x_bytes", "Bytes.", "x_bytes"), value)]) == of_the_library(gauge)


def test_labels_and_help_with_every_awkward_character():
    text, labels = 'A "help" of \\ two\nlines.', {"b": 'say "x"', "a": "back\\slash", "c": "new\nline", "d": "é 0.0"}
    counter = CounterMetricFamily("x", text, labels=labels)
    counter.add_metric(labels.values(), 3)
    assert page([(series("counter", "x", text, "x_total", tuple(labels.items())), 3)]) == of_the_library(counter)


def test_series_of_a_metric_stand_together():
    def of(metric, label):
        return series("gauge", metric, "Text.", metric, (("rank", label),))

    got = page([(of("x", "0"), 1), (of("y", "0"), 2), (of("x", "1"), 3), (of("y", "1"), 4)])
    want = [GaugeMetricFamily(metric, "Text.", labels=["rank"]) for metric in ("x", "y")]
    for family, values in zip(want, ((1, 3), (2, 4)), strict=True):
        for label, value in zip("01", values, strict=True):
            family.add_metric([label], value)
    assert got == of_the_library(*want)


def test_a_kind_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="nonsense"):
        series("nonsense", "x", "Text.", "x")


@pytest.mark.parametrize("numbers", [[3], [3, 7], [3, 3, 0]], ids=str)
def test_figures_of_ranks(tmp_path, numbers):
    """Of two processes of one rank: what they counted is added up, what they set is the later one's."""
    with ExitStack() as ranks:
        for number in numbers:
            ranks.enter_context(rank(tmp_path, number))
        got = page(TrainingCollector(tmp_path).samples())
        merged = MultiProcessCollector.merge([str(file) for file in sorted(tmp_path.glob("*.db"))])
        assert got == of_the_library(*merged)
    values = samples(got.decode())
    for number in set(numbers):
        assert values["syncbed_training_step", (("rank", str(number)),)] == 17
        counted = 17 * numbers.count(number)
        assert values["syncbed_training_step_seconds_count", (("rank", str(number)),)] == counted
        assert values["syncbed_training_step_seconds_bucket", (("le", "5.0"), ("rank", str(number)))] == counted
        assert values["syncbed_training_step_seconds_bucket", (("le", "2.0"), ("rank", str(number)))] == 0


def test_a_gauge_that_was_made_and_not_set_is_absent(tmp_path):
    script = "from prometheus_client import Gauge; g = Gauge('x', 'X.', ['of'], multiprocess_mode='mostrecent'); "
    script += "g.labels('made'); g.labels('set').set(0)"
    environment = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)
    assert samples(page(TrainingCollector(tmp_path).samples()).decode()) == {("x", (("of", "set"),)): 0}
