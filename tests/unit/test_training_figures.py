"""The live figures as a scrape sees them: multiprocess files, merged over the ranks of a node."""

import os
import subprocess
import sys

from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

from trainer.metrics import NoMetrics, metrics

WRITES = """
from trainer.events import Step
from trainer.metrics import metrics
figures = metrics(3)
for step, loss in ((1, 2.5), (2, float("nan"))):
    figures.step(Step(rank=3, step=step, epoch=1, loss=loss, accuracy=0.25, samples=64, step_seconds=1.0,
                      seconds={"forward": 0.5, "sync": 0.25}, sent_bytes=10, received_bytes=20))
"""


def test_figures_of_a_rank(tmp_path):
    env = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", WRITES], env=env, check=True)
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(tmp_path))

    def value(name, **labels):
        return registry.get_sample_value(f"syncbed_training_{name}", {"rank": "3", **labels})

    assert value("step") == 2
    assert value("accuracy") == 0.25
    assert value("loss") != value("loss")  # NaN: here it can be said as it is
    assert value("samples_total") == 128
    assert (value("sent_bytes_total"), value("received_bytes_total")) == (20, 40)
    assert value("phase_seconds_total", phase="forward") == 1.0
    assert value("phase_seconds_total", phase="sync") == 0.5


def test_nobody_listens(monkeypatch):
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    assert isinstance(metrics(0), NoMetrics)
