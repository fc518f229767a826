"""From `syncbed run` to predictions over HTTP, as a user does it on this machine: they are the trainer's evaluation."""

import http.client
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
from orchestrator import ROOT, syncbed, wait_until
from serving_client import ask, png, three_free_ports

from trainer.checkpoint.files import read
from trainer.data.batches import normalise
from trainer.data.prepared import load
from trainer.models.build import build
from trainer.spec import RunSpec


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A run, and its model served by a process of its own, with the temporary files of these tests."""
    folder = tmp_path_factory.mktemp("serving")
    own = {"TMPDIR": str(tmp_path_factory.mktemp("tmp"))}
    words = ("SYNC=single", "MODEL=cnn3", "DATA=synthetic", "STEPS=20", "BATCH=64", "RUNTIME=local", "PAGES=0")
    done = syncbed(folder, "run", *words)
    assert done.returncode == 0, done.stderr
    port = three_free_ports()
    try:
        done = syncbed(folder, "serve", "RUNTIME=local", f"PORT={port}", "--json", **own)
        assert done.returncode == 0, done.stderr
        yield SimpleNamespace(folder=folder, port=port, own=own, **json.loads(done.stdout))
    finally:
        syncbed(folder, "serve-stop", "RUNTIME=local", **own)


def test_predictions_of_the_whole_test_set_are_the_trainers_evaluation(served):
    home = served.folder / "runs" / served.run
    result = json.loads((home / "result.json").read_text())
    data = load(served.folder / "data" / result["data"]["key"])
    module = build(RunSpec(**result["spec"]), len(data.classes))
    module.load_state_dict(read(home / result["checkpoints"][-1]["path"] / "model.pt")["model"])
    with torch.inference_mode():
        images = np.array(data.test.images)
        expected = module.eval()(normalise(images, data.mean, data.std)).softmax(1).numpy()

    def predict(mine: slice) -> list[dict]:
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
        answers = []
        for pixels in images[mine]:
            connection.request("PUT", f"/predictions/{served.name}", png(pixels))
            answer = connection.getresponse()
            answers.append(json.loads(answer.read()))
            assert answer.status == 200, answers[-1]
        connection.close()
        return answers

    parts = [slice(start, start + 250) for start in range(0, len(images), 250)]
    with ThreadPoolExecutor(len(parts)) as pool:
        answers = [answer for part in pool.map(predict, parts) for answer in part]
    found = np.array([[answer.get(name, np.nan) for name in data.classes] for answer in answers])
    told = ~np.isnan(found)
    assert len(found) == len(data.test) == result["test_samples_counted"] and (told.sum(1) == 5).all()
    assert np.allclose(found[told], expected[told], atol=2e-6)
    assert np.nanmin(found, 1) == pytest.approx(np.sort(expected, 1)[:, -5], abs=2e-6), "the five most likely"
    confusion = np.zeros((len(data.classes),) * 2, int)
    for label, answer in zip(data.test.labels, answers, strict=True):
        confusion[label, data.classes.index(next(iter(answer)))] += 1
    assert confusion.tolist() == result["confusion_matrix"]


def test_another_model_joins_and_the_same_one_is_not_loaded_twice(served):
    done = syncbed(served.folder, "serve", "RUNTIME=local", "NAME=other", **served.own)
    assert done.returncode == 0, done.stderr
    again = syncbed(served.folder, "serve", "RUNTIME=local", "NAME=other", "--json", **served.own)
    assert json.loads(again.stdout)["version"] == "1.0"
    refused = syncbed(served.folder, "serve", "RUNTIME=local", "NAME=other", "MAX_BATCH=3", **served.own)
    assert refused.returncode == 2 and "NAME=other: served already, batched in another way" in refused.stderr
    refused = syncbed(served.folder, "serve", "RUNTIME=local", "PORT=1234", **served.own)
    assert refused.returncode == 2 and f"a server runs on {served.port} already" in refused.stderr
    assert syncbed(served.folder, "serve-stop", "RUNTIME=local", "NAME=other", **served.own).returncode == 0
    assert [one["modelName"] for one in ask(served.port + 1, "GET", "/models").json["models"]] == [served.name]
    taken = syncbed(served.folder, "serve", "RUNTIME=local", f"PORT={served.port + 1}", TMPDIR=str(served.folder))
    assert taken.returncode == 2 and f"{served.port + 1} is taken" in taken.stderr


def tmp(served) -> Path:
    return Path(served.own["TMPDIR"])


def server_of(served) -> psutil.Process:
    (store,) = map(str, tmp(served).glob("syncbed-serve-*/store"))
    return next(p for p in psutil.process_iter(["cmdline"]) if store in (p.info["cmdline"] or ()))


def test_sigterm_is_a_good_end(tmp_path):
    command = [sys.executable, "-m", "serving", "--store", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout.readline().startswith("serving on ")
        server.terminate()
        assert server.wait(60) == 0


def test_after_kill_9_nothing_is_left(served):
    server_of(served).kill()
    wait_until(lambda: "folder" in syncbed(served.folder, "clean", DOCKER_HOST="unix:///none", **served.own).stdout)
    assert list(tmp(served).glob("syncbed-serve-*")) == []
    assert syncbed(served.folder, "serve-stop", "RUNTIME=local", **served.own).stdout == "nothing was served\n"
