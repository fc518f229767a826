"""A strategy that goes on when a worker is lost: three workers and a server, scripted. No process is started."""

from functools import partial
from pathlib import Path

import pytest
from scripted import ScriptedRuntime, exited, failed, finished, no_waiting, ready, step, supervise

from monitor.run import casualties
from monitor.run.supervise import Supervisor
from monitor.runtime.base import Job
from trainer import events
from trainer.spec import RunSpec


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Silence counts from half the deadline on, 2.5 s."""
    monkeypatch.setattr(casualties, "LEAST_SILENCE_SECONDS", 1.0)
    return no_waiting(monkeypatch)


# Three workers and a server whose strategy goes on when a worker is lost.


def supervise_survivors(*scripts, **more):
    told = []
    supervisor, failure, runtime = supervise(scripts, on_event=told.append, sync="ps_async", batch=12, **more)
    lost = {rank: state.lost_reason for rank, state in enumerate(supervisor.ranks) if state.lost_reason}
    return failure, lost, [event for event in told if isinstance(event, events.Warning)], runtime


KILLED = (exited(1, None, "SIGKILL"),)

OUT_OF_MEMORY = (exited(1, None, "SIGKILL", oom=True),)

OWN_ERROR = (failed(1, "own", "ValueError: bad"), exited(1, 1))


@pytest.mark.parametrize(
    ("end", "how"),
    [
        (KILLED, "was killed by SIGKILL"),
        (OUT_OF_MEMORY, "ran out of memory: the node's limit killed it"),
        (OWN_ERROR, "failed: ValueError: bad"),
        ((), "is gone: its node stopped or the engine went away"),
    ],
)
def test_a_lost_worker_is_warned_of_and_the_others_finish(end, how):
    failure, lost, warnings, _ = supervise_survivors(finished(0), [ready(1), step(1), *end], finished(2), finished(3))
    assert failure is None
    assert lost == {1: how}
    assert [w.message for w in warnings] == [f"rank 1 (trainer-1) {how} at step 3; the others go on without it"]


def test_no_strategy_goes_on_when_the_disk_is_as_full_as_it_was():
    full = [ready(1), step(1), failed(1, "disk", "its node holds 9 MiB in /runs, DISK=8m is the most"), exited(1, 1)]
    failure, lost, warnings, _ = supervise_survivors(finished(0), full, finished(2), finished(3))
    assert (failure.kind, failure.rank, lost, warnings) == ("disk", 1, {}, [])


def test_a_frozen_worker_is_written_off_and_killed():
    scripts = finished(0), finished(1), [ready(2), step(2)], finished(3)
    failure, lost, warnings, runtime = supervise_survivors(*scripts, holding=(2,))
    assert failure is None
    assert lost == {2: "is frozen: no sign of life for 2.5 s"}
    assert len(warnings) == 1
    assert set(runtime.handles[2].signals) == {"KILL"}


@pytest.mark.parametrize(("rank", "name"), [(0, "rank 0 (trainer-0)"), (3, "rank 3 (trainer-3, server)")])
def test_rank_0_and_servers_cannot_be_done_without(rank, name):
    """Also when a worker was lost before: that was not the cause."""
    scripts = [finished(0), [ready(1), step(1), *KILLED], finished(2), finished(3)]
    scripts[rank] = [ready(rank), step(rank), exited(rank, None, "SIGKILL")]
    failure, lost, _, _ = supervise_survivors(*scripts)
    assert (failure.kind, failure.rank) == ("killed", rank)
    assert failure.message.startswith(f"{name} was killed by SIGKILL")
    assert list(lost) == [1]


def test_a_worker_lost_before_its_first_step_ends_the_run():
    failure, lost, _, _ = supervise_survivors(finished(0), [ready(1), *KILLED], finished(2), finished(3))
    assert (failure.kind, failure.rank, lost) == ("killed", 1, {})


def test_a_worker_that_blames_another_rank_is_not_lost_itself():
    shaken = [ready(1), step(1), failed(1, "peer", "connection closed", suspect=3), exited(1, 1)]
    failure, lost, _, _ = supervise_survivors(finished(0), shaken, finished(2), [ready(3)], holding=(3,))
    assert (failure.kind, failure.rank, lost) == ("frozen", 3, {})


CUT_OFF = [ready(1), step(1), failed(1, "peer", "rank 0 has shown no sign of life for 8 s", suspect=0), exited(1, 1)]


def go_on_after_the_complaint(clock, scripts, still=(0, 2, 3)):
    """Rank 1 gives up and blames rank 0; the ranks `still` are heard of after that, and finish once it is lost."""
    told, runtime = [], ScriptedRuntime(scripts, holding=(0, 2, 3))

    def on_event(event):
        told.append(event)
        if isinstance(event, events.Exited) and event.rank == 1:
            for rank in still:
                clock.after(3.0, partial(runtime.handles[rank].say, events.Alive(rank=rank)))
        if isinstance(event, events.Warning):
            for rank in (0, 2, 3):
                for item in [*finished(rank)[2:], None]:
                    runtime.handles[rank].say(item)

    job = Job("r", RunSpec(sync="ps_async", nodes=4, batch=12, deadline_seconds=20.0), "key", Path())
    supervisor = Supervisor(runtime, job, on_event)
    return supervisor, supervisor.run(), [event.message for event in told if isinstance(event, events.Warning)]


def test_a_worker_that_is_cut_off_blames_others_that_live_and_is_gone_on_without(clock):
    """Its network is gone: it is the only one to complain, and whom it suspects is heard of ever after."""
    supervisor, failure, warned = go_on_after_the_complaint(
        clock, [[ready(0), step(0)], CUT_OFF, [ready(2), step(2)], []]
    )
    assert failure is None
    how = "is cut off from rank 0 (trainer-0)"
    assert {rank: state.lost_reason for rank, state in enumerate(supervisor.ranks) if state.lost_reason} == {1: how}
    assert warned == [f"rank 1 (trainer-1) {how} at step 3; the others go on without it"]


def test_whom_it_suspects_may_have_finished_meanwhile():
    """Alone, or with those that were left: the run was over before it was plain who is cut off."""
    failure, lost, _, _ = supervise_survivors(finished(0), CUT_OFF, finished(2), finished(3))
    assert (failure, lost) == (None, {1: "is cut off from rank 0 (trainer-0)"})


def test_whom_it_suspects_must_have_been_heard_of_since(clock):
    _, failure, warned = go_on_after_the_complaint(
        clock, [[ready(0), step(0)], CUT_OFF, [ready(2), step(2)], []], still=(2, 3)
    )
    assert (failure.kind, failure.rank, warned) == ("peer", 0, [])


@pytest.mark.parametrize("second", [0, 3])
def test_where_others_complain_too_it_is_not_the_workers_network_alone(clock, second):
    scripts = [[ready(0), step(0)], CUT_OFF, [ready(2), step(2)], [ready(3)]]
    scripts[second].append(failed(second, "peer", "rank 3 has shown no sign of life", suspect=3 - second))
    _, failure, warned = go_on_after_the_complaint(clock, scripts)
    assert failure.kind == "peer" and warned == []
