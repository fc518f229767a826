"""Tests on real containers: one cluster for each worker of the session, up at its first use and removed at its end.

Without a Docker engine and Compose they are skipped with the reason; SYNCBED_REQUIRE_CLUSTER=1 makes that a failure.
The project is syncbed-test, on ports of its own: a developer's cluster is left alone.
"""

import json
import os
from pathlib import Path

import docker
import pytest
from ports import free_port
from testbed import NODES, PROJECT, Cluster, syncbed

from monitor import checkout
from monitor.engine import compose, sdk
from monitor.engine.containers import containers, remove_project
from monitor.errors import UserError

HERE = Path(__file__).parent
SECONDS = 180  # of one test; what the fixtures take (the first build of the images: minutes) does not count


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in Path(item.path).parents:
            own = item.get_closest_marker("timeout")
            seconds = own.args[0] if own and own.args else SECONDS
            item.add_marker(pytest.mark.timeout(seconds, func_only=True), append=False)


@pytest.fixture(scope="session", autouse=True)
def client() -> docker.DockerClient:
    """A client of the engine these tests need."""
    try:
        client = sdk.connect()
        compose.compose_command()
    except UserError as error:
        if os.environ.get("SYNCBED_REQUIRE_CLUSTER") == "1":
            pytest.fail(f"SYNCBED_REQUIRE_CLUSTER=1, and {error}", pytrace=False)
        pytest.skip(str(error))
    return client


@pytest.fixture(scope="session")
def cluster(client, request) -> Cluster:
    """Four nodes and Prometheus. Tests must leave it as they found it: all nodes running, none held by a run."""
    remove_project(client, PROJECT)  # what an interrupted session left
    settings = (f"PROJECT={PROJECT}", f"NODES={NODES}", f"PROMETHEUS_PORT={free_port()}", f"GRAFANA_PORT={free_port()}")
    try:
        started = syncbed("up", *settings, "--json")
        assert started.returncode == 0, started.stderr
        yield Cluster(client, PROJECT, settings, json.loads(started.stdout))
    finally:
        if request.session.testsfailed:
            _keep_logs(client)
        remove_project(client, PROJECT)


def _keep_logs(client) -> None:
    folder = checkout.ROOT / ".build" / "test-logs"
    folder.mkdir(parents=True, exist_ok=True)
    for container in containers(client, PROJECT):
        (folder / f"{container.name}.log").write_bytes(container.logs(timestamps=True))
