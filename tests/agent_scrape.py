"""An agent that reads a fixture tree and the training figures of a real rank-like process: everything it can export."""

import http.client
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from node import cgroup
from node.agent import NodeCollector, Server
from node.training_metrics import TrainingCollector
from trainer.hosts import Hosts

FIXTURES = Path(__file__).parent / "fixtures"
ROOT = Path(__file__).resolve().parents[1]
WRITE_AS_A_RANK = """
import sys
from trainer.events import Step
from trainer.run.metrics import Metrics
from trainer.spec import RunSpec
seconds = dict.fromkeys(("data", "forward", "backward", "sync", "optimizer"), 0.5)
figures = {"loss": 2.25, "accuracy": 0.125, "samples": 64, "sent_bytes": 4096, "received_bytes": 8192, "staleness": 3.0}
metrics = Metrics(rank=3)
metrics.run("20261128-080000-ddp-vgg11-4n-abcdef", RunSpec(sync="ddp", nodes=4))
metrics.begin(lambda: (4096.5, 8192.0), 0, 0)
for step in range(1, 18):
    metrics.step(Step(rank=3, step=step, epoch=1, seconds=seconds, step_seconds=2.5, **figures))
    metrics.synchronised({("all_reduce", "sent"): 4096, ("all_reduce", "received"): 8192}, 2 * step)
metrics.evaluated(500)
metrics.deadline_missed()
print("written", flush=True)
sys.stdin.read()  # live until told otherwise
"""


@contextmanager
def rank(folder: Path, number: int = 3):
    """A process that has written training figures into the folder and still lives."""
    folder.mkdir(exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-c", WRITE_AS_A_RANK.replace("rank=3", f"rank={number}")],
        cwd=ROOT,
        env=os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout.readline() == b"written\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def serving(tree: str, folder: Path, world_size: int | None = None):
    """The port of an agent in this process."""
    root = FIXTURES / tree
    node = NodeCollector(
        {"name": "trainer-3", "source": "cgroup"},
        lambda: cgroup.read(root / "sys", root / "proc"),
        lambda: cgroup.read_network(root / "proc"),
    )
    server = Server(("127.0.0.1", 0), [node, TrainingCollector(folder)], world_size, Hosts(["trainer-3"]))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def get(port: int, path: str = "/metrics") -> tuple[int, str, str]:
    """(status, content type, text)"""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type"), answer.read().decode()
    finally:
        connection.close()


def samples(text: str) -> dict[tuple, float]:
    """(name, labels as sorted pairs) to value."""
    families = text_string_to_metric_families(text)
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def kinds(text: str) -> dict[str, tuple[str, set[str]]]:
    """Metric to (type, labels), of those that have samples; without `le`, which makes a histogram's buckets."""
    return {
        family.name + "_total" * (family.type == "counter"): (
            family.type,
            {label for sample in family.samples for label in sample.labels} - {"le"},
        )
        for family in text_string_to_metric_families(text)
        if family.samples
    }
