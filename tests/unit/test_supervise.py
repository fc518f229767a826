"""Who is to blame, from what the ranks say: scripted streams in, verdict out. No process is started."""

import json
import time
from pathlib import Path

import pytest

from monitor.errors import UserError
from monitor.runtime.base import Job, RankHandle, Said
from monitor.supervise import Supervisor
from trainer import events
from trainer.spec import RunSpec

NOW = time.time()


def step(rank, number=3):
    phases = dict.fromkeys(events.PHASES, 0.1)
    return events.Step(
        rank=rank,
        step=number,
        epoch=1,
        loss=1.0,
        accuracy=0.5,
        samples=4,
        seconds=phases,
        step_seconds=0.5,
        sent_bytes=1,
        received_bytes=1,
    )


def ready(rank):
    return events.Ready(
        rank=rank,
        parameters=1,
        gradient_bytes=4,
        train_samples=8,
        test_samples=2,
        steps=3,
        steps_per_epoch=2,
        versions={},
        bf16_hint=False,
    )


def exited(rank, code=0, signal=None, oom=False):
    return events.Exited(rank=rank, code=code, signal=signal, out_of_memory=oom)


def failed(rank, kind, message, suspect=None, after=0.0):
    return events.Failed(rank=rank, kind=kind, message=message, suspect_rank=suspect, time=NOW + after)


def finished(rank):
    return [ready(rank), step(rank), events.Finished(rank=rank, peak_memory_bytes=1, cpu_seconds=1.0), exited(rank)]


class Scripted(RankHandle):
    """Says its lines at once; when `holds`, its stream ends only when it is signalled, like a process that hangs."""

    def __init__(self, rank, said, script, holds):
        self.rank, self.said, self.signals, self.closed = rank, said, [], False
        for item in script:
            stream, line = ("stdout", events.to_line(item)) if isinstance(item, events.Event) else ("stderr", item)
            said.put(Said(rank, stream, line))
        self.holds = holds
        if not holds:
            said.put(Said(rank, "stdout", None))

    def signal(self, name):
        self.signals.append(name)
        if self.holds and name == "KILL":
            self.said.put(Said(self.rank, "stdout", events.to_line(exited(self.rank, None, "SIGKILL"))))
            self.said.put(Said(self.rank, "stdout", None))
            self.holds = False

    def close(self):
        self.closed = True


class ScriptedRuntime:
    def __init__(self, scripts, holding=()):
        self.scripts, self.holding, self.handles = scripts, holding, {}

    def node_name(self, rank):
        return f"trainer-{rank}"

    def start(self, job, seat, said):
        rank = seat.rank
        self.handles[rank] = Scripted(rank, said, self.scripts[rank], rank in self.holding)
        return self.handles[rank]


def supervise(scripts, holding=(), deadline=5.0, on_event=lambda event: None, **changes):
    runtime = ScriptedRuntime(scripts, holding)
    values = {"nodes": len(scripts), "batch": 4 * len(scripts), "deadline_seconds": deadline} | changes
    supervisor = Supervisor(runtime, Job("r", RunSpec(**values), "key", Path()), on_event)
    return supervisor, supervisor.run(), runtime


def test_all_finished_is_no_failure():
    supervisor, failure, runtime = supervise([finished(0), finished(1)])
    assert failure is None
    assert [len(rank.steps) for rank in supervisor.ranks] == [1, 1]
    assert all(handle.closed and handle.signals == [] for handle in runtime.handles.values())


def test_a_killed_rank_is_named_although_the_others_complain_first():
    gone = [ready(1), step(1), "last words", exited(1, None, "SIGKILL")]
    others = [ready(0), step(0), failed(0, "peer", "connection closed", suspect=1, after=-5), exited(0, 1)]
    _, failure, _ = supervise([others, gone])
    assert (failure.kind, failure.rank) == ("killed", 1)
    assert failure.message == "rank 1 (trainer-1) was killed by SIGKILL at step 3"
    assert failure.last_lines == ("last words",)


def test_out_of_memory_is_told_from_a_kill():
    _, failure, _ = supervise([[ready(0), exited(0, None, "SIGKILL", oom=True)], finished(1)])
    assert (failure.kind, failure.rank) == ("out_of_memory", 0)


def test_the_first_own_error_is_the_cause():
    first = [ready(1), failed(1, "own", "ValueError: bad", after=0), exited(1, 1)]
    later = [ready(0), failed(0, "own", "RuntimeError: shaken", after=1), exited(0, 1)]
    _, failure, _ = supervise([later, first])
    assert (failure.kind, failure.rank) == ("error", 1)
    assert failure.message == "rank 1 (trainer-1) failed before its first step: ValueError: bad"


@pytest.mark.parametrize(("said", "kind"), [("input", "input"), ("mismatch", "mismatch")])
def test_input_and_mismatch_keep_their_kind(said, kind):
    _, failure, _ = supervise([[failed(0, said, "labels are not 0..9"), exited(0, 2)], finished(1)])
    assert failure.kind == kind


def test_a_silent_rank_is_frozen_killed_and_named():
    _, failure, runtime = supervise([[ready(0), step(0)], [ready(1), step(1)]], holding=(0, 1))
    assert (failure.kind, failure.rank) == ("frozen", 0)
    assert "no sign of life for 6 s" in failure.message
    assert [handle.signals for handle in runtime.handles.values()] == [["KILL"], ["KILL"]]
    assert all(handle.closed for handle in runtime.handles.values())


def test_one_failed_rank_ends_the_others_and_their_end_is_no_evidence():
    wounded = [ready(0), failed(0, "deadline", "all_reduce took longer than 5 s", suspect=1), exited(0, 1)]
    _, failure, runtime = supervise([wounded, [ready(1), step(1)]], holding=(1,))
    assert runtime.handles[1].signals == ["KILL"]
    assert (failure.kind, failure.rank) == ("deadline", 1)
    assert failure.message.endswith("all_reduce took longer than 5 s; it suspects rank 1 (trainer-1)")


def test_a_stream_that_ends_without_a_word_means_the_node_is_gone():
    _, failure, _ = supervise([[ready(0), step(0)], finished(1)])
    assert (failure.kind, failure.rank) == ("lost", 0)


def test_a_lost_node_outranks_what_it_made_another_rank_say():
    shaken = [ready(0), step(0), failed(0, "own", "RuntimeError: Connection reset by peer"), exited(0, 1)]
    _, failure, _ = supervise([shaken, [ready(1), step(1)]])
    assert (failure.kind, failure.rank) == ("lost", 1)


def test_an_exit_code_without_a_word_is_an_error_with_the_last_lines():
    _, failure, _ = supervise([["Traceback", "ImportError: torch", exited(0, 1)], finished(1)])
    assert (failure.kind, failure.rank) == ("error", 0)
    assert failure.last_lines == ("Traceback", "ImportError: torch")


def test_a_busy_node_refuses_with_the_other_runs_id_and_starts_nothing():
    with pytest.raises(UserError, match="run 2026-x is on the cluster now"):
        supervise([[events.Busy(rank=0, run="2026-x")], [events.Busy(rank=1, run="2026-x")]])


@pytest.mark.parametrize("nodes", [1, 3])
def test_with_mpi_the_others_start_once_rank_0_has_told_the_proxies(nodes):
    told = events.Proxies(rank=0, commands=[["proxy", str(rank)] for rank in range(nodes)])
    asked = []

    class Asked(ScriptedRuntime):
        def start(self, job, seat, said):
            asked.append(json.loads(job.request(seat, "python", MASTER_ADDR="trainer-0"))["mpi"])
            return super().start(job, seat, said)

    runtime = Asked([[told, *finished(0)], *(finished(rank) for rank in range(1, nodes))])
    spec = RunSpec(sync="psgd", transport="mpi", nodes=nodes, batch=4 * nodes)
    assert Supervisor(runtime, Job("r", spec, "key", Path()), lambda event: None).run() is None
    assert asked[0] == {"world_size": nodes, "host": "trainer-0"}
    assert sorted(mpi["proxy"] for mpi in asked[1:]) == [["proxy", str(rank)] for rank in range(1, nodes)]


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
    assert [type(event).__name__ for event in seen] == ["Ready", "Step", "Finished", "Exited"]


def test_interruption_asks_before_it_kills():
    class Stubborn(ScriptedRuntime):
        def start(self, job, seat, said):
            handle, rank = super().start(job, seat, said), seat.rank
            handle.signal = lambda name, say=handle.signal: (
                say(name),
                name == "TERM" and said.put(Said(rank, "stdout", None)),
            )
            return handle

    runtime = Stubborn([[ready(0), step(0)]], holding=(0,))
    job = Job("r", RunSpec(nodes=1, batch=4), "key", Path())

    def interrupt(event):
        if isinstance(event, events.Step):
            raise KeyboardInterrupt

    failure = Supervisor(runtime, job, interrupt).run()
    assert (failure.kind, failure.message) == ("interrupted", "interrupted at step 3")
    assert runtime.handles[0].signals == ["TERM"]


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
    assert lost == {2: "is frozen: no sign of life for 6 s"}
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
