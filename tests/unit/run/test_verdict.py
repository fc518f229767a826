"""Who is to blame, from what the ranks say: scripted streams in, verdict out. No process is started."""

from pathlib import Path

import pytest
from scripted import ScriptedRuntime, exited, failed, finished, no_waiting, ready, step, supervise

from monitor.errors import Busy
from monitor.run import recovery
from monitor.run.casualties import BLAME_SECONDS, EVIDENCE_SECONDS
from monitor.run.supervise import Supervisor
from monitor.runtime.base import Job
from trainer import events
from trainer.spec import RunSpec


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    return no_waiting(monkeypatch)


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
    assert failure.message == "rank 0 (trainer-0) ran out of memory before its first step: the node's limit killed it"


def test_out_of_memory_tells_the_limit_and_the_peak():
    memory = {"memory_limit_bytes": 300 * 2**20, "memory_peak_bytes": 299 * 2**20 + 600_000}
    last = events.Exited(rank=0, code=None, signal="SIGKILL", out_of_memory=True, **memory)
    _, failure, _ = supervise([[ready(0), step(0), last], finished(1)])
    words = "the node's limit of 300 MiB killed it; peak 300 MiB"
    assert failure.message == f"rank 0 (trainer-0) ran out of memory at step 3: {words}"


def test_the_first_own_error_is_the_cause():
    first = [ready(1), failed(1, "own", "ValueError: bad", after=0), exited(1, 1)]
    later = [ready(0), failed(0, "own", "RuntimeError: shaken", after=1), exited(0, 1)]
    _, failure, _ = supervise([later, first])
    assert (failure.kind, failure.rank) == ("error", 1)
    assert failure.message == "rank 1 (trainer-1) failed before its first step: ValueError: bad"


def test_a_launcher_without_a_last_word_is_told_from_all_others():
    """Its rank may have killed it, and go on beside it."""
    scripts = [[ready(0), step(0)], [ready(1), exited(1, 1)], [events.Busy(rank=2, run="other")]]
    with pytest.raises(Busy):
        supervise(scripts)
    _, _, runtime = supervise(scripts[:2])
    assert [runtime.handles[rank].vanished for rank in range(2)] == [True, False]


def test_a_rank_whose_node_holds_too_much_of_the_disk_is_the_cause_whatever_else_is_said():
    why = "its node holds 70 MiB in /runs, DISK=64m is the most"
    full = [ready(1), step(1), failed(1, "own", "OSError: No space left on device"), failed(1, "disk", why, after=1)]
    others = [ready(0), failed(0, "peer", "connection closed", suspect=2, after=-5), exited(0, None, "SIGKILL")]
    _, failure, _ = supervise([others, [*full, exited(1, 1)], [ready(2), exited(2, None, "SIGKILL")]])
    assert (failure.kind, failure.rank) == ("disk", 1)
    assert failure.message == f"rank 1 (trainer-1) was ended for space on the disk at step 3: {why}"
    assert failure.kind not in recovery.KINDS, "once more would do no better"


@pytest.mark.parametrize(("said", "kind"), [("input", "input"), ("mismatch", "mismatch")])
def test_input_and_mismatch_keep_their_kind(said, kind):
    _, failure, _ = supervise([[failed(0, said, "labels are not 0..9"), exited(0, 2)], finished(1)])
    assert failure.kind == kind


def blames(rank, suspect, after):
    message = f"rank {suspect} has shown no sign of life for 4 s"
    return [ready(rank), step(rank), failed(rank, "peer", message, suspect, after), exited(rank, 1)]


def test_of_ranks_that_blame_each_other_the_majority_is_right():
    """Node 3 lost its network: it blames rank 0, and is the first to do so."""
    scripts = [blames(0, 3, 0.3), blames(1, 3, 0.2), blames(2, 3, 0.1), blames(3, 0, 0.0)]
    _, failure, _ = supervise(scripts)
    assert (failure.kind, failure.rank) == ("peer", 3)
    assert failure.message == (
        "rank 2 (trainer-2) gave up at step 3: rank 3 has shown no sign of life for 4 s; "
        "3 of the 4 that gave up suspect rank 3 (trainer-3)"
    )


def test_of_two_that_blame_each_other_the_first_is_believed():
    _, failure, _ = supervise([blames(0, 1, 0.1), blames(1, 0, 0.0)])
    assert failure.rank == 0


def test_blame_alone_waits_for_the_others_to_speak(clock):
    """The lost node's own complaint must not decide before the others have complained."""
    runtime = ScriptedRuntime([[ready(0)], [ready(1)], blames(2, 0, 0.0)], holding=(0, 1))
    supervisor = Supervisor(runtime, Job("r", RunSpec(nodes=3, batch=12), "key", Path()), lambda event: None)

    def complain():
        for rank in (0, 1):
            for item in [*blames(rank, 2, 1.0)[1:], None]:
                runtime.handles[rank].say(item)

    clock.after((EVIDENCE_SECONDS + BLAME_SECONDS) / 2, complain)
    failure = supervisor.run()
    assert (failure.kind, failure.rank) == ("peer", 2)


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
