"""Predictions over HTTP as TorchServe's users ask, what is refused, how it ends, and what is counted."""

import asyncio
import json
import socket
from contextlib import suppress

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from promql import known
from serving_client import IMAGE, Held, ask, form, in_flight, png, running, wait_until

from serving import server
from serving.images import is_small


def test_the_five_most_likely_most_likely_first_however_the_image_comes(served, expected):
    order = expected[1].argsort()[::-1][:5]
    body, headers = form(IMAGE)
    answers = [
        served.predict(IMAGE),
        served.predict(IMAGE, method="POST"),
        served.predict(IMAGE, "/predictions/cnn/1.0"),
        served.predict(body, method="POST", headers=headers),
        served.predict(form(IMAGE, filename=None)[0], method="POST", headers=headers),
        served.predict(IMAGE, headers={"Content-Type": "application/x-www-form-urlencoded"}, method="POST"),
    ]
    for answer in answers:
        assert answer.status == 200 and answer.headers["content-type"] == "application/json"
        assert list(answer.json) == [f"class{i}" for i in order]
        assert list(answer.json.values()) == pytest.approx(expected[1][order].tolist(), abs=1e-6)


def test_a_large_image_is_answered_too(served):
    large = png(np.random.default_rng(0).integers(0, 256, (3, 200, 200), np.uint8))
    assert not is_small(large) and is_small(IMAGE)
    assert served.predict(large).status == 200


def test_ping(served):
    assert ask(served.port, "GET", "/ping").json == {"status": "Healthy"}


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "says"),
    [
        ("PUT", "/predictions/dog", IMAGE, {}, 404, "Model not found: dog"),
        ("PUT", "/predictions/cnn/7.0", IMAGE, {}, 404, "Model not found: cnn, version 7.0"),
        ("PUT", "/predictions/cnn", b"", {}, 400, "the body is empty"),
        ("PUT", "/predictions/cnn", b"kitten", {}, 400, "not a whole JPEG, PNG or WebP image"),
        ("PUT", "/predictions/cnn", bytes(200_001), {}, 413, "larger than 200000 bytes"),
        ("PUT", "/predictions/cnn", iter([bytes(150_000)] * 2), {}, 413, "larger than 200000 bytes"),
        ("POST", "/predictions/cnn", form(IMAGE, "image")[0], form(b"")[1], 400, "no field named data"),
        (
            "POST",
            "/predictions/cnn",
            form(IMAGE)[0][:-10] + b"\r\n" + form(IMAGE)[0],
            form(b"")[1],
            400,
            "2 fields named",
        ),
        ("POST", "/predictions/cnn", b"nothing", form(b"")[1], 400, "form"),
        ("POST", "/predictions/cnn", b"x", {"Content-Type": "multipart/form-data"}, 400, "not a multipart form"),
        ("PUT", "/predictions/a%0Ab", IMAGE, {}, 404, "Model not found: a b"),
        ("PUT", "/predictions/cnn/" + "7" * 5000, IMAGE, {}, 404, "Model not found: cnn, version 777"),
        ("GET", "/predictions/cnn", None, {}, 405, "Method Not Allowed"),
        ("GET", "/", None, {}, 404, "Not Found"),
    ],
)
def test_what_cannot_be_answered_is_one_line(served, method, path, body, headers, status, says):
    answer = ask(served.port, method, path, body, headers)
    assert answer.status == status and answer.json["code"] == status and answer.json["type"].endswith("Exception")
    assert says in answer.json["message"] and "\n" not in answer.json["message"]
    assert len(answer.json["message"]) <= 300
    assert served.predict(IMAGE).status == 200


def test_a_slow_body_is_timed_out_and_a_slow_head_too(own_store, monkeypatch):
    with running(own_store, body_seconds=0.2) as made:
        assert made.manage("POST", "/models?url=first&model_name=cnn&initial_workers=1&synchronous=true").status == 200
        monkeypatch.setattr(server, "HEAD_SECONDS", 0.2)  # of a connection that is made from now on
        slow_body = b"PUT /predictions/cnn HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\nabc"
        for sent in (slow_body, b"PUT /pre", b""):
            with socket.create_connection(("127.0.0.1", made.port), 20) as slow:
                got = b""
                with suppress(ConnectionError):  # reset, where all this comes when it has closed
                    slow.sendall(sent)
                    while chunk := slow.recv(4096):  # until the server closes
                        got += chunk
                assert got.startswith(b"HTTP/1.1 408 ")


def test_a_head_without_end_is_cut_off(served):
    with socket.create_connection(("127.0.0.1", served.port), 20) as endless, pytest.raises(OSError):
        endless.sendall(b"GET /ping HTTP/1.1\r\n")
        for _ in range(1000):
            endless.sendall(b"X-Filler: " + bytes([97]) * 10_000 + b"\r\n")


def test_a_full_queue_answers_503_with_retry_after_and_serves_on(own_store):
    with running(own_store, capacity=2) as made:
        made.manage("POST", "/models?url=first&model_name=cnn&initial_workers=1&batch_size=1")
        held = Held(made)
        threads, answers = in_flight(made, 1)
        assert held.computing.wait(20)
        more = in_flight(made, 2)
        wait_until(lambda: len(made.models.find("cnn").batcher) == 2)
        full = made.predict(IMAGE)
        assert (
            full.status == 503
            and full.headers["retry-after"] == "1"
            and "2 requests are waiting" in full.json["message"]
        )
        tensor = {"inputs": [{"name": "images", "datatype": "UINT8", "shape": [1, 3, 32, 32], "data": []}]}
        assert ask(made.port, "POST", "/v2/models/cnn/infer", json.dumps(tensor)).status == 503
        held.may.set()
        for thread in threads + more[0]:
            thread.join()
        assert [answer.status for answer in answers + more[1]] == [200] * 3 and made.predict(IMAGE).status == 200


def test_a_model_that_diverged_is_told(fresh):
    fresh.manage("POST", "/models?url=first&model_name=cnn&initial_workers=1")
    batcher = fresh.models.find("cnn").batcher
    batcher._predict = lambda images: np.full((len(images), 2, 10), np.nan, np.float32)
    tensor = {"inputs": [{"name": "images", "datatype": "UINT8", "shape": [1, 3, 32, 32], "data": [0] * 3072}]}
    answer = fresh.predict(IMAGE)
    assert answer.status == 500 and "its training diverged" in answer.json["message"]
    answer = ask(fresh.port, "POST", "/v2/models/cnn/infer", json.dumps(tensor))
    assert answer.status == 500 and "its training diverged" in answer.json["error"]


def test_what_is_in_flight_is_answered_at_the_end_and_nothing_new_is_taken(fresh):
    fresh.manage("POST", "/models?url=first&model_name=cnn&initial_workers=1&batch_size=1")
    held = Held(fresh)
    threads, answers = in_flight(fresh, 3)
    wait_until(lambda: held.computing.is_set() and len(fresh.models.find("cnn").batcher) == 2)
    fresh.stop()

    def refuses():
        try:
            return fresh.predict(IMAGE, "/ping", "GET") is None
        except OSError:  # refused; or reset, where it was still in the queue of the socket that was closed
            return True

    wait_until(refuses)
    held.may.set()
    fresh.thread.join(20)
    for thread in threads:
        thread.join()
    assert [answer.status for answer in answers] == [200] * 3


@pytest.mark.parametrize("said", ["-1", "x", "18446744073709551616", "5"])
def test_wrong_lengths_break_nothing(served, said):
    with socket.create_connection(("127.0.0.1", served.port), 20) as client:
        head = f"PUT /predictions/cnn HTTP/1.1\r\nHost: [::1]\r\nConnection: close\r\nContent-Length: {said}\r\n\r\n"
        client.sendall(head.encode() + IMAGE[:50])
        client.shutdown(socket.SHUT_WR)
        got = client.recv(4096)
    assert got[9:10] in (b"4", b""), got
    assert served.predict(IMAGE).status == 200


def test_metrics_are_those_of_the_docs_and_count_what_was_asked(fresh):
    fresh.manage("POST", "/models?url=first&model_name=cnn&initial_workers=1")
    for body in (IMAGE, IMAGE, b"kitten"):
        fresh.predict(body)
    fresh.predict(IMAGE, "/predictions/dog")
    text = ask(fresh.metrics, "GET", "/metrics").body.decode()
    documented = {name: found for name, found in known().items() if name.startswith("syncbed_serving_")}
    told = {
        (sample.name, frozenset(sample.labels) - {"le"})
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert {name for name, _ in told} == documented.keys()
    assert all(labels | {"node", "job"} == documented[name][1] - {"le"} for name, labels in told)
    said = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert said['syncbed_serving_requests_total{code="200",model="cnn"}'] == "2.0"
    assert said['syncbed_serving_errors_total{code="400",model="cnn"}'] == "1.0"
    assert said['syncbed_serving_errors_total{code="404",model="none"}'] == "1.0"
    assert said['syncbed_serving_batch_size_sum{model="cnn"}'] == "2.0"
    assert said['syncbed_serving_request_seconds_count{model="cnn"}'] == "3.0"
    assert said['syncbed_serving_inference_seconds_count{model="cnn"}'] == "2.0"
    assert said['syncbed_serving_queue_requests{model="cnn"}'] == "0.0"
    assert 'syncbed_serving_model_info{default="true",model="cnn",run="r-1",version="1.0"}' in said
    assert float(said["syncbed_serving_process_resident_memory_bytes"]) > 0


def test_answers_are_not_held_back_for_an_acknowledgement():
    """asyncio.Server sets TCP_NODELAY on connections whose protocol is named, on others not."""

    async def option() -> int:
        (listening,), found = server.listen("127.0.0.1", [0]), asyncio.get_running_loop().create_future()

        def met(_, writer):
            found.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        async with await asyncio.start_server(met, sock=listening):
            _, writer = await asyncio.open_connection(*listening.getsockname())
            writer.close()
            return await asyncio.wait_for(found, 30)

    assert asyncio.run(option()) == 1
