"""The life of a run: scripted ranks that start, freeze, come back, hold their nodes. No process is started."""

import json
from pathlib import Path

import pytest
from scripted import ScriptedRuntime, exited, failed, finished, no_waiting, proxies, ready, step, supervise
from signed import KEY

from monitor.errors import UserError
from monitor.interrupt import Stop
from monitor.run import casualties
from monitor.run.supervise import Supervisor
from monitor.runtime.base import Job, Output
from trainer import events
from trainer.spec import RunSpec


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Silence counts from half the deadline on, 2.5 s."""
    monkeypatch.setattr(casualties, "LEAST_SILENCE_SECONDS", 1.0)
    return no_waiting(monkeypatch)


def test_a_silent_rank_is_frozen_killed_and_named():
    _, failure, runtime = supervise([[ready(0), step(0)], [ready(1), step(1)]], holding=(0, 1))
    assert (failure.kind, failure.rank) == ("frozen", 0)
    assert "no sign of life for 2.5 s" in failure.message
    assert [handle.signals for handle in runtime.handles.values()] == [["KILL"], ["KILL"]]
    assert all(handle.closed for handle in runtime.handles.values())


@pytest.mark.parametrize("script", [[], [events.Held(rank=0)]])
def test_a_rank_that_freezes_as_it_starts_is_found_before_the_default_deadline_and_the_limit_is_the_one_named(
    script, monkeypatch
):
    assert RunSpec().deadline_seconds > casualties.STARTUP_SILENCE_SECONDS + casualties.EVIDENCE_SECONDS
    monkeypatch.setattr(casualties, "STARTUP_SILENCE_SECONDS", 2.7)
    monkeypatch.setattr(casualties, "EVIDENCE_SECONDS", 0.2)
    _, failure, _ = supervise([script], holding=(0,))
    assert (failure.kind, failure.rank) == ("frozen", 0)
    assert failure.message == "rank 0 (trainer-0) is frozen: no sign of life for 2.7 s before its first step"


def test_a_rank_whose_launcher_is_frozen_is_named_as_such():
    _, failure, _ = supervise([finished(0)[:-1]], holding=(0,))
    assert failure.kind == "frozen"
    assert failure.message.startswith("rank 0 (trainer-0) has finished, but its launcher is frozen: no sign of life")


def test_after_a_sleep_of_its_own_it_gives_every_rank_time_to_be_heard(monkeypatch, clock):
    """Ctrl-Z and fg: the ranks went on, and nobody listened."""
    handle = None
    monkeypatch.setattr(casualties, "EVIDENCE_SECONDS", 0.0)

    def sleep(event):
        if isinstance(event, events.Step):
            clock.now += 1000
            clock.after(1.0, lambda: [handle.say(item) for item in [*finished(0)[2:], None]])

    runtime = ScriptedRuntime([[ready(0), step(0)]], holding=(0,))
    supervisor = Supervisor(runtime, Job("r", RunSpec(nodes=1, batch=4), "key", Path()), sleep)
    original = runtime.start

    def start(*args):
        nonlocal handle
        handle = original(*args)
        return handle

    runtime.start = start
    assert supervisor.run() is None
    assert handle.signals == []


def test_a_rank_that_is_heard_again_is_not_frozen(clock):
    runtime = ScriptedRuntime([[ready(0), step(0)]], holding=(0,))
    supervisor = Supervisor(runtime, Job("r", RunSpec(nodes=1, batch=4), "key", Path()), lambda event: None)
    supervisor._casualties._silence = 0.5

    def revive():
        found.append(supervisor.ranks[0].silence)
        runtime.handles[0].say(events.Alive(rank=0))

    def finish():
        for item in [*finished(0)[2:], None]:
            runtime.handles[0].say(item)

    found = []
    for tenths in range(12, 32):
        clock.after(tenths / 10, revive)
    clock.after(3.2, finish)  # long after the trouble that it was would have ended the run
    assert supervisor.run() is None
    assert (found, runtime.handles[0].signals) == ([0.5, *[0.0] * 19], [])


def test_one_failed_rank_ends_the_others_and_their_end_is_no_evidence():
    wounded = [ready(0), failed(0, "deadline", "all_reduce took longer than 5 s", suspect=1), exited(0, 1)]
    _, failure, runtime = supervise([wounded, [ready(1), step(1)]], holding=(1,))
    assert runtime.handles[1].signals == ["KILL"]
    assert (failure.kind, failure.rank) == ("deadline", 1)
    assert failure.message.endswith("all_reduce took longer than 5 s; it suspects rank 1 (trainer-1)")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_busy_node_refuses_with_the_other_runs_id(rank):
    scripts = [[ready(0)], [ready(1)]]
    scripts[rank] = [events.Busy(rank=rank, run="2026-x")]
    with pytest.raises(UserError, match="run 2026-x is on the cluster now"):
        supervise(scripts, holding={0, 1} - {rank})


def test_nodes_are_taken_in_the_order_of_ranks():
    """Two runs that start at once and took nodes side by side could refuse each other."""
    asked = []

    class Asked(ScriptedRuntime):
        def start(self, job, seat, said):
            asked.append(seat.rank)
            return super().start(job, seat, said)

    runtime = Asked([[events.Busy(rank=0, run="2026-x")], [], []])
    spec = RunSpec(nodes=3, batch=12)
    with pytest.raises(UserError):
        Supervisor(runtime, Job("r", spec, "key", Path()), lambda event: None).run()
    assert asked == [0]  # the others were not even asked

    runtime = Asked([finished(rank) for rank in range(3)])
    seen = []
    assert Supervisor(runtime, Job("r", spec, "key", Path()), seen.append).run() is None
    assert isinstance(seen[0], events.Held)
    assert asked[1] == 0 and sorted(asked[2:]) == [1, 2]


@pytest.mark.parametrize("nodes", [1, 3])
def test_with_mpi_the_others_start_once_rank_0_has_told_the_proxies(nodes):
    told = proxies(nodes)
    asked = []

    class Asked(ScriptedRuntime):
        def start(self, job, seat, said):
            asked.append(json.loads(job.request(seat, KEY, "python", MASTER_ADDR="trainer-0"))["mpi"])
            return super().start(job, seat, said)

    runtime = Asked([[told, *finished(0)], *(finished(rank) for rank in range(1, nodes))])
    spec = RunSpec(sync="psgd", transport="mpi", nodes=nodes, batch=4 * nodes)
    assert Supervisor(runtime, Job("r", spec, "key", Path()), lambda event: None).run() is None
    assert asked[0] == {"world_size": nodes, "host": "trainer-0"}
    assert sorted(mpi["proxy"] for mpi in asked[1:]) == told.commands[1:]


def test_a_process_manager_that_does_not_come_up_starts_nobody_else():
    fault = failed(0, "own", "mpiexec named 0 proxies, 2 were asked for")
    runtime = ScriptedRuntime([[fault, exited(0, 1)], []])
    spec = RunSpec(sync="psgd", transport="mpi", nodes=2, batch=8)
    failure = Supervisor(runtime, Job("r", spec, "key", Path()), lambda event: None).run()
    assert list(runtime.handles) == [0]
    assert (failure.kind, failure.rank) == ("error", 0)
    assert (
        failure.message == "rank 0 (trainer-0) failed before its first step: mpiexec named 0 proxies, 2 were asked for"
    )


def test_heartbeats_are_signs_of_life_and_not_passed_on():
    seen = []
    runtime = ScriptedRuntime([[events.Alive(rank=0), *finished(0)]])
    job = Job("r", RunSpec(nodes=1, batch=4), "key", Path())
    Supervisor(runtime, job, seen.append).run()
    assert [type(event).__name__ for event in seen] == ["Held", "Ready", "Step", "Finished", "Exited"]


def test_interruption_asks_before_it_kills():
    class Stubborn(ScriptedRuntime):
        def start(self, job, seat, said):
            handle, rank = super().start(job, seat, said), seat.rank
            handle.signal = lambda name, say=handle.signal: (
                say(name),
                name == "TERM" and said.put(Output(rank, "stdout", None)),
            )
            return handle

    runtime, stop = Stubborn([[ready(0), step(0)]], holding=(0,)), Stop()
    job = Job("r", RunSpec(nodes=1, batch=4), "key", Path())

    def interrupt(event):
        stop.is_requested = stop.is_requested or isinstance(event, events.Step)

    failure = Supervisor(runtime, job, interrupt, stop).run()
    assert (failure.kind, failure.message) == ("interrupted", "interrupted at step 3")
    assert runtime.handles[0].signals == ["TERM"]


@pytest.mark.parametrize("last", [events.Finished, events.Exited])
def test_an_interruption_when_all_is_done_changes_nothing(last):
    stop = Stop()

    def interrupt(event):
        stop.is_requested = stop.is_requested or isinstance(event, last)

    runtime = ScriptedRuntime([finished(0)])
    assert Supervisor(runtime, Job("r", RunSpec(nodes=1, batch=4), "key", Path()), interrupt, stop).run() is None


def test_conditions_are_brought_about_when_the_first_rank_holds_its_node_and_no_other_was_started():
    _, failure, runtime = supervise([[events.Held(rank=0), *finished(0)], finished(1)])
    assert failure is None
    assert runtime.held_after == [0]
    assert runtime.handles[0].went
