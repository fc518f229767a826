"""The cluster's ports: from where they are reached, and whom they answer."""

import http.client
import json
import socket
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from orchestrator import wait_until
from testbed import PROJECT, asked, reaches


@pytest.fixture
def grafana(cluster) -> str:
    """Its URL."""
    if "grafana" not in cluster.report["urls"]:
        pytest.skip("grafana cannot be had here: no image registry answers")
    return cluster.report["urls"]["grafana"]


def test_no_port_is_open_beyond_loopback(cluster):
    port = int(cluster.prometheus_url.rsplit(":", 1)[1])
    outward = [a[4][0] for a in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET, socket.SOCK_STREAM)]
    for address in {a for a in outward if not a.startswith("127.")}:
        with socket.socket() as probe:
            probe.settimeout(2)
            assert probe.connect_ex((address, port)) != 0


def test_a_node_reaches_prometheus_by_no_name_and_no_address(cluster):
    """It is in the nodes' network, to scrape them, and listens in the other one, where its port is published too."""
    node, port = cluster.node(1), int(cluster.prometheus_url.rsplit(":", 1)[1])
    networks = cluster.service("prometheus").attrs["NetworkSettings"]["Networks"]
    assert set(networks) == {f"{PROJECT}_monitoring", f"{PROJECT}_nodes"}
    names = ["prometheus", "prometheus-monitoring", *(network["IPAddress"] for network in networks.values())]
    tried = [(name, 9090) for name in names]
    tried += [(network["Gateway"], port) for network in networks.values()]  # the machine, as containers see it
    with ThreadPoolExecutor(len(tried)) as pool:
        reached = list(pool.map(lambda address: reaches(node, *address), tried))
    assert not any(reached), list(zip(tried, reached, strict=True))
    assert reaches(node, "trainer-0", 9400), "what it may reach, it does"
    assert urllib.request.urlopen(f"{cluster.prometheus_url}/-/ready").status == 200
    nodes = {f"trainer-{rank}": "1" for rank in range(4)}
    wait_until(lambda: {s["metric"]["node"]: s["value"][1] for s in asked(cluster, 'up{job="node"}')} == nodes, 60)
    itself = 'min_over_time(up{job="prometheus"}[1m])'  # each 15 s; the first time may be to come
    assert {s["value"][1] for s in asked(cluster, itself)} <= {"1"}


def test_grafana_takes_no_password(grafana):
    health = urllib.request.urlopen(f"{grafana}/api/datasources/uid/syncbed-prometheus/health")
    assert json.load(health)["status"] == "OK"
    login = urllib.request.Request(
        f"{grafana}/login",
        json.dumps({"user": "admin", "password": "admin"}).encode(),
        {"Content-Type": "application/json"},
    )
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(login)


def test_grafana_sends_away_a_page_whose_name_leads_to_it(grafana):
    connection = http.client.HTTPConnection(grafana.removeprefix("http://"))
    connection.request("GET", "/api/search", headers={"Host": "evil.example:3000"})
    answer = connection.getresponse()
    assert (answer.status, answer.getheader("Location")) == (301, f"{grafana}/api/search")
    connection.close()
