"""The public archive, fetched from a local server that behaves well or badly, and what a run falls back to."""

import hashlib
import http.server
import io
import json
import pickle
import tarfile
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from monitor.data import catalogue, cifar10, download
from monitor.data.catalogue import prepare
from monitor.data.command import command
from monitor.errors import UserError
from trainer.spec import SpecError

NAMES = [f"name{i}" for i in range(10)]


def archive() -> bytes:
    """A small archive in the public layout, its members in mixed order, with more in it than is needed."""
    rng = np.random.default_rng(5)
    files = {"data_batch_4": 4, "readme.html": b"x", "test_batch": 7, "data_batch_3": 3, "batches.meta": NAMES}
    files |= {"data_batch_2": 2, "data_batch_5": 5, "data_batch_1": 1}
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as tar:
        for name, what in files.items():
            if isinstance(what, int):  # that many images, all labelled so
                what = {"data": rng.integers(0, 256, (what, 3072), np.uint8), "labels": [what] * what}
            elif isinstance(what, list):
                what = {"label_names": what}
            raw = what if isinstance(what, bytes) else pickle.dumps(what, protocol=2)
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(raw)
            tar.addfile(member, io.BytesIO(raw))
        outside = tarfile.TarInfo("../data_batch_1")  # not one of the named members: never looked at
        tar.addfile(outside)
    return whole.getvalue()


@pytest.fixture
def server(monkeypatch):
    """Serves `body` as `how` says; counts the GET requests."""
    state = SimpleNamespace(body=archive(), how="well", gets=0, release=threading.Event())

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            if state.how == "silent":
                state.release.wait(60)
            self.send_response(404 if state.how == "missing" else 200)
            self.end_headers()

        def do_GET(self):
            state.gets += 1
            if state.how == "missing":
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(state.body)))
            self.end_headers()
            self.wfile.write(state.body[: len(state.body) // 2] if state.how == "drops" else state.body)

        def log_message(self, *_):
            pass

    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.host = f"127.0.0.1:{httpd.server_port}"
    state.url = f"http://{state.host}/cifar-10-python.tar.gz"
    monkeypatch.setattr(cifar10, "URL", state.url)
    monkeypatch.setattr(cifar10, "SHA256", hashlib.sha256(state.body).hexdigest())
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    yield state
    state.release.set()
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def fetched(cache, **how):
    return prepare("cifar10", seed=42, data_dir=None, cache=cache, **{"say": lambda _: None, **how})


def refusal(cache) -> str:
    with pytest.raises(UserError) as raised:
        fetched(cache)
    assert raised.value.exit_code == 2 and "\n" not in str(raised.value)
    assert not (cache / "cifar10").exists() and not (cache / ".cifar10.tmp").exists()
    assert list((cache / ".cifar10.download").iterdir()) == []
    return str(raised.value)


WOULD_DO = "; a network (then `make data DATA=cifar10`), DATA_DIR=folder with its files, or DATA=synthetic would do"


def test_fetched_checked_and_prepared(server, tmp_path):
    said = []
    prepared = fetched(tmp_path, say=said.append)
    assert said == [f"downloading {server.url}"]
    assert prepared.key == prepared.label == "cifar10" and prepared.manifest["source"] == server.url
    assert prepared.manifest["classes"] == NAMES
    labels = np.load(prepared.path / "train_labels.npy").tolist()
    assert labels == [1, 2, 2, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 5]  # batches by number, not as the archive has them
    assert np.load(prepared.path / "test_labels.npy").tolist() == [7] * 7
    assert list((tmp_path / ".cifar10.download").iterdir()) == []  # the archive is not kept twice
    assert fetched(tmp_path, verify=True) == prepared and server.gets == 1


def test_an_archive_left_by_a_killed_run_is_used(server, tmp_path):
    downloads = tmp_path / ".cifar10.download"
    downloads.mkdir()
    (downloads / "cifar-10-python.tar.gz").write_bytes(server.body)
    (downloads / "tmpabc").write_bytes(server.body[:100])
    fetched(tmp_path)
    assert server.gets == 0 and list(downloads.iterdir()) == []


def test_a_broken_archive_left_there_is_fetched_again(server, tmp_path):
    downloads = tmp_path / ".cifar10.download"
    downloads.mkdir()
    (downloads / "cifar-10-python.tar.gz").write_bytes(server.body[:100])
    fetched(tmp_path)
    assert server.gets == 1


def test_another_file_than_expected(server, tmp_path):
    server.body = b"<html>log in first</html>"
    assert refusal(tmp_path) == (
        f"DATA=cifar10 cannot be fetched ({server.url}: not the expected file (its SHA-256 differs)){WOULD_DO}"
    )


def test_a_connection_dropped_halfway(server, tmp_path):
    server.how = "drops"
    assert refusal(tmp_path) == f"DATA=cifar10 cannot be fetched ({server.host}: the connection broke){WOULD_DO}"
    server.how = "well"
    assert fetched(tmp_path).key == "cifar10"


def test_a_file_that_has_moved(server, tmp_path):
    server.how = "missing"
    assert refusal(tmp_path) == f"DATA=cifar10 cannot be fetched ({server.host}: answered 404 Not Found){WOULD_DO}"


def test_a_server_that_says_nothing(server, tmp_path, monkeypatch):
    server.how = "silent"
    monkeypatch.setattr(download, "ANSWER_SECONDS", 0.1)
    assert refusal(tmp_path) == f"DATA=cifar10 cannot be fetched ({server.host}: no answer){WOULD_DO}"
    assert server.gets == 0


@pytest.fixture
def offline(monkeypatch):
    """No server: the reserved name never resolves."""
    monkeypatch.setattr(cifar10, "URL", "http://nowhere.invalid/cifar-10-python.tar.gz")
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def test_no_network_and_cifar10_was_named(offline, tmp_path):
    assert refusal(tmp_path) == (
        f"DATA=cifar10 cannot be fetched (nowhere.invalid: its name does not resolve){WOULD_DO}"
    )


def test_no_network_and_nothing_was_named(offline, tmp_path):
    said = []
    made = prepare("cifar10", seed=7, data_dir=None, cache=tmp_path, say=said.append, or_synthetic=True)
    assert said == [
        "warning: cifar10 cannot be fetched (nowhere.invalid: its name does not resolve), so synthetic images are used "
        "instead; DATA_DIR=folder with its files or a network would do, DATA=synthetic silences this"
    ]
    assert made.key == "synthetic-3x32x32-s7"
    assert made.label == made.manifest["label"] == "synthetic (no DATA named, cifar10 could not be fetched)"
    assert prepare("synthetic", seed=7, data_dir=None, cache=tmp_path).label == "synthetic"  # as it was asked for


def test_nothing_was_named_and_the_cache_has_cifar10(server, offline, tmp_path, monkeypatch):
    monkeypatch.setattr(cifar10, "URL", server.url)
    first = fetched(tmp_path)
    monkeypatch.setattr(cifar10, "URL", "http://nowhere.invalid/cifar-10-python.tar.gz")
    again = prepare(
        "cifar10", seed=7, data_dir=None, cache=tmp_path, say=lambda line: pytest.fail(line), or_synthetic=True
    )
    assert again == first


def test_a_data_dir_that_cannot_be_used_is_never_replaced(offline, tmp_path):
    with pytest.raises(UserError, match=r"^DATA_DIR=.*: no such folder; "):
        prepare("cifar10", seed=7, data_dir=tmp_path / "nowhere", cache=tmp_path, or_synthetic=True)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_data_command(here, capsys):
    assert command({"DATA": "synthetic", "SEED": "5"}, SimpleNamespace(json=False)) == 0
    assert capsys.readouterr().out == (
        "synthetic: data/synthetic-3x32x32-s5\n"
        "10000 training and 2000 test images of 3x32x32, 10 classes\n"
        "SHA-256 of every file as in its manifest.json\n"
    )
    labels = here / "data" / "synthetic-3x32x32-s5" / "train_labels.npy"
    right = labels.read_bytes()
    labels.write_bytes(right[:-1] + b"\x07")
    assert command({"DATA": "synthetic", "SEED": "5"}, SimpleNamespace(json=True)) == 0
    printed = capsys.readouterr()
    assert printed.err == f"{labels.relative_to(here)} is damaged; synthetic-3x32x32-s5 is prepared anew\n"
    answer = json.loads(printed.out)
    assert (answer["path"], answer["verified"]) == ("data/synthetic-3x32x32-s5", True)
    assert (answer["train_samples"], answer["label"]) == (10_000, "synthetic")
    assert labels.read_bytes() == right


def test_the_data_command_prepares_where_a_run_will_look(here, capsys):
    assert command({"DATA": "synthetic", "SEED": "5", "DATA_CACHE": "elsewhere"}, SimpleNamespace(json=False)) == 0
    assert capsys.readouterr().out.startswith("synthetic: elsewhere/synthetic-3x32x32-s5\n")
    assert not (here / "data").exists()


def test_the_data_command_makes_what_a_model_wants(here, capsys):
    assert command({"DATA": "synthetic", "MODEL": "cnn5", "SEED": "5"}, SimpleNamespace(json=False)) == 0
    assert capsys.readouterr().out.startswith(
        "synthetic: data/synthetic-1x28x28-s5\n10000 training and 2000 test images of 1x28x28"
    )


def test_the_data_command_knows_models(here):
    with pytest.raises(SpecError, match=r"^MODEL=vgg: one of: vgg11, "):
        command({"MODEL": "vgg"}, SimpleNamespace(json=False))


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            {"DATA": "mnist", "MODEL": "vgg16"},
            "DATA=mnist: its images are 1x28x28 and MODEL=vgg16 takes 3x32x32; with this model DATA=cifar10 or svhn or "
            "synthetic would do, with this data MODEL=cnn5 or logistic",
        ),
        ({"DATA": "cifar"}, "DATA=cifar: one of: " + ", ".join(catalogue.DATA)),
        ({"DATADIR": "x"}, "DATADIR=x: no such setting; did you mean DATA_DIR?"),
        ({"SEED": "-1"}, "SEED=-1: a whole number from 0 to 2147483647"),
        ({"SEED": "4294967296"}, "SEED=4294967296: a whole number from 0 to 2147483647"),
    ],
)
def test_words_the_data_command_does_not_take(here, settings, line):
    with pytest.raises(SpecError) as raised:
        command(settings, SimpleNamespace(json=False))
    assert str(raised.value) == line and not (here / "data").exists()
