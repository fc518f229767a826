"""Whom the three ports answer: known names, and nothing that a page of another site had a browser send."""

import http.client
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving_client import IMAGE, ask

from serving.layer import refusal
from trainer.hosts import LOOPBACK, Hosts

REGISTER = "/models?url=first&model_name=csrf&initial_workers=16&max_batch_delay=10000"


def scope(*headers, version="1.1", server=("10.9.8.7", 8081)):
    return {
        "headers": [(n.encode(), v.encode("latin-1")) for n, v in headers],
        "http_version": version,
        "server": server,
    }


def status(hosts, *headers, **more):
    refused = refusal(hosts, scope(*headers, **more))
    return refused.status if refused else 200


def raw(port, text):
    with socket.create_connection(("127.0.0.1", port), 20) as client:
        client.sendall(text)
        return client.recv(4096)


FOREIGN = [
    ({"Host": "evil.example:18281", "Origin": "http://evil.example:18281"}, 421),  # DNS rebinding
    ({"Host": "evil.example"}, 421),
    ({"Host": "localhost.evil.example"}, 421),
    ({"Host": "127.0.0.1@evil.example"}, 421),
    ({"Host": "127.0.0.1:8081:80"}, 421),
    ({"Host": ""}, 421),
    ({"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site", "Content-Type": "text/plain"}, 403),  # CSRF
    ({"Origin": "http://127.0.0.1:3000"}, 403),  # Grafana's pages, of the same machine
    ({"Origin": "null"}, 403),  # a sandboxed frame, a file
    ({"Sec-Fetch-Site": "cross-site"}, 403),  # an image or a link
    ({"Sec-Fetch-Site": "same-site"}, 403),
]


@pytest.mark.parametrize(("headers", "refusal"), FOREIGN)
def test_no_page_of_another_site_is_answered_on_any_port(fresh, headers, refusal):
    fresh.manage("POST", "/models?url=first&model_name=cnn&initial_workers=1&synchronous=true")
    requests = [
        (fresh.management, "DELETE", "/models/cnn"),
        (fresh.management, "POST", REGISTER),
        (fresh.management, "PUT", "/models/cnn?min_worker=0"),
        (fresh.management, "GET", "/models"),
        (fresh.metrics, "GET", "/metrics"),
        (fresh.port, "GET", "/ping"),
        (fresh.port, "POST", "/predictions/cnn"),
        (fresh.port, "POST", "/v2/models/cnn/infer"),
    ]
    for port, method, path in requests:
        answer = ask(port, method, path, IMAGE if "cnn" in path else None, headers)
        assert answer.status == refusal, path
        assert answer.json.get("error") or answer.json["message"], "one line says why"
        assert "access-control-allow-origin" not in answer.headers
    assert [one["modelName"] for one in fresh.manage("GET", "/models").json["models"]] == ["cnn"]
    assert fresh.predict(IMAGE).status == 200


def test_a_preflight_is_granted_nothing(served):
    asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "DELETE"}
    for port in (served.port, served.management, served.metrics):
        answer = ask(port, "OPTIONS", "/models/cnn", headers=asked)
        assert answer.status == 403 and not any(name.startswith("access-control") for name in answer.headers)


def test_programs_are_answered_as_before(served):
    for host in ("localhost", "LOCALHOST:9", "127.0.0.1", f"127.0.0.1:{served.port}", "[::1]", "[::1]:80"):
        assert ask(served.port, "GET", "/ping", headers={"Host": host}).status == 200
    assert raw(served.port, b"GET /ping HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200"), "images/http-ok.sh"
    own = f"http://127.0.0.1:{served.management}"
    answer = ask(served.management, "GET", "/models", headers={"Origin": own, "Sec-Fetch-Site": "same-origin"})
    assert answer.status == 200


def test_a_request_names_one_host(served):
    for head in (b"", b"Host: localhost\r\nHost: evil.example\r\n", b"Host: evil.example\r\nHost: localhost\r\n"):
        assert raw(served.port, b"GET /ping HTTP/1.1\r\n" + head + b"\r\n").startswith(
            (b"HTTP/1.1 421", b"HTTP/1.1 400")
        )


def test_a_refused_body_leaves_the_connection_where_it_was(served):
    connection = http.client.HTTPConnection("127.0.0.1", served.management, timeout=20)
    for headers, expected in (({"Origin": "null"}, 403), ({}, 404)):
        connection.request("POST", "/models?url=nowhere", bytes(500_000), headers)
        answer = connection.getresponse()
        assert answer.status == expected and answer.read()
    connection.close()


def test_the_cluster_adds_a_name_and_prometheus_asks_for_an_address():
    hosts = Hosts(["serve"])
    assert status(hosts, ("host", "serve:8082")) == status(hosts, ("host", "10.9.8.7:8082")) == 200
    assert status(hosts, ("host", "[fd00::7]:8082"), server=("fd00::7", 8082)) == 200
    assert status(Hosts(), ("host", "serve:8082")) == 421
    assert status(hosts, ("host", "10.9.8.6:8082")) == 421, "that of another machine"


@given(st.text(st.characters(max_codepoint=255), max_size=40))
@settings(max_examples=200)
def test_any_other_host_is_refused_in_one_line(name):
    host = name.lower()
    expected = 200 if host.rsplit(":", 1)[0] in LOOPBACK or host in LOOPBACK else 421
    refused = refusal(Hosts(), scope(("host", name), server=None))
    if refused:
        assert refused.status == 421 and refused.message.isprintable() and len(refused.message) <= 300
    else:
        assert expected == 200


@given(st.text(st.characters(max_codepoint=255), max_size=40))
@settings(max_examples=200)
def test_any_other_origin_is_refused(origin):
    expected = 200 if origin.lower() in ("http://localhost:8081", "https://localhost:8081") else 403
    assert status(Hosts(), ("host", "localhost:8081"), ("origin", origin)) == expected
