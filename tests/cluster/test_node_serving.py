"""A run's model served in the cluster, asked with the real commands of report R2."""

import json
import subprocess
from types import SimpleNamespace

import numpy as np
import pytest
from docker.errors import NotFound
from orchestrator import syncbed, wait_until
from PIL import Image
from serving_client import ask, three_free_ports
from testbed import asked, reaches

from monitor.serve import export
from serving import artefact


def curl(*words: str) -> dict | list:
    """What curl prints, as JSON."""
    done = subprocess.run(["curl", "--silent", "--show-error", *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def served(cluster, tmp_path_factory):
    """A run on the cluster, and its model served there as vgg."""
    folder = tmp_path_factory.mktemp("serving")
    place = f"PROJECT={cluster.project}"
    words = ("SYNC=single", "NODES=1", "MODEL=cnn3", "DATA=synthetic", "STEPS=3", "PAGES=0", place)
    done = syncbed(folder, "run", *words)
    assert done.returncode == 0, done.stderr
    port = three_free_ports()
    try:
        done = syncbed(folder, "serve", "NAME=vgg", f"PORT={port}", place, "--json")
        assert done.returncode == 0, done.stderr
        yield SimpleNamespace(folder=folder, port=port, place=place, **json.loads(done.stdout))
    finally:
        syncbed(folder, "serve-stop", place)


def test_the_reports_commands(served, cluster):
    pixels = np.random.default_rng(0).integers(0, 256, (120, 90, 3), np.uint8)
    Image.fromarray(pixels).save(served.folder / "kitten.jpg")
    assert served.runtime == "docker"
    (listed,) = curl(f"http://127.0.0.1:{served.port + 1}/models")["models"]
    assert listed["modelName"] == "vgg" and listed["modelUrl"].startswith(served.run)
    url = f"http://127.0.0.1:{served.port}/predictions/vgg"
    likely = curl(url, "-T", str(served.folder / "kitten.jpg"))
    assert len(likely) == 5 and all(name.startswith("class") for name in likely)
    assert list(likely.values()) == sorted(likely.values(), reverse=True)
    assert curl(url, "-F", f"data=@{served.folder / 'kitten.jpg'}") == likely
    assert curl(f"http://127.0.0.1:{served.port}/ping") == {"status": "Healthy"}


def test_without_torch_here_a_container_exports_the_same(served, monkeypatch):
    home = served.folder / "runs" / served.run
    before = artefact.read(home / "export")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    made = export.export(served.run, home.parent)
    assert artefact.read(made) == before and {p.name for p in made.iterdir()} == {"model.json", "model.safetensors"}


def test_prometheus_sees_it_and_status_too(served, cluster):
    for _ in range(3):
        ask(served.port, "PUT", "/predictions/vgg", b"kitten")
    query = 'syncbed_serving_errors_total{node="serve", job="serving", model="vgg", code="400"}'
    wait_until(lambda: any(float(s["value"][1]) >= 3 for s in asked(cluster, query)))
    status = json.loads(syncbed(served.folder, "status", served.place, "--json").stdout)
    (row,) = [row for row in status["services"] if row["name"] == "serve"]
    assert (row["state"], row["health"], row["cpus"]) == ("running", "healthy", 1)
    assert status["urls"]["serve"] == f"http://127.0.0.1:{served.port}"


@pytest.mark.parametrize("port", [8080, 8081, 8082])
def test_a_node_does_not_reach_it(served, cluster, port):
    """Neither by name nor by address."""
    networks = cluster.service("serve").attrs["NetworkSettings"]["Networks"].values()
    for host in ("serve", *(network["IPAddress"] for network in networks)):
        assert not reaches(cluster.node(0), host, port), host


def test_a_second_model_joins_and_a_killed_server_serves_all_again(served, cluster):
    done = syncbed(served.folder, "serve", "NAME=other", served.place)
    assert done.returncode == 0, done.stderr

    def names():
        try:
            answer = ask(served.port + 1, "GET", "/models")
        except OSError:  # it is being started
            return None
        return [one["modelName"] for one in answer.json["models"]]

    assert names() == ["other", "vgg"]
    container = cluster.service("serve")
    started = container.attrs["State"]["StartedAt"]
    container.exec_run(["bash", "-c", "kill -9 -1"])  # all that the user may: the server, and this shell
    wait_until(lambda: cluster.service("serve").attrs["State"]["StartedAt"] != started, 60)
    wait_until(lambda: names() == ["other", "vgg"], 60)
    assert syncbed(served.folder, "serve-stop", "NAME=other", served.place).stdout == "removed model other\n"
    assert names() == ["vgg"]


def test_the_end_leaves_nothing(served, cluster):
    done = syncbed(served.folder, "serve-stop", served.place)
    assert "container" in done.stdout and f"volume {cluster.project}_models" in done.stdout
    with pytest.raises(StopIteration):
        cluster.service("serve")
    with pytest.raises(NotFound):
        cluster.client.volumes.get(f"{cluster.project}_models")
    assert syncbed(served.folder, "serve-stop", served.place).stdout == "nothing was served\n"
