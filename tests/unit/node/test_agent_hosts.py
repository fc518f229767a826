"""Whom an agent answers: its node's name, its address and localhost, and no page of another site."""

import http.client
import socket

import pytest
from agent_scrape import get, serving

PAGES = ("/metrics", "/targets", "/nothing")


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    with serving("cgroup-v2/container", tmp_path_factory.mktemp("metrics"), world_size=4) as port:
        yield port


def answer(port: int, path: str, **headers: str) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answered = connection.getresponse()
        return answered.status, dict(answered.getheaders()), answered.read().decode()
    finally:
        connection.close()


def raw(port: int, text: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 60) as client:
        client.sendall(text)
        return client.recv(4096)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example:9400"}, 421),  # DNS rebinding
        ({"Host": "evil.example:9400", "Origin": "http://evil.example:9400", "Sec_Fetch_Site": "same-origin"}, 421),
        ({"Host": "trainer-3.evil.example"}, 421),
        ({"Host": "trainer-2:9400"}, 421),  # another node
        ({"Host": "0.0.0.0:9400"}, 421),
        ({"Host": ""}, 421),
        ({"Host": "\xff"}, 421),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "same-site"}, 403),
    ],
)
def test_no_page_of_another_site_reads_it(port, headers, status):
    for path in PAGES:
        got, sent, text = answer(port, path, **headers)
        assert (got, text.count("\n")) == (status, 1) and text.isascii()
        assert "syncbed_" not in text and not any(name.lower().startswith("access-control") for name in sent)


def test_prometheus_the_orchestrator_and_health_checks_are_answered(port):
    for host in (f"trainer-3:{port}", f"127.0.0.1:{port}", "localhost", "TRAINER-3"):
        assert answer(port, "/metrics", Host=host)[0] == 200, host
    assert get(port)[0] == 200
    assert raw(port, b"GET /metrics HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200"), "images/http-ok.sh"


@pytest.mark.parametrize("head", [b"", b"Host: localhost\r\nHost: evil.example\r\n", b"Host: localhost\r\n x\r\n"])
def test_a_request_names_one_host(port, head):
    assert raw(port, b"GET /metrics HTTP/1.1\r\n" + head + b"\r\n").startswith(b"HTTP/1.1 421")


def test_a_preflight_is_granted_nothing(port):
    sent = raw(port, b"OPTIONS /metrics HTTP/1.1\r\nHost: localhost\r\nOrigin: https://evil.example\r\n\r\n")
    assert sent.startswith(b"HTTP/1.1 501") and b"access-control" not in sent.lower()


def test_its_connection_stays_open_after_a_refusal(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    for host, status in (("evil.example", 421), ("localhost", 200)):
        connection.request("GET", "/metrics", headers={"Host": host})
        answered = connection.getresponse()
        assert (answered.status, bool(answered.read())) == (status, True)
    connection.close()
