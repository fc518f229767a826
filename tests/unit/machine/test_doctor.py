"""The doctor's verdict: which runtimes are possible, and a line for whatever is missing."""

import json
from types import SimpleNamespace

import pytest

from monitor.errors import UserError
from monitor.machine import doctor
from monitor.machine.doctor import FAIL, OK, WARN, Finding


@pytest.mark.parametrize(
    ("findings", "possible"),
    [
        ([Finding("engine", OK, "x"), Finding("torch", OK, "x")], ["docker", "local"]),
        ([Finding("compose", FAIL, "x", runtime="docker"), Finding("torch", OK, "x")], ["local"]),
        ([Finding("engine", OK, "x"), Finding("torch", FAIL, "x", runtime="local")], ["docker"]),
        ([Finding("engine", FAIL, "x", runtime="docker"), Finding("torch", FAIL, "x", runtime="local")], []),
        ([Finding("disk", WARN, "x")], ["docker", "local"]),
    ],
)
def test_a_run_is_possible_where_nothing_failed(findings, possible):
    assert doctor.runtimes(findings) == possible


@pytest.mark.parametrize(
    ("local", "cluster", "says"),
    [
        (None, None, ["nothing is served; port 8080 is free"]),
        (18080, None, ["models are served on 127.0.0.1:18080, RUNTIME=local; make serve-stop RUNTIME=local ends it"]),
        (None, 8080, ["models are served on 127.0.0.1:8080, RUNTIME=docker; make serve-stop PROJECT=mine ends it"]),
    ],
)
def test_servers_of_models_are_told(monkeypatch, local, cluster, says):
    asked = []

    def find(project, required):
        asked.append((project, required))
        return cluster and SimpleNamespace(name="docker", words=" PROJECT=mine", port=lambda: cluster)

    monkeypatch.setattr(doctor.cluster_host, "find", find)
    monkeypatch.setattr(doctor.LocalHost, "port", lambda self: local)
    monkeypatch.setattr(doctor, "check_port", lambda *_: None)
    found = list(doctor._serving({"PROJECT": "mine"}))
    assert ([f.found for f in found], {f.state for f in found}, asked) == (says, {OK}, [("mine", False)])


def test_without_an_engine_it_is_one_line_and_local_runs_remain(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing.sock")
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(doctor.importlib.metadata, "version", lambda name: "2.0")
    assert doctor.command({}, SimpleNamespace(json=True)) == 0
    told = json.loads(capsys.readouterr().out)
    engine = next(finding for finding in told["findings"] if finding["check"] == "engine")
    assert engine["state"] == FAIL and "no Docker engine answers" in engine["found"] and "start it" in engine["fix"]
    assert told["runtimes"] == ["local"]


def test_without_engine_and_torch_no_run_is_possible(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing.sock")
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    assert doctor.command({}, SimpleNamespace(json=False)) == 1
    out = capsys.readouterr().out
    assert "no run is possible yet" in out and "'make torch' installs it" in out
    assert all(line.split()[0] in (OK, WARN, FAIL) for line in out.splitlines()[:-1])


def test_settings_are_refused():
    with pytest.raises(UserError, match="GRAFANA_PORT=abc: a whole number"):
        doctor.command({"GRAFANA_PORT": "abc"}, SimpleNamespace(json=False))
    with pytest.raises(UserError, match="PROJECT=A b: lower-case"):
        doctor.command({"PROJECT": "A b"}, SimpleNamespace(json=False))
    with pytest.raises(UserError, match="STEPS=4: no such setting"):
        doctor.command({"STEPS": "4"}, SimpleNamespace(json=False))


@pytest.mark.parametrize(
    ("base", "named"), [(None, "python:"), ("mine:1", "mine:1"), ("mine@sha256:" + "0a" * 32, None)]
)
def test_bases_that_a_registry_can_move_are_told(base, named):
    finding = doctor._bases(base)
    assert finding.state == OK and "prom/prometheus:" in finding.found
    assert (named or "by tag, which a registry can move: prom/") in finding.found and "mine@" not in finding.found
