"""The live figures as a scrape sees them: multiprocess files, merged over the ranks of a node."""

import os
import subprocess
import sys

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

from trainer.run.metrics import SECONDS, NoMetrics, metrics

BEGINS = """
import os
from trainer.events import Step
from trainer.run.metrics import metrics
from trainer.spec import RunSpec
figures = metrics(3)
"""
TRAINS = """
figures.begin(lambda: (10.5, 20), 40, 38)
for step, loss in ((41, 2.5), (42, float("nan"))):
    figures.step(Step(rank=3, step=step, epoch=1, loss=loss, accuracy=0.25, samples=64, step_seconds=1.0,
                      seconds={"forward": 0.5, "sync": 0.25}, sent_bytes=10, received_bytes=20))
    figures.synchronised({("all_reduce", "sent"): 10, ("all_reduce", "received"): 20, ("gather", "sent"): step}, step)
"""


@pytest.fixture
def after(tmp_path):
    """What is to be seen once a process has written so: f(program) gives value(name, **labels)."""

    def run(program):
        env = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
        subprocess.run([sys.executable, "-c", BEGINS + program], env=env, check=True)
        registry = CollectorRegistry()
        MultiProcessCollector(registry, path=str(tmp_path))

        def value(name, **labels):
            return registry.get_sample_value(f"syncbed_training_{name}", {"rank": "3", **labels})

        value.names = {sample.name for family in registry.collect() for sample in family.samples}
        value.raw = registry.get_sample_value
        return value

    return run


def test_figures_of_a_rank(after):
    value = after(TRAINS)
    assert value("step") == 42
    assert value("accuracy") == 0.25
    assert value("loss") != value("loss")  # NaN: here it can be said as it is
    assert value("samples_total") == 128
    assert value("bytes_total", collective="all_reduce", direction="sent") == 20
    assert value("bytes_total", collective="all_reduce", direction="received") == 40
    assert value("bytes_total", collective="gather", direction="sent") == 83
    assert value("synchronisations_total") == 42 - 38  # those of the run that this one goes on with are not its own
    assert (value("expected_bytes", direction="sent"), value("expected_bytes", direction="received")) == (10.5, 20)
    assert value("deadline_misses_total") == 0
    assert not [name for name in value.names if "staleness" in name or "run_info" in name]


def test_seconds_are_histograms(after):
    value = after(TRAINS)
    assert (value("step_seconds_sum"), value("step_seconds_count")) == (2.0, 2)
    assert (value("phase_seconds_sum", phase="forward"), value("phase_seconds_count", phase="forward")) == (1.0, 2)
    assert value("phase_seconds_bucket", phase="sync", le="0.2") == 0
    assert value("phase_seconds_bucket", phase="sync", le="0.5") == 2
    assert value("phase_seconds_count", phase="data") == 0  # there from the start, so that a rate sees all of it
    assert SECONDS[:4] == (0.001, 0.002, 0.005, 0.01) and SECONDS[-1] == 60
    assert list(SECONDS) == sorted(SECONDS)


def test_before_the_first_step_nothing_is_said_of_loss(after):
    value = after("figures.begin(lambda: (0, 0), 40, 40)")
    assert (value("step"), value("samples_total"), value("step_seconds_count")) == (40, 0, 0)
    assert value("loss") is value("accuracy") is None


def test_a_strategy_without_a_formula_expects_nothing(after):
    value = after("from trainer.sync.base import Sync\nfigures.begin(lambda: Sync.step_bytes(None, 1), 0, 0)")
    assert value("step") == 0
    assert "syncbed_training_expected_bytes" not in value.names


def test_a_rank_that_does_not_train_says_no_more_than_what_it_missed(after):
    value = after("figures.deadline_missed()")
    assert value.names == {"syncbed_training_deadline_misses_total"}
    assert value("deadline_misses_total") == 1


def test_staleness_of_updates(after):
    one = "rank=3, step=1, epoch=1, loss=1.0, accuracy=0, samples=1, step_seconds=1, seconds={}, sent_bytes=0"
    steps = f"for updates in (0, 3, 200): figures.step(Step({one}, received_bytes=0, staleness=updates))"
    value = after(steps)
    buckets = {le: value("staleness_bucket", le=le) for le in ("0.0", "2.0", "4.0", "128.0", "+Inf")}
    assert buckets == {"0.0": 1, "2.0": 1, "4.0": 2, "128.0": 2, "+Inf": 3}
    assert value("staleness_sum") == 203


@pytest.mark.parametrize("run_id", ["a-run", ""])
def test_which_run_it_is(after, run_id):
    value = after(f"figures.run({run_id!r}, RunSpec(sync='ring', nodes=2, precision='bf16'))")
    what = {"run": run_id, "sync": "ring", "model": "vgg11", "data": "cifar10", "nodes": "2", "precision": "bf16"}
    assert value.raw("syncbed_training_run_info", what) == (1 if run_id else None)


def test_nobody_listens(monkeypatch):
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    assert isinstance(metrics(0), NoMetrics)
