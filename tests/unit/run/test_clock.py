"""This machine's clock is set in mid-run: what is told of the run stays what it was. No clock is set for it."""

import time
from types import SimpleNamespace

import pytest
from rich.console import Console
from scripted import ScriptedRuntime, exited, no_waiting

from monitor.clock import CLOCK, Clock
from monitor.interrupt import Stop
from monitor.metrics.sampling import Row
from monitor.run import casualties
from monitor.run.plan import Plan
from monitor.run.recorder import Recorder
from monitor.runtime import docker
from trainer import events
from trainer.spec import RunSpec

HOUR = 3600.0


class Hands:
    """Both clocks of a machine."""

    def __init__(self):
        self.wall, self.ran = 1000.0, 50.0

    def run(self, seconds):
        self.wall, self.ran = self.wall + seconds, self.ran + seconds


@pytest.fixture
def hands():
    return Hands()


@pytest.fixture
def clock(hands):
    return Clock(lambda: hands.wall, lambda: hands.ran)


@pytest.mark.parametrize("by", [HOUR, -HOUR])
def test_times_go_on_evenly(hands, clock, by):
    hands.run(10)
    assert (clock.now(), clock.look()) == (1010, 0)
    hands.wall += by
    hands.run(5)
    assert (clock.look(), clock.look(), clock.now()) == (by, 0, 1015)
    assert clock.steady(hands.wall) == clock.steady(clock.steady(hands.wall)) == 1015
    assert clock.steady(1009.5) == 1009.5  # stamped before, and heard of after
    hands.run(5)
    hands.wall -= by
    assert clock.look() == -by
    assert (clock.now(), clock.steady(hands.wall)) == (1020, 1020)


def test_drift_is_no_set_clock(hands, clock):
    for _ in range(100):
        hands.run(1)
        hands.wall += 0.01
        assert clock.look() == 0


def test_a_new_run_has_a_new_axis(hands, clock):
    hands.wall += HOUR
    assert clock.look() == HOUR
    assert clock.begin() == clock.now() == hands.wall
    assert clock.look() == 0


def test_prometheus_is_asked_for_all_and_its_samples_come_onto_the_axis(hands, clock):
    assert clock.shown(990, 1010) == (990, 1010)
    hands.run(10)
    hands.wall += HOUR
    hands.run(1)
    clock.look()
    assert clock.shown(990, 1020) == (990, 1020 + HOUR)
    assert [clock.of_shown(t) for t in (1010, 1010.5 + HOUR, 1020 + HOUR)] == [1010, 1010.5, 1020]


def test_after_a_step_back_it_is_asked_for_what_came_before(hands, clock):
    """It takes no sample that is older than one it has."""
    hands.run(100)
    hands.wall -= HOUR
    hands.run(1)
    clock.look()
    assert clock.shown(1000, 1130) == (1000, 1101)
    assert [clock.of_shown(t) for t in (1000, 1100, 1102)] == [1000, 1100, 1102 + HOUR]


def test_rows_of_a_cluster_are_brought_onto_the_axis(monkeypatch):
    asked = []

    def window(url, start, end, nodes, warn):
        asked.append((start, end))
        return [Row(time=t, node="trainer-0") for t in (10.0, 12.0 + HOUR)]

    monkeypatch.setattr(docker.prometheus, "window", window)
    monkeypatch.setattr(CLOCK, "_set", [(11.0, HOUR)])
    place = docker.DockerRuntime.__new__(docker.DockerRuntime)
    place._urls = lambda: {"prometheus": "http://here"}
    rows = place.rows(SimpleNamespace(spec=RunSpec(sync="single", nodes=1)), 9.0, 20.0, print)
    assert (asked, [row.time for row in rows]) == ([(9.0, 20.0 + HOUR)], [10.0, 12.0])


@pytest.mark.parametrize("by", [HOUR, -HOUR])
def test_a_run_under_a_clock_that_is_set_has_its_durations_and_one_warning(tmp_path, monkeypatch, by):
    """Rank 0 is silent for a while after that, as in a long step: it is not taken for frozen."""
    no_waiting(monkeypatch)
    monkeypatch.setattr(casualties, "LEAST_SILENCE_SECONDS", 1.0)
    prepared = SimpleNamespace(key="key", label="x", manifest={"classes": ["a"]})
    place = ScriptedRuntime([[]], holding=(0,))
    off = [0.0]
    monkeypatch.setattr(CLOCK, "_wall", lambda: time.time() + off[0])
    began = CLOCK.begin()
    spec = RunSpec(nodes=1, batch=4, steps=2, deadline_seconds=5)
    run = Recorder(place, Plan(spec, prepared, tmp_path), Console(quiet=True), began, Stop())
    phases = dict.fromkeys(events.PHASES, 0.1)

    def step(number):
        about = {"epoch": 1, "loss": 1.0, "accuracy": 0.5, "samples": 4, "seconds": phases, "step_seconds": 0.5}
        return events.Step(rank=0, step=number, time=CLOCK._wall(), **about, sent_bytes=1, received_bytes=1)

    def script(event):
        handle, sure = place.handles[0], {"rank": 0}
        if isinstance(event, events.Held):
            who = {"world_size": 1, "host": "h", "pid": 1, "threads": 1, "interface": "lo"}
            handle.say(events.Started(**sure, **who, time=CLOCK._wall()))
            handle.say(step(1))
            off[0] = by
        if isinstance(event, events.Warning):
            handle.say(step(2))
            about = {"interface_sent_bytes": 0, "interface_received_bytes": 0, "synchronisations": 2}
            handle.say(events.Trained(**sure, seconds=1.0, distinct_samples=8, **about, time=CLOCK._wall()))
            handle.say(events.Finished(**sure, peak_memory_bytes=1, cpu_seconds=1.0))
            handle.say(exited(0))
            handle.say(None)

    take = run._take
    run.recovery.supervisor.on_event = lambda event: [take(event), script(event)]
    result = run.follow()
    assert result.status == "finished", result.error
    assert -1 < result.seconds.startup < 30
    assert 0 <= result.seconds.total < 60
    (warning,) = [text for text in result.warnings if "clock" in text]
    assert f"set {'forward' if by > 0 else 'back'} by 3600 s in mid-run" in warning
    assert not any("no rows" in text and "3600" in text for text in result.warnings)
    times = [s.time for s in run.recovery.ranks[0].steps]
    assert abs(times[1] - times[0]) < 30
    monkeypatch.undo()
    CLOCK.begin()
