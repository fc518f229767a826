"""The Open Inference Protocol, and bodies of any kind on both protocols: nothing breaks the server."""

import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serving_client import IMAGE, PIXELS, ask, form

from serving import v2
from serving.errors import Refused


def tensor(data, datatype="UINT8", shape=(1, 3, 32, 32), name="images", **more) -> str:
    return json.dumps({"inputs": [{"name": name, "datatype": datatype, "shape": list(shape), "data": data}], **more})


def test_open_inference_protocol(served, expected):
    def get(path):
        answer = ask(served.port, "GET", path)
        assert answer.status == 200
        return answer.json

    assert get("/v2")["name"] == "syncbed" and get("/v2")["extensions"] == []
    assert get("/v2/health/live") == {"live": True} and get("/v2/health/ready") == {"ready": True}
    for base in ("/v2/models/cnn", "/v2/models/cnn/versions/1.0"):
        assert get(f"{base}/ready") == {"name": "cnn", "ready": True}
        about = get(base)
        assert about["inputs"] == [{"name": "images", "datatype": "UINT8", "shape": [-1, 3, 32, 32]}]
        assert {o["name"]: o["shape"] for o in about["outputs"]} == {"probabilities": [-1, 10], "logits": [-1, 10]}
        for body in (
            tensor(PIXELS.ravel().tolist(), id="42"),
            tensor(PIXELS[None].tolist(), id="42"),
            tensor(PIXELS.ravel().tolist(), "FP32", id="42"),
        ):
            answer = ask(served.port, "POST", f"{base}/infer", body)
            assert answer.status == 200
            said = answer.json
            assert (said["model_name"], said["model_version"], said["id"]) == ("cnn", "1.0", "42")
            found = {one["name"]: one for one in said["outputs"]}
            for row, name in enumerate(("logits", "probabilities")):
                assert found[name]["shape"] == [1, 10] and found[name]["datatype"] == "FP32"
                assert found[name]["data"] == pytest.approx(expected[row].tolist(), abs=1e-5)
    some = tensor(np.stack([PIXELS] * 3).ravel().tolist(), shape=(3, 3, 32, 32), outputs=[{"name": "logits"}])
    (only,) = ask(served.port, "POST", "/v2/models/cnn/infer", some).json["outputs"]
    assert only["name"] == "logits" and only["shape"] == [3, 10] and len(only["data"]) == 30


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("", "no JSON"),
        ("[" * 10_000, "no JSON"),
        ("[" * 100_000, "more than a request for 32 images takes"),
        ("{}", "inputs"),
        ('"x"', "no request"),
        (tensor([0] * 3072, name="x"), "named images"),
        (tensor([0] * 3072, "INT64"), "UINT8 or FP32"),
        (tensor([0] * 3072, shape=(3072,)), "shape: [n, 3, 32, 32]"),
        (tensor([0] * 3072, shape=(True, 3, 32, 32)), "shape"),
        (tensor([], shape=(0, 3, 32, 32)), "1 to 32 images"),
        (tensor([], shape=(33, 3, 32, 32)), "1 to 32 images"),
        (tensor([0] * 3071), "data"),
        (tensor([[0] * 1536] * 2), "data"),
        (tensor([0] * 3071 + ["1"]), "data"),
        (tensor([0] * 3071 + [None]), "data"),
        (tensor([0] * 3071 + [[0]]), "data"),
        (tensor([False] * 3072), "data"),
        (tensor([0] * 3071 + [256]), "0 to 255"),
        (tensor([0] * 3071 + [-1]), "0 to 255"),
        (tensor([0] * 3071 + [0.5]), "0 to 255"),
        (tensor([0] * 3071 + [10**400], "FP32"), "data"),
        (tensor([1e39] * 3072, "FP32"), "0 to 255"),
        (tensor([0] * 3071 + [-0.5], "FP32"), "0 to 255"),
        (tensor([0] * 3071 + [float("inf")], "FP32"), "no JSON"),
        (tensor([0] * 3072, "FP32").replace("[0,", "[1e999,"), "0 to 255"),
        (tensor([0] * 3072).replace("0]", "NaN]"), "no JSON"),
        (tensor([0] * 3072, outputs=[{"name": "x"}]), "outputs"),
        (tensor([0] * 3072, outputs=7), "outputs"),
        (tensor([0] * 3072, id=7), "no request"),
        (tensor([0] * 3072, id="x\ud800"), "surrogate"),
    ],
)
def test_tensors_that_cannot_be_are_one_line(served, body, says):
    answer = ask(served.port, "POST", "/v2/models/cnn/infer", body)
    assert answer.status == 400 and says in answer.json["error"] and "\n" not in answer.json["error"]
    assert served.predict(IMAGE).status == 200


MANY = 120_000  # values; 32 images of 3 x 32 x 32 have 98,304


@pytest.mark.parametrize(
    "data",
    ["0," * MANY, "[]," * MANY, "[0]," * MANY, "{}," * MANY, '"",' * MANY, "[[[[[[[[[[]]]]]]]]]]," * (MANY // 10)],
    ids=["values", "empty lists", "lists", "objects", "strings", "deep lists"],
)
def test_a_body_of_more_parts_than_images_have_costs_no_reading(monkeypatch, data):
    """10 MiB of `[[]],` would take two seconds of a core, and half a gigabyte."""
    monkeypatch.setattr(v2.json, "loads", lambda *how, **more: pytest.fail("it was read"))
    with pytest.raises(Refused, match="more than a request for 32 images takes"):
        v2.read(tensor([]).replace("[]", f"[{data}0]").encode(), (3, 32, 32), 32)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (1, 1, 1)])
@pytest.mark.parametrize("most", [1, 32])
def test_the_largest_request_is_read_however_it_is_written(shape, most):
    pixels = np.random.default_rng(0).integers(0, 256, (most, *shape))
    more = {"id": "[{,}]" * 1000, "outputs": [{"name": "logits", "parameters": {"binary_data": False}}]}
    for written in (pixels.tolist(), pixels.ravel().tolist()):
        body = json.dumps(json.loads(tensor(written, "FP32", (most, *shape), **more)), indent=1).encode()
        identity, names, images = v2.read(body, shape, most)
        assert (identity, names) == (more["id"], ["logits"]) and np.array_equal(images, pixels)


def test_json_is_read_one_at_a_time(monkeypatch):
    now, most = [], []

    def loads(body, **how):
        now.append(1)
        most.append(len(now))
        threading.Event().wait(0.02)
        now.pop()
        return {"inputs": [{"name": "images", "datatype": "UINT8", "shape": [1, 1, 1, 1], "data": [7]}]}

    monkeypatch.setattr(v2.json, "loads", loads)
    with ThreadPoolExecutor(4) as pool:
        for _, _, images in pool.map(lambda _: v2.read(b"", (1, 1, 1), 1), range(4)):
            assert images.tolist() == [[[[7]]]]
    assert most == [1] * 4


def test_models_that_are_not_there_are_told_in_the_protocols_words(served):
    for method, path in (
        ("POST", "/v2/models/dog/infer"),
        ("GET", "/v2/models/dog"),
        ("GET", "/v2/models/cnn/versions/9"),
    ):
        answer = ask(served.port, method, path, "{}" if method == "POST" else None)
        assert answer.status == 404 and list(answer.json) == ["error"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "shape", "data", "x"]), inner),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32), JSON)
def test_no_body_breaks_the_server(served, number, value):
    draw = random.Random(number)
    mutated = bytearray(IMAGE if draw.random() < 0.5 else form(IMAGE)[0])
    for _ in range(draw.randrange(1, 9)):
        mutated[draw.randrange(len(mutated))] = draw.randrange(256)
    headers = form(b"")[1] if draw.random() < 0.5 else {}
    for answer in (
        served.predict(bytes(mutated), headers=headers),
        served.predict(draw.randbytes(draw.randrange(300)), headers=headers),
        ask(served.port, "POST", "/v2/models/cnn/infer", json.dumps({"inputs": [value]})),
        ask(served.port, "POST", "/v2/models/cnn/infer", json.dumps(value)),
    ):
        assert answer.status < 500, answer.body
