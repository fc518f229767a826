"""What tests on real containers share: the session's cluster as they see it, and the command as a user runs it."""

import os
import subprocess
import sys
from dataclasses import dataclass

import docker
from orchestrator import wait_until

from monitor.engine import naming
from monitor.engine.containers import containers
from monitor.metrics import prometheus

# Two sessions on one machine need two names, and so do the workers of one session.
PROJECT = "-".join(
    filter(None, (os.environ.get("SYNCBED_TEST_PROJECT", "syncbed-test"), os.environ.get("PYTEST_XDIST_WORKER")))
)
NODES = 4


@dataclass(frozen=True)
class Cluster:
    """The session's cluster, as tests see it."""

    client: docker.DockerClient
    project: str
    settings: tuple[str, ...]  # the words it was started with, for `syncbed up`
    report: dict  # what `syncbed up --json` said

    @property
    def nodes(self) -> list:
        """The nodes' containers as they are now, in rank order."""
        return [c for c in containers(self.client, self.project) if c.labels[naming.ROLE_LABEL] == "node"]

    def node(self, rank: int):
        return self.nodes[rank]

    def service(self, name: str):
        return next(c for c in containers(self.client, self.project) if c.labels["com.docker.compose.service"] == name)

    @property
    def prometheus_url(self) -> str:
        return self.report["urls"]["prometheus"]


def said(container, *command: str) -> str:
    """What a command says, in a container, that goes well and says something. It is run again where that is lost, as
    Docker 20.10 may lose it.
    """
    for _ in range(5):
        code, out = container.exec_run(list(command))
        assert code == 0, out.decode()
        if out:
            break
    return out.decode()


def reaches(container, host: str, port: int) -> bool:
    """Whether a connection from inside a node is taken, by a name or an address."""
    return container.exec_run(["timeout", "3", "bash", "-c", ": <>/dev/tcp/$0/$1", host, str(port)]).exit_code == 0


def asked(cluster: Cluster, expression: str) -> list[dict]:
    """What Prometheus says to a query, for tests that wait for it; nothing while it does not answer."""
    try:
        return prometheus.query(cluster.prometheus_url, expression)
    except prometheus.NotAnswering:
        return []


def scraped(cluster: Cluster, node: str, since: float, metric: str = "syncbed_node_info") -> None:
    """Wait until Prometheus holds a scrape of the node that is no older than this. One that failed is none."""
    ask = f'timestamp({metric}{{node="{node}"}})'
    wait_until(lambda: any(float(found["value"][1]) >= since for found in asked(cluster, ask)))


def command(*words: str) -> list[str]:
    """The command line of `syncbed`, with the Python of these tests."""
    return [sys.executable, "-c", "import sys; from monitor.cli import main; sys.exit(main())", *words]


def syncbed(*words: str, timeout: float = 1800) -> subprocess.CompletedProcess:
    """Run the command as a user would; stdout and stderr as text. The time limit has room for a build of images."""
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=timeout)
