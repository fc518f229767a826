"""What a rank can do by what it prints: nothing but end its run, as its own fault. No process is started."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from scripted import ScriptedRuntime, exited, finished, no_waiting, output_of, proxies, ready, step

from monitor.errors import UserError
from monitor.interrupt import Stop
from monitor.run.plan import Plan
from monitor.run.rank_stream import RankStream
from monitor.run.recorder import Recorder
from monitor.runtime.base import Job, Output
from monitor.runtime.docker import DockerRuntime
from monitor.runtime.local import LocalRuntime
from trainer import events
from trainer.spec import RunSpec

SPEC = RunSpec(nodes=2, batch=8)
NAMES = ("rank 0 (trainer-0)", "rank 1 (trainer-1)")


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    return no_waiting(monkeypatch)


def checkpoint(number, path=None, rank=0):
    path = path or f"checkpoints/step-{number:06}"
    return events.Checkpoint(rank=rank, step=number, path=path, bytes=1, seconds=0.1)


class Said(ScriptedRuntime):
    """`after`: what comes on a rank's stream then; events are said by those who say such events, lines by the rank."""

    def start(self, job, seat, output):
        handle = super().start(job, seat, output)
        for item in self.after.get(seat.rank, ()):
            if isinstance(item, str):
                item = Output(seat.rank, "stdout", item)
            output.put(item if isinstance(item, Output) else output_of(seat.rank, item))
        return handle


def end_of(runs, said, rank=0, **changes):
    """The recorder of a run whose rank says these lines and events after its first step, and its result."""
    scripts = [[ready(r), step(r)] for r in (0, 1)]
    spec = RunSpec(**({"nodes": 2, "batch": 8} | changes))
    runtime = Said(scripts, holding=(0, 1))
    runtime.after, fetched = {rank: said}, []
    runtime.fetched = fetched.append
    prepared = SimpleNamespace(key="key", label="a test's", manifest={"classes": ["a", "b"]})
    run = Recorder(runtime, Plan(spec, prepared, runs), Console(quiet=True), 0.0, Stop())
    run.all_fetched = fetched
    return run, run.follow()


def check_blame(run, result, rank, why):
    """The run failed as that rank's fault, the result is written, the run folder stays."""
    assert result.document() == json.loads((run.folder / "result.json").read_text())
    assert (result.status, result.error.kind, result.error.rank) == ("failed", "error", rank)
    assert result.error.message == f"{NAMES[rank]} misused its event stream at step 3: {why}"
    assert "\n" not in result.error.message
    logged = [events.parse(line) for line in (run.folder / "events.jsonl").read_text().splitlines()]
    assert [event.message for event in logged if isinstance(event, events.Failed)] == [why]
    assert all("KILL" in handle.signals for handle in run.runtime.handles.values() if not handle.holds)


@pytest.mark.parametrize(
    "path",
    [
        "/home/someone/.bashrc",
        "../../home/someone/.config/autostart",
        "checkpoints/../../x",
        "checkpoints/step-000004",
        "checkpoints/step-3",
        "checkpoints/step-000003/",
        "checkpoints//step-000003",
        "checkpoints/step-000003\n",
        "checkpoints/step-００0003",
        "tensorboard",
        ".",
        " ",
    ],
)
def test_a_checkpoint_is_fetched_from_the_one_place_of_its_step(tmp_path, path):
    run, result = end_of(tmp_path, [checkpoint(3, path)])
    check_blame(run, result, 0, "its checkpoint of step 3 is not in checkpoints/step-000003")
    assert run.all_fetched == []


def test_a_checkpoint_is_rank_0s(tmp_path):
    run, result = end_of(tmp_path, [checkpoint(3, rank=1)], rank=1)
    check_blame(run, result, 1, "it sent a checkpoint, which rank 0 alone does")
    assert run.all_fetched == []


def test_a_checkpoint_is_sent_once(tmp_path):
    run, result = end_of(tmp_path, [checkpoint(2), checkpoint(3), checkpoint(2)])
    check_blame(run, result, 0, "it sent the checkpoint of step 2 twice")
    assert run.all_fetched == ["checkpoints/step-000002", "checkpoints/step-000003"]


def test_a_rank_that_ends_well_after_a_breach_does_not_save_the_run(tmp_path):
    well = [*finished(0)[2:], exited(0)]
    run, result = end_of(tmp_path, [checkpoint(3, "/x"), *well])
    check_blame(run, result, 0, "its checkpoint of step 3 is not in checkpoints/step-000003")


@pytest.mark.parametrize("runtime", [DockerRuntime(None, "p", {}), LocalRuntime(True)])
@pytest.mark.parametrize(
    "path",
    ["/etc", "..", "", ".", "checkpoints", "checkpoints/step-1", "checkpoints/step-000001/..", "tensorboard/x",
     "checkpoints/step-000001\n", "checkpoints/step-٣٣٣٣٣٣", "checkpoints\\step-000001", "spec.json"],
)  # fmt: skip
def test_a_runtime_fetches_only_what_ranks_write(tmp_path, runtime, path):
    job = Job("r", SPEC, "key", tmp_path)
    with pytest.raises(UserError, match="is no folder that ranks write"):
        runtime.fetch(job, path)
    assert list(Path(tmp_path).iterdir()) == []


def line(event, **changes):
    """The event's line with these fields, whatever they are; None removes one."""
    return json.dumps({"event": type(event).__name__.lower(), **asdict(event)} | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"step": "%600000000d"},
        {"step": True},
        {"step": 4.5},
        {"step": -1},
        {"step": 10**11},
        {"step": 10**4000},
        {"step": [4]},
        {"loss": "nan"},
        {"loss": float("inf")},
        {"accuracy": None},
        {"accuracy": {}},
        {"samples": 2**63},
        {"seconds": {"sync": "1"}},
        {"seconds": [1]},
        {"time": -1},
        {"time": 1e300},
        {"rank": False},
    ],
)
def test_a_field_of_another_type_is_its_ranks_fault(tmp_path, changes):
    _, result = end_of(tmp_path, [line(step(0, 4), **changes)])
    assert (result.status, result.error.kind, result.error.rank) == ("failed", "error", 0)
    assert "misused its event stream at step 3: it sent the event step with a" in result.error.message
    assert len(result.error.message) < 200


@pytest.mark.parametrize(
    "noise", ["[" * 100_000, '{"event":' * 50_000, "9" * 100_000, '{"event": ["step"]}', '"\\ud800"', "\0"]
)
def test_a_line_that_is_no_event_is_a_librarys(tmp_path, noise):
    _, result = end_of(tmp_path, [noise, finished(0)[2]])
    assert result.error.kind != "error"
    assert events.parse(noise) is None


def test_a_line_has_a_most():
    event = events.to_line(events.Warning(rank=0, message="x"))
    assert events.parse(event + " " * (events.LINE_BYTES - len(event)))
    with pytest.raises(events.EventFault, match="1048576 are the most"):
        events.decode(event + " " * events.LINE_BYTES)
    assert events.parse(event + " " * events.LINE_BYTES) is None


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KINDS = {name: list(events._CHECKS[name]) for name in events._KINDS}


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(KINDS)).flatmap(
    lambda name: st.tuples(st.just(name), st.fixed_dictionaries(dict.fromkeys(KINDS[name], ANY)))
))  # fmt: skip
def test_what_is_parsed_has_the_types_of_its_fields(said):
    name, values = said
    event = events.parse(json.dumps({"event": name} | values))
    if event:
        assert all(check(getattr(event, field)) for field, check in events._CHECKS[name].items())
        assert events.parse(events.to_line(event)) == event


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=50) | ANY.map(json.dumps))
def test_no_line_raises(text):
    events.parse(text)


@pytest.mark.parametrize("kind", [ready, step, exited])
@pytest.mark.parametrize("rank", [1, 2, 99])
def test_a_rank_speaks_for_itself(tmp_path, kind, rank):
    run, result = end_of(tmp_path, [kind(rank)])
    check_blame(run, result, 0, f"it sent the event {kind(0).__class__.__name__.lower()} as rank {rank}")


RESTART = events.Restart(
    rank=0, attempt=1, kind="killed", message="m", from_step=0, lost_steps=1, lost_seconds=1.0
)  # fmt: skip
FAULT = events.Fault(rank=0, fault="kill:0@1", moment="begin", step=1, seconds=0.1)


@pytest.mark.parametrize("event", [RESTART, FAULT])
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("speaker", ["stdout", "launcher"])
def test_the_orchestrators_events_are_its_own(tmp_path, event, rank, speaker):
    said = Output(rank, speaker, events.to_line(replace(event, rank=rank)))
    run, result = end_of(tmp_path, [said], rank)
    kind = type(event).__name__.lower()
    check_blame(run, result, rank, f"it sent the event {kind}, which the orchestrator alone writes")
    assert result.restarts == []


LAUNCHERS = [events.Held(rank=0), events.Busy(rank=0, run="x"), exited(0), exited(0, None, "SIGKILL"), proxies(2)]


@pytest.mark.parametrize("event", LAUNCHERS)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_launchers_events_are_its_own(tmp_path, event, rank):
    run, result = end_of(tmp_path, [events.to_line(replace(event, rank=rank))], rank)
    kind = type(event).__name__.lower()
    check_blame(run, result, rank, f"it sent the event {kind}, which its launcher alone sends")


def test_that_the_disk_is_full_is_a_launchers_word():
    event = events.Failed(rank=0, kind="disk", message="its node holds 2 MiB in /runs, DISK=1m is the most")
    stream = RankStream(SPEC, 0)
    with pytest.raises(events.EventFault, match="failure for space on the disk, which its launcher alone sends"):
        stream.event(Output(0, "stdout", events.to_line(event)))
    assert stream.event(Output(0, "launcher", events.to_line(event))) == event


def test_proxies_are_a_launchers_with_mpi_too(tmp_path):
    run, result = end_of(tmp_path, [events.to_line(proxies(2))], sync="psgd", transport="mpi")
    check_blame(run, result, 0, "it sent the event proxies, which its launcher alone sends")
    assert sorted(run.runtime.handles) == [0] and run.recovery.supervisor.job.proxies == ()


@pytest.mark.parametrize("event", [events.Busy(rank=0, run="x"), events.Held(rank=0)])
def test_the_first_line_is_no_launchers_where_the_rank_sends_it(tmp_path, event):
    stream = RankStream(SPEC, 0)
    with pytest.raises(events.EventFault, match="which its launcher alone sends"):
        stream.event(Output(0, "stdout", events.to_line(event)))
    assert stream.event(Output(0, "launcher", events.to_line(event))) == event


@pytest.mark.parametrize("event", [step(0, 4), ready(0), checkpoint(3), finished(0)[2]])
def test_a_ranks_events_are_its_own(tmp_path, event):
    run, result = end_of(tmp_path, [Output(0, "launcher", events.to_line(event))])
    kind = type(event).__name__.lower()
    check_blame(run, result, 0, f"its launcher sent the event {kind}, which the rank alone sends")


def test_an_event_on_standard_error_is_text(tmp_path):
    run, _ = end_of(tmp_path, [Output(1, "stderr", events.to_line(events.Busy(rank=1, run="x")))], 1)
    assert "busy" in run.recovery.supervisor.ranks[1].tail[-1]
    assert run.recovery.supervisor.ranks[1].breach is None


@pytest.mark.parametrize("rank", [0, 1])
def test_busy_after_a_step_keeps_the_run_folder(tmp_path, rank):
    run, result = end_of(tmp_path, [events.Busy(rank=rank, run="x")], rank)
    check_blame(run, result, rank, "it sent the event busy after others; a launcher sends it first or not at all")


@pytest.mark.parametrize("event", [events.Held(rank=0), exited(0), ready(0)])
def test_what_is_sent_once_is_not_sent_again(tmp_path, event):
    run, result = end_of(tmp_path, [event, event])
    check_blame(run, result, 0, f"it sent the event {type(event).__name__.lower()} twice")


@pytest.mark.parametrize("suspect", [-1, 2, 10**9])
def test_a_failure_suspects_a_rank_of_the_run(tmp_path, suspect):
    failed = events.Failed(rank=0, kind="peer", message="m", suspect_rank=suspect)
    _, result = end_of(tmp_path, [failed])
    assert (result.error.kind, result.error.rank) == ("error", 0)


@pytest.mark.parametrize("kind", ["killed", "frozen", "", "engine"])
def test_a_failure_is_of_a_kind_that_ranks_know(tmp_path, kind):
    _, result = end_of(tmp_path, [events.Failed(rank=1, kind=kind, message="m", suspect_rank=0)], 1)
    assert (result.error.kind, result.error.rank) == ("error", 1)


def changed(line, at, word):
    return replace(proxies(2), commands=[proxies(2).commands[0], [*line[:at], word, *line[at + 1 :]]])


GOOD = proxies(2).commands[1]


@pytest.mark.parametrize(
    "event",
    [
        replace(proxies(2), commands=[["sh", "-c", "evil"]] * 2),
        replace(proxies(2), commands=[]),
        replace(proxies(2), commands=[[], []]),
        proxies(1),
        proxies(3),
        changed(GOOD, 0, "/tmp/bin/hydra_pmi_proxy"),
        changed(GOOD, 0, "hydra_pmi_proxy"),
        changed(GOOD, 1, "--exec"),
        changed(GOOD, 2, "trainer-0:1;x"),
        changed(GOOD, 2, "-x:1"),
        changed(GOOD, len(GOOD) - 1, "0"),
        replace(proxies(2), commands=[[*words, "--exec", "sh"] for words in proxies(2).commands]),
        replace(proxies(2), commands=[["/a/../bin/hydra_pmi_proxy", *w[1:]] for w in proxies(2).commands]),
    ],
)
def test_only_hydras_own_command_lines_are_passed_on(tmp_path, event):
    run, result = end_of(tmp_path, [event], sync="psgd", transport="mpi")
    assert (result.error.kind, result.error.rank) == ("error", 0)
    assert "prox" in result.error.message
    assert run.recovery.supervisor.job.proxies == ()


def test_proxies_are_of_mpi_and_of_rank_0(tmp_path):
    _, result = end_of(tmp_path / "a", [proxies(2)])
    assert result.error.kind == "error"
    stream = RankStream(RunSpec(nodes=2, batch=8, sync="psgd", transport="mpi"), 1)
    with pytest.raises(events.EventFault, match="rank 0's launcher alone"):
        stream.event(Output(1, "launcher", events.to_line(replace(proxies(2), rank=1))))


@pytest.mark.parametrize("matrix, classes", [([[1]], []), ([[1, 2], [3]], ["a", "b"]), ([], ["a"]), ([[]], ["a"])])
def test_a_confusion_matrix_fits_its_classes(tmp_path, matrix, classes):
    event = events.Evaluated(
        rank=0, samples=2, loss=1.0, accuracy=0.5, confusion_matrix=matrix, classes=classes, seconds=1.0
    )
    _, result = end_of(tmp_path, [event])
    assert (result.error.kind, result.error.rank) == ("error", 0)


@pytest.mark.parametrize("changes", [{"step_seconds": 0}, {"step": 0}, {"step": 41}, {"seconds": {}}])
def test_a_step_can_be_in_this_run(tmp_path, changes):
    _, result = end_of(tmp_path, [line(step(0, 4), **changes)])
    assert (result.error.kind, result.error.rank) == ("error", 0)


def test_warnings_have_a_budget(tmp_path):
    run, result = end_of(tmp_path, [events.Warning(rank=1, message="m")] * 2000, 1)
    check_blame(run, result, 1, "it sent more than 1000 warnings")
    assert len(result.warnings) < 1100


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_budget_that_is_broken_is_its_ranks_fault(tmp_path, rank, stream):
    run, result = end_of(tmp_path, [Output(rank, stream, "", "it printed more than 67 MB")], rank)
    check_blame(run, result, rank, "it printed more than 67 MB")


def test_no_line_of_many_is_lost(tmp_path):
    lines = [step(0, 4)] * 10_500
    run, _ = end_of(tmp_path, lines)
    assert len(run.recovery.supervisor.ranks[0].steps) == 10_501


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (replace(ready(0), versions={str(n): "1" for n in range(101)}), "it sent versions of 101 packages; 100"),
        (
            events.Evaluated(
                rank=0, samples=2, loss=1.0, accuracy=0.5, confusion_matrix=[], classes=[""] * 1001, seconds=1.0
            ),
            "it sent scores of 1001 classes; 1000",
        ),
    ],
)
def test_a_rank_says_no_more_than_a_result_holds(event, why):
    """What was believed would have to be written: the result would not be one that can be read."""
    with pytest.raises(events.EventFault, match=f"^{why} are the most$"):
        RankStream(SPEC, 0).event(Output(0, "stdout", events.to_line(event)))
