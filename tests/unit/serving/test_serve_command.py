"""`syncbed serve` and `serve-stop`: which server they mean, what they do when two run at once, and what was left."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import psutil
import pytest
import requests
from process_ids import in_place_of_another, needs_root

from monitor.engine.naming import CODE_LABEL, ROLE_LABEL
from monitor.errors import RunFailed, UserError
from monitor.runtime.ownership import own
from monitor.serve import cluster_host, command, local_host, management


class Place:
    """A server that serves these models, or none."""

    def __init__(self, port=None, *names):
        self._port, self.names, self.stopped = port, list(names), False

    def port(self):
        return self._port

    def stop(self):
        self.stopped = True
        return [f"server {self._port}"] if self._port else []


@pytest.fixture
def places(monkeypatch):
    """The cluster's, which serves nothing, and this machine's, which serves a and b."""
    made = [Place(), Place(8080, "a", "b")]
    monkeypatch.setattr(command, "hosts", lambda settings: made)
    monkeypatch.setattr(management, "names", lambda port: next(place.names for place in made if place.port() == port))

    def manage(port, method, path):
        next(place.names for place in made if place.port() == port).remove(path.removeprefix("/models/"))

    monkeypatch.setattr(management, "manage", manage)
    return made


def stop(capsys, **settings):
    assert command.stop_command(settings, SimpleNamespace(json=True)) == 0
    return json.loads(capsys.readouterr().out)["removed"]


def test_what_was_served_before_the_cluster_came_is_stopped_too(places, capsys):
    assert stop(capsys, NAME="a") == ["model a"] and not places[1].stopped
    assert stop(capsys, NAME="b") == ["model b", "server 8080"], "with its last model the server goes"
    with pytest.raises(UserError, match="NAME=c: not served; nothing is"):
        stop(capsys, NAME="c")
    assert stop(capsys) == ["server 8080"] and places[0].stopped


def test_where_to_look_is_said_or_both(monkeypatch):
    cluster = Place()
    monkeypatch.setattr(command.cluster_host, "find", lambda project, required: cluster)
    kinds = {
        words: [type(place).__name__ for place in command.hosts(dict(word.split("=") for word in words.split()))]
        for words in ("", "RUNTIME=docker", "RUNTIME=local", "PROJECT=x")
    }
    assert kinds == {
        "": ["Place", "LocalHost"], "RUNTIME=docker": ["Place"], "RUNTIME=local": ["LocalHost"], "PROJECT=x": ["Place"],
    }  # fmt: skip


def test_a_server_of_an_older_image_can_be_stopped_but_not_added_to(monkeypatch, tmp_path):
    image = SimpleNamespace(labels={CODE_LABEL: "of before"})
    node = SimpleNamespace(
        labels={ROLE_LABEL: "node"}, image=image, attrs={"Config": {"Image": "tag"}}, status="running"
    )
    volume = SimpleNamespace(remove=lambda: None)
    client = SimpleNamespace(volumes=SimpleNamespace(get=lambda name: volume))
    monkeypatch.setattr(cluster_host.containers, "containers", lambda client, project: [node])
    place = cluster_host.ClusterHost(client, "x")
    assert place.port() is None and place.stop() == ["volume x_models"]
    for call in (lambda: place.put(tmp_path, "a"), lambda: place.start(8080)):
        with pytest.raises(UserError, match="older image; `make cluster-up PROJECT=x` rebuilds it"):
            call()


@pytest.mark.parametrize(
    ("status", "words", "started"),
    [("exited", {}, [8123]), ("exited", {"PORT": "8200"}, [8200]), ("running", {}, []), (None, {}, [8080])],
)
def test_a_server_that_was_stopped_comes_back_on_the_port_it_had(monkeypatch, tmp_path, status, words, started):
    bound = {f"{8080 + i}/tcp": [{"HostPort": str(8123 + i)}] for i in range(3)}
    node = SimpleNamespace(
        labels={ROLE_LABEL: "node"}, image=None, attrs={"Config": {"Image": "tag"}}, status="running"
    )
    server = SimpleNamespace(labels={ROLE_LABEL: "serve"}, attrs={"HostConfig": {"PortBindings": bound}}, status=status)
    monkeypatch.setattr(cluster_host.containers, "containers", lambda *a: [node, server] if status else [node])
    place, on = cluster_host.ClusterHost(None, "x"), []
    place.start = on.append
    monkeypatch.setattr(command, "hosts", lambda settings: [place])
    (tmp_path / "model.json").write_text(json.dumps({"model": "vgg", "run": "r", "sha256": "0" * 64}))
    monkeypatch.setattr(command.export, "present", lambda run, runs: tmp_path)
    monkeypatch.setattr(command, "_check_ports", lambda port: None)
    monkeypatch.setattr(management, "served", lambda port: {"r-00000000"})
    monkeypatch.setattr(management, "register", lambda port, *more: str(port))
    assert command.command(words, SimpleNamespace(json=False, run="latest")) == 0
    assert on == started


@pytest.fixture
def here(monkeypatch, tmp_path):
    """This machine as a place, with temporary files of its own."""
    monkeypatch.setattr(local_host.tempfile, "gettempdir", lambda: str(tmp_path))
    return local_host.LocalHost()


def test_an_artefact_takes_the_place_of_what_an_earlier_serve_left(here, tmp_path):
    (here._store / ".a").mkdir(parents=True)
    (here._store / ".a" / "junk").touch()
    for content in ("one", "two"):
        (tmp_path / "made").mkdir(exist_ok=True)
        (tmp_path / "made" / "model.json").write_text(content)
        here.put(tmp_path / "made", "a")
    assert [path.name for path in here._store.iterdir()] == ["a"]
    assert [path.name for path in (here._store / "a").iterdir()] == ["model.json"]
    assert (here._store / "a" / "model.json").read_text() == "two"


def test_a_folder_that_cannot_be_written_is_one_line(here, tmp_path):
    with pytest.raises(RunFailed, match=r"syncbed-serve-.* cannot be written"):
        here.put(tmp_path / "nothing", "a")


def test_the_servers_answer_is_asked_for_without_a_proxy(monkeypatch):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args):
            pass

    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert local_host._answers(server.server_port)
        with pytest.raises(requests.RequestException):
            requests.get(f"http://127.0.0.1:{server.server_port}/ping", timeout=5)
        server.shutdown()


SLEEPER = "import sys, time; print('up', flush=True); time.sleep(600)"


@pytest.mark.parametrize(
    "started", [subprocess.Popen, pytest.param(in_place_of_another, marks=needs_root)], ids=["anew", "under a used id"]
)
def test_a_server_is_found_and_stopped_though_serve_was_killed_as_soon_as_it_had_started_it(here, tmp_path, started):
    """All that is left of `serve` then is the lock, which the server holds."""
    (tmp_path / "serving.py").write_text(SLEEPER)
    here._store.mkdir(parents=True)
    with own(here._folder) as lock:
        server = started(
            [sys.executable, "-m", "serving", "--store", str(here._store), "--port", "8123"],
            cwd=tmp_path, pass_fds=[lock.fileno()], stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": ""},
        )  # fmt: skip
    try:
        assert server.stdout.readline() == b"up\n"
        assert here.port() == 8123
        threading.Thread(target=server.wait).start()
        assert here.stop() == [f"process {server.pid}", f"folder {here._folder}"]
        assert here.port() is None and here.stop() == []
    finally:
        server.kill()
        server.stdout.close()


def test_ctrl_c_while_the_server_starts_leaves_nothing(here, monkeypatch):
    started = []
    popen = subprocess.Popen

    def start(command, **how):
        started.append(popen([sys.executable, "-c", SLEEPER], **{**how, "env": None}))
        return started[0]

    def interrupt(port):
        raise KeyboardInterrupt

    monkeypatch.setattr(local_host.subprocess, "Popen", start)
    monkeypatch.setattr(local_host, "_answers", interrupt)
    with pytest.raises(KeyboardInterrupt):
        here.start(8080)
    assert not psutil.pid_exists(started[0].pid) and not here._folder.exists()
