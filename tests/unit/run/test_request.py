"""The settings of `make run` become one request: values, defaults, and a refusal in one line."""

from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from monitor.capabilities import RUNTIMES, Capabilities, of, runtimes_with
from monitor.data import catalogue
from monitor.data.store import Prepared
from monitor.errors import UserError
from monitor.interrupt import Stop
from monitor.run import launch
from monitor.run.plan import make_plan
from monitor.run.request import NOT_IN_SPEC, SETTINGS, SPEC_SETTINGS, DataRequest, Request, with_nodes
from monitor.runtime import choice
from monitor.runtime.choice import Place
from trainer.registry import SYNCS
from trainer.spec import RunSpec, SpecError

EVERY = {
    "SYNC": "ring",
    "NODES": "2",
    "DATA": "synthetic",
    "CPUS": "0.5,0.2",
    "DELAY": "20ms",
    "FAULT": "kill:1@5s",
    "RUNTIME": "docker",
    "PROJECT": "mine",
    "DATA_DIR": "~/images",
    "DATA_CACHE": "cache",
    "RESTARTS": "3",
    "RESUME": "latest",
    "RUNS_DIR": "elsewhere",
    "PAGES": "0",
}


def test_no_settings_are_the_defaults():
    assert Request.of({}) == Request()
    assert Request() == Request({}, {}, Place(None, None), DataRequest(False, None, catalogue.CACHE), 0, None)
    assert (Request().runs, Request().pages) == (Path("runs"), True)


def test_every_setting_has_its_place():
    assert Request.of(EVERY) == Request(
        spec={"SYNC": "ring", "NODES": "2", "DATA": "synthetic"},
        conditions={"CPUS": "0.5,0.2", "DELAY": "20ms", "FAULT": "kill:1@5s"},
        place=Place("docker", "mine"),
        data=DataRequest(True, Path("~/images").expanduser(), Path("cache")),
        restarts=3,
        resume="latest",
        runs=Path("elsewhere"),
        pages=False,
    )


@pytest.mark.parametrize("name", SETTINGS)
def test_no_setting_is_dropped(name):
    """A setting that is documented changes the request, also one that is new."""
    values = {"RUNTIME": "local", "RESTARTS": "1", "PAGES": "0"}
    assert Request.of({name: values.get(name, "7")}) != Request()


@given(st.sets(st.sampled_from(sorted(EVERY))), st.sets(st.sampled_from(sorted(EVERY))))
def test_settings_do_not_depend_on_each_other(some, others):
    """What a setting does to a request is the same whatever else is set."""
    both = Request.of({name: EVERY[name] for name in some | others})
    for names in (some, others):
        alone = Request.of({name: EVERY[name] for name in names})
        assert alone.spec.items() <= both.spec.items()
        assert alone.conditions.items() <= both.conditions.items()
        for field in ("restarts", "resume", "runs", "pages", "place", "data"):
            if getattr(alone, field) != getattr(Request(), field):
                assert getattr(both, field) != getattr(Request(), field)


def test_the_settings_stay_as_they_are():
    settings = MappingProxyType(dict(EVERY))
    assert Request.of(settings) == Request.of(settings)
    with pytest.raises(FrozenInstanceError):
        Request().restarts = 1


def test_a_default_given_is_a_default():
    defaults = {"RESTARTS": "0", "RUNS_DIR": "runs", "PAGES": "1", "DATA_CACHE": str(catalogue.CACHE)}
    assert Request.of(defaults) == Request()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"SNYC": "ddp"}, "SNYC=ddp: no such setting; did you mean SYNC?"),
        ({"GRAFANA_PORT": "1"}, "GRAFANA_PORT=1: leave it out: the port is read from the cluster"),
        ({"PAGES": "yes"}, "PAGES=yes: 0 or 1"),
        ({"RUNTIME": "swarm"}, "RUNTIME=swarm: one of: docker, local"),
        ({"RUNTIME": ""}, "RUNTIME=: one of: docker, local"),
        ({"DATA_DIR": "~nobody-of-that-name/x"}, "DATA_DIR=~nobody-of-that-name/x: there is no such user here"),
        ({"RESTARTS": "-1"}, "RESTARTS=-1: a whole number from 0 to 1000"),
        ({"RESTARTS": "1001"}, "RESTARTS=1001: a whole number from 0 to 1000"),
        ({"RESTARTS": "٣"}, "RESTARTS=٣: a whole number from 0 to 1000"),
    ],
)
def test_a_refusal_is_one_line(settings, says):
    with pytest.raises((UserError, SpecError)) as error:
        Request.of(settings)
    assert str(error.value).startswith(says)
    assert "\n" not in str(error.value)


def test_what_is_unknown_is_refused_before_all_else():
    with pytest.raises(UserError, match="SNYC=ddp"):
        Request.of({"RESTARTS": "x", "RUNTIME": "x", "PAGES": "x", "SNYC": "ddp"})


def test_the_spec_is_of_the_runtimes_nodes_where_none_are_named():
    assert Request.of({"SYNC": "ring"}).new_spec(3) == RunSpec.from_settings({"SYNC": "ring", "NODES": "3"})
    assert Request.of({"NODES": "2"}).new_spec(3).nodes == 2
    for name, strategy in SYNCS.items():
        assert ("NODES" in with_nodes({"SYNC": name}, 3)) is not strategy.one_node
    assert with_nodes({"SYNC": "no-such"}, 3)["NODES"] == "3"  # which RunSpec refuses


def test_a_value_that_cannot_be_is_refused_with_the_spec():
    with pytest.raises(SpecError, match="BATCH=255"):
        Request.of({"BATCH": "255"}).new_spec(4)


class Refuses:
    """A runtime that is asked for no more than whether the run may take place there."""

    name, default_nodes, capabilities = "local", 4, RUNTIMES["local"]

    def preflight(self, spec, conditions):
        raise UserError(f"preflight of {spec.sync} on {spec.nodes} nodes")


def carry_out(**settings):
    launch.run(Request.of(settings), Console(quiet=True), 0.0, Stop())


def test_a_request_is_checked_before_anything_is_prepared(monkeypatch):
    places = []
    monkeypatch.setattr(choice, "choose", lambda place: places.append(place) or Refuses())
    monkeypatch.setattr(launch, "make_plan", None)
    with pytest.raises(UserError, match="preflight of ring on 4 nodes"):
        carry_out(SYNC="ring", PROJECT="mine")
    assert places == [Place(None, "mine")]
    with pytest.raises(SpecError, match="CPUS=1: processes of this machine have no limits"):
        carry_out(CPUS="1")
    with pytest.raises(UserError, match="RESUME=gone: no such run in nowhere"):
        carry_out(RESUME="gone", RUNS_DIR="nowhere")
    with pytest.raises(UserError, match="RESUME=: no such run in nowhere"):
        carry_out(RESUME="", RUNS_DIR="nowhere")


@pytest.mark.parametrize(("settings", "may_be_replaced"), [({}, True), ({"DATA": "cifar10"}, False)])
def test_data_that_is_named_is_not_replaced(monkeypatch, settings, may_be_replaced):
    calls = []
    prepared = Prepared(Path("x"), "x", {"name": "synthetic", "train_samples": 512}, "x")

    def prepare(data, *, seed, data_dir, cache, say, shape, or_synthetic):
        say("warning: it was not easy")
        calls.append((data, cache, or_synthetic))
        return prepared

    monkeypatch.setattr(catalogue, "prepare", prepare)
    request = Request.of(settings | {"DATA_CACHE": "here", "RESTARTS": "2"})
    plan = make_plan(request, request.new_spec(4), None, Console(quiet=True))
    assert calls == [("cifar10", Path("here"), may_be_replaced)]
    assert (plan.spec.data, plan.restarts, plan.warnings) == ("synthetic", 2, ("it was not easy",))
    assert (plan.steps_before, plan.last_step) == (0, 40)
    assert replace(plan, spec=replace(plan.spec, steps=None, epochs=3)).last_step == 3 * 512 // plan.spec.batch
    with pytest.raises(SpecError, match="BATCH=1024: the training set has 512 images"):
        make_plan(request, replace(request.new_spec(4), batch=1024), None, Console(quiet=True))


def test_a_runtime_says_what_it_can_do():
    assert [name for name, can in RUNTIMES.items() if can.has_limits] == ["docker"]
    assert runtimes_with(lambda can: can.grows_with is None) == "RUNTIME=local"
    assert runtimes_with(lambda can: True) == "RUNTIME=docker or RUNTIME=local"
    assert all(name == can.name for name, can in RUNTIMES.items())


def test_a_runtime_of_another_version_can_do_nothing():
    """As a result may name one."""
    other = of("elsewhere")
    assert (other.has_limits, other.faults_of_nodes, other.has_prometheus, other.name) == (False,) * 3 + ("elsewhere",)


def test_a_new_runtime_needs_a_row_only(monkeypatch):
    monkeypatch.setitem(RUNTIMES, "swarm", Capabilities("swarm", "containers of a swarm", has_prometheus=True))
    assert Place.of({"RUNTIME": "swarm"}).runtime == "swarm"
    assert runtimes_with(lambda can: can.has_limits) == "RUNTIME=docker or RUNTIME=swarm"


def test_help_and_parser_know_the_same_settings():
    assert SETTINGS.keys() == RunSpec.settings_help().keys() | NOT_IN_SPEC.keys()
    assert not RunSpec.settings_help().keys() & NOT_IN_SPEC.keys()
    assert RunSpec.settings_help() == SPEC_SETTINGS
