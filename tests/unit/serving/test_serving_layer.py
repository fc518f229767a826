"""Clients as they are: they leave, send what nobody reads, take nothing, or are too many. And the end of the server."""

import asyncio
import http.client
import json
import socket
import threading
from types import SimpleNamespace

import pytest
from serving_client import IMAGE, Held, ask, in_flight, running, wait_until

from serving import layer, server
from serving.errors import Refused
from serving.intake import Intake

TENSOR = json.dumps({"inputs": [{"name": "images", "datatype": "UINT8", "shape": [1, 3, 32, 32], "data": [0] * 3072}]})


def send(port, method, path, body, *headers) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), 20)
    head = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *headers]
    client.sendall("\r\n".join(head).encode() + b"\r\n\r\n" + body)
    return client


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("PUT", "/predictions/dog", 404),
        ("PUT", "/predictions/second", 503),
        ("POST", "/v2/models/dog/infer", 404),
        ("POST", "/ping", 405),
        ("PUT", "/nowhere", 404),
    ],
)
def test_an_answer_that_does_not_need_the_body_reaches_who_sends_one(fresh, method, path, status):
    fresh.manage("POST", "/models?url=first&model_name=cnn&initial_workers=1")
    fresh.manage("POST", "/models?url=second")  # without workers
    connection = http.client.HTTPConnection("127.0.0.1", fresh.port, timeout=20)
    for _ in range(2):
        connection.request(method, path, bytes(5_000_000))
        answer = connection.getresponse()
        assert answer.status == status and answer.read()
    connection.request("PUT", "/predictions/cnn", IMAGE)
    assert connection.getresponse().status == 200, "the connection goes on where it was"
    connection.close()


def test_who_asks_before_sending_a_body_is_told(served):
    def ask_first(path):
        head = f"PUT {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(IMAGE)}\r\nExpect: 100-continue\r\n\r\n"
        client = socket.create_connection(("127.0.0.1", served.port), 20)
        client.sendall(head.encode())
        return client, client.recv(4096)

    client, got = ask_first("/predictions/cnn")
    assert got == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.sendall(IMAGE)
    assert client.recv(4096).startswith(b"HTTP/1.1 200 ")
    client.close()
    client, got = ask_first("/predictions/dog")
    assert got.startswith(b"HTTP/1.1 404 ") and b"connection: close" in got, "else the next request would be the body"
    client.close()


@pytest.mark.parametrize("offer", ["Upgrade: h2c", "upgrade: websocket"])
def test_an_offer_of_another_protocol_is_ignored(served, offer):
    """As `curl --http2` and Java's client make it with every request over plain HTTP."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
    name, value = offer.split(": ")
    for method, path in (("PUT", "/predictions/cnn"), ("POST", "/predictions/cnn"), ("GET", "/ping")):
        connection.request(method, path, IMAGE if "cnn" in path else None, {"Connection": "Upgrade", name: value})
        answer = connection.getresponse()
        assert answer.status == 200 and answer.read()
    connection.close()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [("PUT", "/predictions/cnn", IMAGE), ("POST", "/v2/models/cnn/infer", TENSOR.encode())],
)
def test_what_nobody_waits_for_any_more_is_not_computed(fresh, monkeypatch, method, path, body):
    monkeypatch.setattr(server, "SILENT_SECONDS", 0.05)
    fresh.manage("POST", "/models?url=first&model_name=cnn&initial_workers=1&batch_size=1")
    batcher, held = fresh.models.find("cnn").batcher, Held(fresh)
    threads, answers = in_flight(fresh, 1)
    assert held.computing.wait(20)
    clients = [send(fresh.port, method, path, body) for _ in range(3)]
    wait_until(lambda: len(batcher) == 3)
    for client in clients[:2]:
        client.close()
    wait_until(lambda: len(batcher) == 1)
    held.may.set()
    assert clients[2].recv(4096).startswith(b"HTTP/1.1 200 ")
    threads[0].join()
    assert held.calls == 2 and answers[0].status == 200
    text = ask(fresh.metrics, "GET", "/metrics").body.decode()
    assert 'syncbed_serving_requests_total{code="499",model="cnn"} 2.0' in text
    assert 'syncbed_serving_requests_total{code="200",model="cnn"} 2.0' in text
    clients[2].close()


@pytest.mark.parametrize("requests", [[("GET", "/ping", b"")], [("PUT", "/predictions/cnn", IMAGE)] * 2])
def test_who_says_that_no_more_comes_is_answered(served, requests):
    """As `nc -N` does: a connection that the client closed on its side alone (RFC 9112, section 9.6)."""
    sent = b"".join(
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        for method, path, body in requests
    )
    with socket.create_connection(("127.0.0.1", served.port), 20) as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        got = b""
        while chunk := client.recv(4096):  # until the server closes
            got += chunk
    assert got.count(b"HTTP/1.1 200 OK") == len(requests)


@pytest.mark.parametrize(
    "sent", [b"", b"GET /pi", b"PUT /predictions/cnn HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nabc"]
)
def test_half_a_request_that_ends_closes_the_connection(served, sent):
    with socket.create_connection(("127.0.0.1", served.port), 20) as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        assert client.recv(4096) == b""


def test_who_leaves_while_his_body_comes_is_counted_as_gone(fresh):
    fresh.manage("POST", "/models?url=first&model_name=cnn&initial_workers=1")
    with socket.create_connection(("127.0.0.1", fresh.port), 20) as client:
        client.sendall(b"PUT /predictions/cnn HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\nabc")
    counted = b'syncbed_serving_requests_total{code="499",model="cnn"} 1.0'
    wait_until(lambda: counted in ask(fresh.metrics, "GET", "/metrics").body)


def test_two_bodies_are_read_at_once_a_bounded_number_waits_and_the_rest_is_refused():
    may, lock, now = threading.Event(), threading.Lock(), SimpleNamespace(at_once=0, most=0)

    def read(number):
        with lock:
            now.at_once += 1
            now.most = max(now.most, now.at_once)
        assert may.wait(20)
        with lock:
            now.at_once -= 1
        return number

    async def scenario():
        intake = Intake(1, 1, capacity=4)
        tasks = [asyncio.create_task(intake.convert(read, number)) for number in range(6)]
        await asyncio.sleep(0)
        with pytest.raises(Refused, match="4 bodies are waiting"):
            await tasks[5]
        may.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        return found, await intake.convert(read, 7)

    found, later = asyncio.run(scenario())
    assert found[:4] == [0, 1, 2, 3] and [one.status for one in found[4:]] == [503, 503] and later == 7
    assert now.most == 2


@pytest.mark.parametrize(("path", "word"), [("/ping", "message"), ("/v2", "error")])
def test_too_many_connections_are_told_to_come_again(served, monkeypatch, path, word):
    monkeypatch.setattr(layer, "CONNECTIONS", 2)
    idle = [socket.create_connection(("127.0.0.1", served.port), 20) for _ in range(2)]
    wait_until(lambda: ask(served.port, "GET", path).status == 503)
    answer = ask(served.port, "GET", path)
    assert answer.headers["retry-after"] == "1" and "2 connections are open" in answer.json[word]
    for one in idle:
        one.close()
    wait_until(lambda: ask(served.port, "GET", path).status == 200)


def test_who_takes_no_answer_is_cut_off(monkeypatch):
    """The kernel holds megabytes before a write has to wait, so the transport is scripted."""
    monkeypatch.setattr(server, "TAKE_SECONDS", 0.05)

    async def scenario():
        aborted, calls = asyncio.Event(), []
        made = server.Protocol.__new__(server.Protocol)
        made.loop, made.transport = asyncio.get_running_loop(), SimpleNamespace(abort=aborted.set)
        made.flow = SimpleNamespace(
            pause_writing=lambda: calls.append("pause"), resume_writing=lambda: calls.append("go on")
        )
        made.pause_writing()
        made.resume_writing()
        assert made._stuck is None and not aborted.is_set()
        made.pause_writing()
        await asyncio.wait_for(aborted.wait(), 20)
        return calls

    assert asyncio.run(scenario()) == ["pause", "go on", "pause"]


def test_what_cannot_be_answered_before_the_end_is_told_to_come_again(own_store, monkeypatch):
    monkeypatch.setattr(server, "DRAIN_SECONDS", 0.1)
    with running(own_store) as made:
        made.manage("POST", "/models?url=first&model_name=cnn&initial_workers=1&batch_size=1")
        held = Held(made)
        threads, answers = in_flight(made, 3)
        wait_until(lambda: held.computing.is_set() and len(made.models.find("cnn").batcher) == 2)
        made.stop()
        for thread in threads:
            thread.join(20)
        held.may.set()
    assert [(a.status, a.headers["retry-after"], a.json["message"]) for a in answers] == [
        (503, "1", "the server ends")
    ] * 3


def test_two_servers_cannot_have_one_port():
    first = server.listen("127.0.0.1", [0])
    port = first[0].getsockname()[1]
    with pytest.raises(OSError) as refused:
        server.listen("127.0.0.1", [port])
    assert refused.value.filename == str(port)
    first[0].close()
