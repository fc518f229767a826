"""An agent that reads a fixture tree and the training figures of a real rank-like process: everything it can export."""

import http.client
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from monitor import cgroup
from monitor.agent import NodeCollector, Server
from monitor.training_metrics import TrainingCollector

FIXTURES = Path(__file__).parent / "fixtures"
WRITE_AS_A_RANK = """
import sys
from prometheus_client import Counter, Gauge
def gauge(name): return Gauge(name, "a gauge", ["rank"], multiprocess_mode="mostrecent").labels("3")
def counter(name): return Counter(name, "a counter", ["rank"]).labels("3")
gauge("syncbed_training_step").set(17)
gauge("syncbed_training_loss").set(2.25)
gauge("syncbed_training_accuracy").set(0.125)
counter("syncbed_training_samples").inc(1088)
counter("syncbed_training_sent_bytes").inc(4096)
counter("syncbed_training_received_bytes").inc(8192)
phases = Counter("syncbed_training_phase_seconds", "a counter", ["rank", "phase"])
for phase in ("data", "forward", "backward", "sync", "optimizer"):
    phases.labels("3", phase).inc(0.5)
print("written", flush=True)
sys.stdin.read()  # live until told otherwise
"""


@contextmanager
def rank(folder: Path):
    """A process that has written training figures into the folder and still lives."""
    folder.mkdir(exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-c", WRITE_AS_A_RANK],
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
    registry = CollectorRegistry()
    registry.register(
        NodeCollector(
            {"name": "trainer-3", "source": "cgroup"},
            lambda: cgroup.read(root / "sys", root / "proc"),
            lambda: cgroup.read_network(root / "proc"),
        )
    )
    registry.register(TrainingCollector(folder))
    server = Server(("127.0.0.1", 0), registry, world_size)
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
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
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


def types(text: str) -> dict[str, str]:
    """Name of each sample to its metric's type."""
    return {s.name: family.type for family in text_string_to_metric_families(text) for s in family.samples}
