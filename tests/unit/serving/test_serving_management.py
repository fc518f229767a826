"""TorchServe's management interface: as it documents it, what it refuses, and what outlives a restart."""

import pytest
from serving_client import IMAGE, PIXELS, ask, png, running


def test_management_as_torchserve_documents_it(fresh):
    assert fresh.manage("GET", "/models").json == {"models": []}
    made = fresh.manage("POST", "/models?url=first&model_name=vgg&initial_workers=1&synchronous=true")
    assert (made.status, made.json) == (
        200, {"status": 'Model "vgg" Version: 1.0 registered with 1 initial workers'},
    )  # fmt: skip
    assert fresh.manage("GET", "/models").json == {"models": [{"modelName": "vgg", "modelUrl": "first"}]}
    assert "Use scale workers API" in fresh.manage("POST", "/models?url=second").json["status"]
    assert ask(fresh.port, "GET", "/v2/health/ready").status == 503, "ready is when all models are"
    page = fresh.manage("GET", "/models?limit=1").json
    assert page == {"nextPageToken": "1", "models": [{"modelName": "second", "modelUrl": "second"}]}
    assert fresh.manage("GET", "/models?limit=1&next_page_token=1").json["models"][0]["modelName"] == "vgg"
    (about,) = fresh.manage("GET", "/models/vgg").json
    assert (about["modelName"], about["modelVersion"], about["modelUrl"]) == ("vgg", "1.0", "first")
    assert (about["minWorkers"], about["maxWorkers"], about["batchSize"], about["maxBatchDelay"]) == (1, 1, 32, 5)
    assert [worker["status"] for worker in about["workers"]] == ["READY"]
    assert about["jobQueueStatus"] == {"remainingCapacity": 64, "pendingRequests": 0}
    assert about["customizedMetadata"]["run"] == "r-1"

    grey = png(PIXELS[:1])
    assert fresh.predict(grey, "/predictions/second").status == 503, "it has no workers yet"
    ready = ask(fresh.port, "GET", "/v2/models/second/ready")
    assert (ready.status, ready.json) == (503, {"name": "second", "ready": False})
    scaled = fresh.manage("PUT", "/models/second?min_worker=2")
    assert (scaled.status, scaled.json) == (202, {"status": "Processing worker updates..."})
    scaled = fresh.manage("PUT", "/models/second/1.0?min_worker=3&synchronous=true")
    assert (scaled.status, scaled.json["status"]) == (200, "Workers scaled to 3 for model: second, version: 1.0")
    assert fresh.predict(grey, "/predictions/second").status == 200
    assert ask(fresh.port, "GET", "/v2/health/ready").status == 200

    made = fresh.manage("POST", "/models?url=second&model_name=vgg&initial_workers=1")
    assert (made.status, made.json) == (202, {"status": "Processing worker updates..."})
    assert [one["modelVersion"] for one in fresh.manage("GET", "/models/vgg/all").json] == ["1.0", "2.0"]
    assert fresh.manage("GET", "/models/vgg").json[0]["modelVersion"] == "2.0", "what came last is the default"
    assert fresh.manage("PUT", "/models/vgg/1.0/set-default").status == 200
    assert fresh.manage("GET", "/models/vgg").json[0]["modelVersion"] == "1.0"
    assert fresh.manage("DELETE", "/models/vgg/1.0").status == 403
    assert fresh.manage("DELETE", "/models/vgg/2.0").json == {"status": 'Model "vgg" unregistered'}
    assert fresh.manage("DELETE", "/models/vgg").status == 200
    assert fresh.predict(IMAGE, "/predictions/vgg").status == 404


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/models", 400),
        ("POST", "/models?url=http://169.254.169.254/model.mar", 400),
        ("POST", "/models?url=file:///etc/passwd", 400),
        ("POST", "/models?url=../first", 400),
        ("POST", "/models?url=..", 400),
        ("POST", "/models?url=first/../first", 400),
        ("POST", "/models?url=%2e%2e%2ffirst", 400),
        ("POST", "/models?url=first%00", 400),
        ("POST", "/models?url=/etc", 400),
        ("POST", "/models?url=served.json", 404),
        ("POST", "/models?url=third", 404),
        ("POST", "/models?url=first&model_name=../x", 400),
        ("POST", "/models?url=first&model_name=x&initial_workers=99", 400),
        ("POST", "/models?url=first&model_name=x&batch_size=0", 400),
        ("POST", "/models?url=first&model_name=cnn", 409),
        ("PUT", "/models/cnn?min_worker=x", 400),
        ("PUT", "/models/cnn?min_worker=2&max_worker=1", 400),
        ("PUT", "/models/dog?min_worker=1", 404),
        ("PUT", "/models/cnn/9.0/set-default", 404),
        ("DELETE", "/models/dog", 404),
        ("DELETE", "/models/cnn/9.0", 404),
        ("GET", "/models/dog", 404),
        ("GET", "/models?limit=0", 400),
        ("GET", "/models?next_page_token=-1", 400),
        ("PATCH", "/models", 405),
    ],
)
def test_management_refuses_in_one_line(served, method, path, status):
    answer = served.manage(method, path)
    assert answer.status == status and "\n" not in answer.json["message"]
    assert served.manage("GET", "/models").json["models"] == [{"modelName": "cnn", "modelUrl": "first"}]


def test_what_was_served_is_served_again_after_a_restart(own_store):
    with running(own_store) as made:
        made.manage("POST", "/models?url=first&model_name=cnn&initial_workers=2&batch_size=7&max_batch_delay=9")
        made.manage("POST", "/models?url=second&model_name=cnn&initial_workers=1")
        made.manage("PUT", "/models/cnn/1.0/set-default")
        before = made.manage("GET", "/models/cnn/all").json
    with running(own_store) as made:
        after = made.manage("GET", "/models/cnn/all").json
        assert made.manage("GET", "/models/cnn").json[0]["modelVersion"] == "1.0"
    for one in before + after:
        one["workers"] = len(one["workers"])
    assert after == before and after[0]["workers"] == 2 and after[0]["batchSize"] == 7


def test_what_cannot_be_served_after_a_restart_is_remembered_until_something_changes(own_store):
    """Killed on its way through what was served, a server that wrote at each step would forget what comes next."""
    with running(own_store) as made:
        for name in ("first", "second"):
            made.manage("POST", f"/models?url={name}&initial_workers=1")
    (own_store / "first").rename(own_store / ".first")
    with running(own_store) as made:
        assert made.models.names() == ["second"]
    (own_store / ".first").rename(own_store / "first")
    with running(own_store) as made:
        assert made.models.names() == ["first", "second"]


@pytest.mark.parametrize("memory", ["", "[", "7", "[1]", "[[]]", '[{"url": "first"}]', '[{"default": true}]', "\x00"])
def test_a_damaged_memory_is_no_reason_not_to_start(own_store, memory, capsys):
    (own_store / "served.json").write_text(memory)
    with running(own_store) as made:
        assert made.manage("GET", "/models").json == {"models": []}
    assert "served" in capsys.readouterr().out


def test_a_memory_that_cannot_be_written_is_no_reason_not_to_serve(own_store, capsys):
    (own_store / "served.json").mkdir()
    with running(own_store) as made:
        assert made.manage("POST", "/models?url=first&initial_workers=1&synchronous=true").status == 200
        assert made.predict(IMAGE, "/predictions/first").status == 200
    assert "a restart will not know" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("port", "path", "allowed"),
    [
        ("management", "/models", "GET, HEAD, POST"),
        ("management", "/models/vgg", "DELETE, GET, HEAD, PUT"),
        ("management", "/models/vgg/1.0", "DELETE, GET, HEAD, PUT"),
        ("management", "/models/vgg/1.0/set-default", "PUT"),
        ("port", "/predictions/vgg", "POST, PUT"),
        ("port", "/v2/models/vgg/infer", "POST"),
        ("metrics", "/metrics", "GET, HEAD"),
    ],
)
def test_a_method_that_a_path_does_not_have_is_told_all_that_it_has(served, port, path, allowed):
    answer = ask(getattr(served, port), "PATCH", path)
    assert (answer.status, answer.headers["allow"]) == (405, allowed)
