"""The Docker engine that cannot be used: said in one line, soon, and what would do."""

import ast
import re
import socket
import threading
from types import SimpleNamespace

import pytest

from monitor import checkout, cli
from monitor.conditions.conditions import Conditions
from monitor.engine import sdk
from monitor.errors import NoEngine, UserError
from monitor.runtime.docker import DockerRuntime
from trainer.spec import RunSpec


@pytest.fixture
def mute(tmp_path, monkeypatch):
    """An engine that takes connections and says nothing."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "sock"))
        listener.listen(8)
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/sock")
        monkeypatch.setattr(sdk, "_ANSWER_SECONDS", 0.2)
        yield


def refused(*_):
    raise sdk.explain(sdk.DockerException("Error while fetching ... PermissionError(13, 'Permission denied')"))


def test_a_mute_engine_is_given_up_soon(mute):
    assert sdk._ANSWER_SECONDS < sdk._TIMEOUT_SECONDS
    with pytest.raises(UserError, match=r"does not answer in time: .*RUNTIME=local runs without it"):
        sdk.connect()


def test_no_engine_is_known_from_one_that_cannot_be_used(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing")
    with pytest.raises(NoEngine, match="no Docker engine answers"):
        sdk.connect()
    assert DockerRuntime.find("syncbed", required=False) is None
    assert capsys.readouterr().err == ""  # plain local use: nothing to say


def test_an_engine_that_may_not_be_used_is_said_and_with_runtime_docker_refused(monkeypatch, capsys):
    monkeypatch.setattr(sdk, "connect", refused)
    assert cli.main(["where"]) == 0
    told = capsys.readouterr()
    assert told.out == "local\n"
    assert told.err.startswith("warning: no cluster was looked for: no permission to use Docker: join its group")
    assert told.err.count("\n") == 1
    assert cli.main(["where", "RUNTIME=docker"]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert "sudo usermod -aG docker" in told.err


def test_the_client_has_the_negotiated_version_and_the_long_limit(tmp_path, monkeypatch):
    """An engine that only says its version."""
    body = b'{"ApiVersion": "1.41"}'
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "sock"))
        listener.listen(8)

        def serve():
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/sock")
        client = sdk.connect()
        thread.join()
    assert (client.api._version, client.api.timeout) == ("1.41", sdk._TIMEOUT_SECONDS)


@pytest.mark.parametrize("host", ["nonsense", "tcp://127.0.0.1:port", "tcp://"])
def test_a_docker_host_that_cannot_be_is_one_line(host, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", host)
    with pytest.raises(UserError) as told:
        sdk.connect()
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(("project", "words"), [("syncbed", ""), ("mine", " PROJECT=mine")])
def test_what_would_help_is_told_for_the_cluster_that_was_named(project, words):
    with pytest.raises(UserError) as told:
        DockerRuntime(SimpleNamespace(api=None), project, {}).preflight(RunSpec(nodes=3, batch=3), Conditions())
    assert str(told.value) == f"NODES=3: the cluster has 0; `make cluster-up NODES=3{words}` makes it larger"


def test_no_hint_forgets_which_cluster_it_is_about():
    forgetful = []
    for path in sorted((checkout.ROOT / "monitor").rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        inner = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
        inner |= {id(node.value) for node in nodes if isinstance(node, ast.Expr)}  # docstrings
        for node in nodes:
            said = (
                ast.unparse(node) if isinstance(node, (ast.JoinedStr, ast.Constant)) and id(node) not in inner else ""
            )
            if re.search("make (cluster-|logs)", said) and "words" not in said:
                forgetful.append(f"{path.name}: {said}")
    assert forgetful == []
