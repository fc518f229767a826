"""A rank says what it has to say, and does not wait for whoever reads it. No torch."""

import os
import subprocess
import sys

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

from trainer import events
from trainer.rank import Rank


def test_a_reader_that_is_stopped_holds_no_rank_up():
    """Ctrl-Z: the orchestrator reads nothing, the pipe is full, and training goes on."""
    reading, writing = os.pipe()
    rank = Rank(os.fdopen(writing, "w", encoding="utf-8"))
    told = [events.Warning(rank=0, message=f"{number} {'x' * 1000}") for number in range(1000)]  # a pipe holds 64 KiB
    for event in told:
        rank.tell(event)
    rank.finish_telling(0.2)  # nobody reads: it gives up
    with os.fdopen(reading, encoding="utf-8") as lines:
        assert [events.parse(next(lines)) for _ in told] == told
    rank.finish_telling(30)


def test_a_reader_that_is_gone_ends_the_rank():
    code = """
import os
from trainer import events
from trainer.rank import Rank
rank = Rank(os.fdopen(os.dup(1), "w"))
input()
rank.tell(events.Alive(rank=0))
rank.finish_telling()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.close()
        process.communicate(b"\n", timeout=60)
    assert process.returncode == 1


@pytest.mark.parametrize(
    ("how", "missed"),
    [
        ("rank.fail('deadline', 'all_reduce took too long')", 1),
        ("rank.peers = Silent(); rank._heartbeat()", 1),
        ("rank.fail('peer', 'rank 1 gave up')", 0),
        ("rank.fail('own', 'disk full')", 0),
    ],
)
def test_a_deadline_that_was_missed_is_counted_before_the_rank_ends(how, missed, tmp_path):
    code = f"""
import os
from trainer.rank import Rank
from trainer.run.metrics import metrics
rank = Rank(os.fdopen(os.dup(1), "w"))
rank.metrics = metrics(2)

class Silent:
    def overdue(self):
        return 1, 28.0

    def leave(self, *_, **__):
        pass

{how}
"""
    env = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    assert subprocess.run([sys.executable, "-c", code], env=env, capture_output=True).returncode == 1
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(tmp_path))
    assert registry.get_sample_value("syncbed_training_deadline_misses_total", {"rank": "2"}) == missed
