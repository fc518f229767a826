"""`syncbed watch`: which run it finds, and what it says where there is none to watch. And the door of a run's page."""

import json
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_prometheus import Fake, serving
from ports import free_port
from report_cases import ended, write_document
from watched import Watched

from monitor import cli
from monitor.capabilities import RUNTIMES
from monitor.errors import UserError
from monitor.watch import command, server
from monitor.watch import door as door_module
from monitor.watch.door import door
from monitor.watch.server import address, listen

ID = "20260101-00000{}-ddp-cnn3-2n-abcdef"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(door_module, "PORT", free_port())  # at the usual one somebody may watch a run
    monkeypatch.setattr(command, "PORT", free_port())


def past(number: int, place: str = "runs", page: bool = True, **changes) -> str:
    """A run that has ended."""
    name = ID.format(number)
    write_document(Path(place) / name, ended(name) | changes)
    if page:
        (Path(place) / name / "report.html").touch()
    return name


def watch(capsys, *words: str) -> tuple[int, str, str]:
    code = cli.main(["watch", *words])
    return code, *capsys.readouterr()


def test_the_newest_run_that_is_on_is_found_whatever_latest_is(tmp_path):
    Watched(Path("runs"), name=ID.format(1))
    on = Watched(Path("runs"), name=ID.format(2))
    Path("runs/latest").symlink_to(past(3))
    folder, result = command.find("latest", {})
    assert (folder.name, result.status) == (on.folder.name, "running")
    assert command.find(ID.format(1), {})[0].name == ID.format(1)


def test_a_sweeps_run_is_found_where_no_other_is_on():
    past(1)
    on = Watched(Path("sweeps/mine"), name=ID.format(2))
    assert command.find("latest", {})[0] == on.folder
    assert command.find("latest", {"RUNS_DIR": "runs"})[1].status == "finished"


@pytest.mark.parametrize("words", [(), ("latest",), (f"RUN={ID.format(2)}",)])
def test_a_finished_run_is_said_with_its_page(capsys, words):
    past(1)
    Path("runs/latest").symlink_to(past(2))
    assert watch(capsys, *words) == (
        0,
        f"run {ID.format(2)} has finished; its page is runs/{ID.format(2)}/report.html\n",
        "",
    )


def test_a_run_without_a_page_is_said_with_what_makes_one(capsys):
    killed = Watched(Path("runs"), name=ID.format(1))
    write_document(killed.folder, killed.document | {"orchestrator_pid": 2**22 + 1, "orchestrator_start": "x"})
    Path("runs/latest").symlink_to(killed.folder.name)
    says = f"run {ID.format(1)} has failed; `make report RUN={ID.format(1)}` writes its page\n"
    assert watch(capsys) == (0, says, "")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "no run is on, and runs has none: `make run SYNC=ddp` in another terminal starts one"),
        (("RUNS_DIR=nowhere",), "RUNS_DIR=nowhere: no such folder"),
        (("RUN=nope",), "run nope: not found in runs"),
        (("SYNC=ddp",), "SYNC=ddp: no such setting"),
        (("PORT=0",), "PORT=0: "),
        (("PORT=http",), "PORT=http: "),
    ],
)
def test_what_cannot_be_watched_is_one_line(capsys, words, says):
    code, out, errors = watch(capsys, *words)
    assert (code, out) == (2, "") and errors.startswith(f"syncbed: {says}") and errors.count("\n") == 1


def test_a_run_that_cannot_be_read_hides_no_other():
    (Path("runs") / ID.format(5)).mkdir(parents=True)
    (Path("runs") / ID.format(5) / "result.json").write_text("{")
    on = Watched(Path("runs"), name=ID.format(2))
    assert command.find("latest", {})[0] == on.folder


def test_a_port_that_is_taken_is_said_and_the_usual_one_gives_way(capsys, monkeypatch):
    Watched(Path("runs"))
    with listen() as other:
        port = other.getsockname()[1]
        code, _, errors = watch(capsys, f"PORT={port}")
        assert code == 2 and errors.startswith(f"syncbed: PORT={port}: taken by another program")
        monkeypatch.setattr(command, "PORT", port)
        with command._listener(None) as free:
            assert address(free) != address(other)


def test_the_nodes_of_a_local_run_are_told_without_asking_anybody():
    on = Watched(Path("runs"))
    facts = command.facts_for(on.folder, command.find("latest", {})[1], None)
    assert (facts.nodes, facts.prometheus, facts.note) == (["local-0", "local-1"], None, "")
    assert facts.what == "ddp cnn3 on made up, 2 nodes, batch 8, fp32"
    assert facts.ranks == [(0, 0, "worker"), (1, 1, "worker")]


def test_a_cluster_that_cannot_be_reached_leaves_the_events(monkeypatch):
    on = Watched(Path("runs"))

    def choose(place):
        raise UserError("no cluster syncbed is up")

    monkeypatch.setattr(command.choice, "choose", choose)
    facts = command.facts_for(on.folder, command.find("latest", {})[1], None)
    assert facts.note == "Figures of nodes are missing: no cluster syncbed is up; PROJECT= names another cluster."
    assert facts.nodes == ["node 0", "node 1"]


def test_another_clusters_figures_are_not_shown(monkeypatch):
    on = Watched(Path("runs"))
    result = command.find("latest", {})[1]
    seen = ["another"]
    fake = Fake({})
    fake.answer = lambda form: [{"metric": {"run": run}, "value": [0, "1"]} for run in seen]
    with serving(fake) as url:
        runtime = SimpleNamespace(
            node_name=lambda node: f"trainer-{node}",
            prometheus=lambda: url,
            capabilities=RUNTIMES["docker"],
        )
        monkeypatch.setattr(command.choice, "choose", lambda place: runtime)
        with pytest.raises(UserError, match=r"is not on this cluster, where another is: PROJECT= names its own"):
            command.facts_for(on.folder, result, None)
        seen[:] = [on.folder.name]
        facts = command.facts_for(on.folder, result, None)
    assert (facts.nodes, facts.prometheus) == (["trainer-0", "trainer-1"], url)


def come(url: str) -> socket.socket:
    """Somebody who connects."""
    return socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])))


class TestDoor:
    def test_nothing_is_started_until_somebody_comes(self, monkeypatch):
        monkeypatch.setattr(door_module.subprocess, "Popen", lambda *args, **more: pytest.fail("started"))
        with door(lambda: pytest.fail("asked")) as url:
            assert url.startswith("http://127.0.0.1:")
        with pytest.raises(OSError):
            urllib.request.urlopen(url, timeout=5)

    def test_a_port_that_is_taken_gives_way_to_a_free_one(self, monkeypatch):
        with listen() as other:
            monkeypatch.setattr(door_module, "PORT", other.getsockname()[1])
            with door(lambda: None) as url:
                assert url != address(other)

    def test_a_run_goes_on_where_no_port_can_be_had(self, monkeypatch):
        monkeypatch.setattr(door_module, "listen", lambda port: (_ for _ in ()).throw(OSError()))
        with door(lambda: None) as url:
            assert url is None

    @pytest.mark.parametrize("fails", ["facts", "process"])
    def test_a_page_that_fails_is_tried_a_few_times_and_the_door_closed(self, fails, monkeypatch):
        started = []

        def facts():
            started.append(1)
            if fails == "facts":
                raise UserError("no engine")

        def process(listener, facts):
            return subprocess.Popen(["false"], stdin=subprocess.PIPE)

        monkeypatch.setattr(door_module, "_start", process)
        with door(facts) as url, come(url) as client:
            client.settimeout(60)
            with pytest.raises(ConnectionResetError):
                client.recv(1)
            with pytest.raises(ConnectionRefusedError):
                come(url)
        assert len(started) == door_module.MOST_FAILURES

    def test_a_run_that_ends_while_a_page_is_being_started_leaves_none(self, monkeypatch):
        began, go_on = threading.Event(), threading.Event()

        def facts():
            began.set()
            assert go_on.wait(30)

        monkeypatch.setattr(door_module, "_start", lambda listener, facts: pytest.fail("started"))
        with door(facts) as url:
            client = come(url)
            assert began.wait(30)
            threading.Timer(0.05, go_on.set).start()
        client.close()
        assert not [thread for thread in threading.enumerate() if thread.name == "door of the live page"]


def test_a_page_that_nobody_looks_at_ends(monkeypatch, tmp_path):
    """A page that nobody looks at any more ends, so that it takes no memory; the door starts the next one."""
    on = Watched(tmp_path)
    listener = listen()
    code = f"import monitor.watch.__main__ as page, runpy; {PATCH}"
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(listener.fileno())],
        cwd=cli.__file__.rpartition("/monitor/")[0],
        pass_fds=[listener.fileno()],
        stdin=subprocess.PIPE,
    )
    child.stdin.write(json.dumps(on.facts.__dict__).encode() + b"\n")
    child.stdin.flush()
    with urllib.request.urlopen(f"{address(listener)}/events", timeout=60) as stream:
        assert stream.readline() == b"event: begin\n"
        assert child.poll() is None
    assert child.wait(60) == 0
    listener.close()


PATCH = "page.IDLE_SECONDS = 0.2; page.serve(page.sys.argv[1])"


def test_the_usual_port_is_the_one_that_help_names():
    assert str(server.PORT) in command.SETTINGS["PORT"]
