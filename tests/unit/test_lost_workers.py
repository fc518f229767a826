"""A strategy that goes on when a worker is lost: three workers and a server, scripted. No process is started."""

import pytest
from scripted import exited, failed, finished, ready, step, supervise

from monitor import supervise as supervise_module
from trainer import events


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Silence counts from half the deadline on, 2.5 s."""
    monkeypatch.setattr(supervise_module, "LEAST_SILENCE_SECONDS", 1.0)


# Three workers and a server whose strategy goes on when a worker is lost.


def supervise_survivors(*scripts, **more):
    told = []
    supervisor, failure, runtime = supervise(scripts, on_event=told.append, sync="ps_async", batch=12, **more)
    lost = {rank: state.lost for rank, state in enumerate(supervisor.ranks) if state.lost}
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
    assert (failure.kind, failure.rank, lost) == ("peer", 3, {})
