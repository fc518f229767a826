"""RESTARTS=: what is restarted, from where, and what counts then. Scripted ranks; no process is started."""

import io
import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console
from scripted import NOW, ScriptedRuntime, exited, failed, no_waiting, runtime_of

from monitor.errors import Busy, UserError
from monitor.experiments import comparison, figures
from monitor.experiments.cells import product
from monitor.experiments.grouping import Group
from monitor.interrupt import Stop
from monitor.report import nodes
from monitor.report.load import load
from monitor.report.run_page import outcome as outcome_table
from monitor.results import sentences
from monitor.results.attempts import without_repeats
from monitor.results.parts import Restart as Restarted
from monitor.results.result import Result
from monitor.run import outcome, recovery
from monitor.run.attempts import Attempt
from monitor.run.plan import Plan
from monitor.run.progress import Progress
from monitor.run.recorder import Recorder
from trainer import events
from trainer.checkpoint_folder import COMPLETE, Complete, sha256
from trainer.events import Restart
from trainer.spec import RunSpec, SpecError

SPEC = RunSpec(nodes=2, batch=8, steps=6)


def started(rank, when):
    who = {"world_size": 2, "host": "here", "pid": 1, "threads": 1, "interface": "lo"}
    return events.Started(rank=rank, time=NOW + when, **who)


def ready(rank, before=0):
    counts = {"parameters": 1, "gradient_bytes": 4, "train_samples": 64, "test_samples": 2, "steps": 6}
    more = {"steps_per_epoch": 8, "versions": {}, "bf16_hint": False, "steps_before": before}
    return events.Ready(rank=rank, **counts, **more)


def step(rank, number, when, seconds=1.0):
    """A step of 4 samples and 10 bytes that ended at this time."""
    phases = dict.fromkeys(events.PHASES, seconds / 5)
    about = {"epoch": 1, "loss": 1.0, "accuracy": 0.5, "samples": 4, "seconds": phases, "step_seconds": seconds}
    return events.Step(rank=rank, step=number, time=NOW + when, **about, sent_bytes=10, received_bytes=10)


def score(number, when, accuracy):
    return events.Monitored(rank=0, step=number, time=NOW + when, samples=2, loss=1.0, accuracy=accuracy)


def checkpoint(number):
    return events.Checkpoint(rank=0, step=number, path=f"checkpoints/step-{number:06}", bytes=1, seconds=0.1)


def end(rank, when):
    counted = {"distinct_samples": 48, "synchronisations": 6, "interface_sent_bytes": 5, "interface_received_bytes": 5}
    yield events.Trained(rank=rank, time=NOW + when, seconds=2.0, **counted)
    if rank == 0:
        matrix = [[1, 0], [0, 1]]
        found = {"samples": 2, "loss": 0.5, "accuracy": 1.0, "confusion_matrix": matrix, "classes": ["a", "b"]}
        yield events.Evaluated(rank=0, time=NOW + when, **found, seconds=0.1)
    yield events.Finished(rank=rank, peak_memory_bytes=7, cpu_seconds=1.0)
    yield exited(rank)


def killed_at_five():
    """Both do steps 1 to 5, the first of 3 s, with a checkpoint and a score at 4; then rank 1 is killed."""
    scripts = [[started(rank, 1), ready(rank)] for rank in (0, 1)]
    for rank, script in enumerate(scripts):
        script += [step(rank, 1, 13, 3.0), *(step(rank, n, 12 + n) for n in (2, 3, 4))]
    scripts[0] += [score(4, 16, 0.5), checkpoint(4)]
    for rank, script in enumerate(scripts):
        script.append(step(rank, 5, 17))
    scripts[0].append(failed(0, "peer", "a peer was lost", suspect=1))
    return [[*scripts[0], exited(0, 1)], [*scripts[1], exited(1, None, "SIGKILL")]]


def going_on(base=4, when=30, seconds=2.0):
    """Steps base + 1 to 6 of `seconds` each, the first of which ends at `when`; a score of 0.75 at step 5."""
    scripts = []
    for rank in (0, 1):
        steps = [step(rank, n, when + seconds * i, seconds) for i, n in enumerate(range(base + 1, 7))]
        last = [*steps, *([score(5, when, 0.75)] if rank == 0 else ()), *end(rank, when + seconds * (5 - base))]
        scripts.append([started(rank, when - 5), ready(rank, base), *last])
    return scripts


def lost_again():
    """An attempt in which rank 1 is killed before a step."""
    return [[started(0, 20), failed(0, "peer", "lost", suspect=1), exited(0, 1)], [exited(1, None, "SIGKILL")]]


def complete(folder, number, world_size=2):
    """A checkpoint's folder that counts."""
    own = folder / "checkpoints" / f"step-{number:06}"
    own.mkdir(parents=True)
    (own / "model.pt").write_bytes(b"x")
    files = {"model.pt": {"bytes": 1, "sha256": sha256(own / "model.pt")}}
    said = Complete(number, 1, world_size, {}, {}, files)
    (own / COMPLETE).write_text(json.dumps(said.__dict__))
    return own


def recorder(runs, first, *later, restarts=1, world_size=2, spec=SPEC, planned=()):
    prepared = SimpleNamespace(key="key", label="a test's", manifest={"classes": ["a", "b"]})
    runtime = ScriptedRuntime(first, later=later)
    runtime.faults = planned
    plan = Plan(spec, prepared, runs, restarts=restarts)
    run = Recorder(runtime, plan, Console(quiet=True), NOW, Stop())
    runtime.fetched = lambda path: complete(run.folder, int(path[-6:]), world_size)
    return run


@pytest.fixture(autouse=True)
def supervised_without_waiting(monkeypatch):
    no_waiting(monkeypatch)


@pytest.fixture
def clock(monkeypatch):
    """Restarts happen 19 s after the command."""
    monkeypatch.setattr(recovery.CLOCK, "now", lambda: NOW + 19)
    monkeypatch.setattr(recovery.CLOCK, "_wall", lambda: NOW + 19)


@pytest.fixture
def restarted(tmp_path, clock):
    run = recorder(tmp_path, killed_at_five(), going_on())
    return run, run.follow().document()


def test_a_lost_rank_is_overcome_from_the_last_checkpoint_and_the_loss_is_told(restarted):
    run, result = restarted
    assert (result["status"], result["error"], run.runtime.pushed) == ("finished", None, ["step-000004"])
    (told,) = result["restarts"]
    message = told.pop("message")
    assert message == "rank 1 (trainer-1) was killed by SIGKILL at step 5"
    numbers = {"lost_seconds": pytest.approx(3), "startup_seconds": pytest.approx(9)}  # 16 to 19, 19 to 28
    counts = {"attempt": 1, "from_step": 4, "lost_steps": 1, "lost_samples": 8, "lost_sent_bytes": 20}
    assert told == {"kind": "killed", **counts, **numbers}
    (event,) = [e for e in figures.events_of(run.folder) if isinstance(e, Restart)]
    assert (event.rank, event.attempt, event.kind, event.message) == (1, 1, "killed", message)
    assert (event.from_step, event.lost_steps, event.lost_seconds) == (4, 1, pytest.approx(3))


def test_every_step_counts_once_and_all_time_does(restarted):
    _, result = restarted
    for rank in result["ranks"]:
        assert (rank["steps"], rank["sent_bytes"], rank["received_bytes"]) == (6, 60, 60)
        assert rank["step_seconds"]["mean"] == pytest.approx((1 + 1 + 1 + 2) / 4)  # without the first of each attempt
        assert rank["interface_sent_bytes"] is None  # known of the last attempt alone
    assert (result["samples_seen"], result["distinct_samples"], result["synchronisations"]) == (48, 48, 6)
    assert [(e["step"], e["accuracy"]) for e in result["evaluations"]] == [(4, 0.5), (5, 0.75)]
    assert [c["step"] for c in result["checkpoints"]] == [4]
    seconds = result["seconds"]
    assert seconds["startup"] == pytest.approx(10)
    assert seconds["startup_parts"] == {
        "prepare_and_launch": pytest.approx(1),
        "import_and_build": pytest.approx(9),
    }
    assert seconds["training"] == pytest.approx(22)  # from 10 to 32
    assert seconds["recovery"] == pytest.approx(12)
    result = Result.model_validate(result)
    assert figures.training_samples_per_second(result) == pytest.approx(48 / 22)
    assert figures.step_megabytes(result) == pytest.approx(2 * 60 / 6 / 1e6)
    assert figures.samples_per_second(result) == pytest.approx(8 / 1.25)
    assert figures.node_seconds(result) == pytest.approx(44)


@pytest.mark.parametrize(
    ("goal", "step_", "seconds", "sent"),
    [(0.5, 4, 6, 80), (0.7, 5, 7 + 2, 120), (1.0, 6, 7 + 4, 140)],
)
def test_the_way_to_an_accuracy_has_the_lost_steps_where_they_came_before(restarted, goal, step_, seconds, sent):
    run, result = restarted
    found = figures.reached(Result.model_validate(result), run.folder, goal)
    assert (found.step, found.seconds, found.sent_bytes) == (step_, pytest.approx(seconds), sent)


def test_reports_and_comparisons_show_it_and_have_each_step_once(restarted):
    run, result = restarted
    result = Result.model_validate(result)
    words = "restarted from step 4: rank 1 (trainer-1) was killed by SIGKILL at step 5 (1 step and 12.0 s lost)"
    assert sentences.of_restart(result.restarts[0]) == words
    assert ["restart 1", words] in outcome_table(result).rows
    assert [s.step for s in figures.steps_of(run.folder) if s.rank == 1] == [1, 2, 3, 4, 5, 6]
    page = load(run.folder)
    assert [s.time - NOW for s in page.steps[0]] == [pytest.approx(t) for t in (13, 14, 15, 16, 30, 32)]
    assert (page.began - NOW, *(t - NOW for t in page.restarts[0])) == pytest.approx((10, 19, 28))
    row = SimpleNamespace(time=NOW + 40)
    spans = nodes.time_spans(replace(page, rows=[row]), page.began)
    assert [(s.label, s.start, s.end) for s in spans] == [
        ("training", 0, pytest.approx(9)),
        ("restart", pytest.approx(9), pytest.approx(18)),
        ("training", pytest.approx(18), pytest.approx(22)),
        ("evaluation", pytest.approx(22), pytest.approx(30)),
    ]
    group = Group("x", (result,), (run.folder,))
    assert comparison.runs_text(group) == "1, 1 restarted"
    assert any(note.startswith("restarted: ") for note in comparison.footnotes(comparison.rows([group])))


def test_without_a_checkpoint_it_goes_on_from_the_start_and_says_so(tmp_path, clock):
    first = [[e for e in script if not isinstance(e, events.Checkpoint)] for script in killed_at_five()]
    run = recorder(tmp_path, first, going_on(base=0))
    result = run.follow().document()
    (told,) = result["restarts"]
    assert (told["from_step"], told["lost_steps"], run.runtime.pushed) == (0, 5, [None])
    assert told["lost_seconds"] == pytest.approx(9)  # since the first step began
    assert (result["ranks"][0]["steps"], result["samples_seen"], result["seconds"]["startup"]) == (6, 48, 10)
    assert "restarted from the start, as there was no checkpoint of all workers" in sentence(told)


def sentence(restart: dict) -> str:
    return sentences.of_restart(Restarted.model_validate(restart))


def test_a_checkpoint_of_rank_0_alone_is_none_to_go_on_from(tmp_path, clock):
    """ps_async writes such ones."""
    run = recorder(tmp_path, killed_at_five(), going_on(base=0), world_size=1)
    assert (run.follow().document()["restarts"][0]["from_step"], run.runtime.pushed) == (0, [None])


def test_a_second_loss_is_overcome_too_and_nothing_is_counted_twice(tmp_path, clock):
    run = recorder(tmp_path, killed_at_five(), lost_again(), going_on(), restarts=2)
    result = run.follow().document()
    assert result["status"] == "finished"
    assert [(r["attempt"], r["from_step"], r["lost_steps"]) for r in result["restarts"]] == [(1, 4, 1), (2, 4, 0)]
    assert [r["startup_seconds"] for r in result["restarts"]] == [None, pytest.approx(9)]
    assert (result["ranks"][1]["steps"], result["samples_seen"]) == (6, 48)
    assert run.runtime.pushed == ["step-000004"] * 2


@pytest.mark.parametrize("how", ["damaged", "removed", "all removed", "unreadable"])
def test_a_checkpoint_that_went_bad_after_it_was_gone_on_from_is_not_gone_on_from_again(tmp_path, clock, how):
    run = recorder(tmp_path, killed_at_five(), lost_again(), going_on(base=0), restarts=2)
    folder, again = run.folder / "checkpoints", run.runtime.prepare_restart

    def spoil(job, seconds, stop):
        if run.recovery.restart_events:
            own = folder / "step-000004"
            match how:
                case "damaged":
                    (own / "model.pt").write_bytes(b"y")
                case "unreadable":
                    (own / COMPLETE).write_text("[]")
                case _:
                    shutil.rmtree(folder if how == "all removed" else own)
        again(job, seconds, stop)

    run.runtime.prepare_restart = spoil
    result = run.follow().document()
    assert (result["status"], run.runtime.pushed) == ("finished", ["step-000004", None])
    assert [r["from_step"] for r in result["restarts"]] == [4, 0]
    assert (result["ranks"][1]["steps"], result["samples_seen"]) == (6, 48)
    assert [(r["lost_steps"], r["lost_samples"]) for r in result["restarts"]] == [(1, 8), (4, 32)]  # the first's 1 to 4


@pytest.mark.parametrize("name", ["step-000004-copy", "step-", "step-000004.bak", "step-４"])
def test_a_folder_beside_the_checkpoints_is_none_of_them(tmp_path, clock, name):
    run = recorder(tmp_path, killed_at_five(), going_on())
    fetch = run.runtime.fetched

    def fetched(path):
        fetch(path)
        shutil.copytree(run.folder / path, run.folder / "checkpoints" / name)

    run.runtime.fetched = fetched
    result = run.follow().document()
    assert (result["status"], run.runtime.pushed) == ("finished", ["step-000004"])


def test_one_interrupted_before_the_next_step_is_said_to_be_where_it_went_on_from(tmp_path, clock):
    hanging = [[started(0, 20), ready(0, 4)], [started(1, 20), ready(1, 4)]]
    run = recorder(tmp_path, killed_at_five(), hanging)
    again = run.runtime.prepare_restart

    def then_stop(job, seconds, stop):
        again(job, seconds, stop)
        run.runtime.holding = (0, 1)

    run.runtime.prepare_restart = then_stop
    take = run.recovery.supervisor.on_event

    def interrupt(event):
        take(event)
        if isinstance(event, Restart):
            run.recovery.supervisor.stop.is_requested = True

    run.recovery.supervisor.on_event = interrupt
    result = run.follow().document()
    assert (result["error"]["kind"], result["error"]["message"]) == ("interrupted", "interrupted at step 4")


def test_after_the_last_restart_the_run_has_failed(tmp_path, clock):
    result = recorder(tmp_path, killed_at_five(), lost_again(), going_on()).follow().document()
    assert (result["status"], result["error"]["kind"], result["error"]["rank"]) == ("failed", "killed", 1)
    assert (len(result["restarts"]), result["ranks"][0]["steps"]) == (1, 4)
    assert result["error"]["message"].endswith("was killed by SIGKILL before its first step; RESTARTS=1 is used up")


def test_without_restarts_a_lost_rank_is_all_that_is_told(tmp_path, clock):
    result = recorder(tmp_path, killed_at_five(), restarts=0).follow().document()
    assert result["error"]["message"] == "rank 1 (trainer-1) was killed by SIGKILL at step 5"


@pytest.mark.parametrize(
    ("kind", "restarts"),
    [("own", 0), ("input", 0), ("mismatch", 0), ("peer", 1), ("deadline", 1)],
)
def test_only_a_lost_rank_is_a_reason(tmp_path, clock, kind, restarts):
    first = [[ready(0), failed(0, kind, "x", suspect=1), exited(0, 1)], [ready(1), exited(1, 0)]]
    assert len(recorder(tmp_path, first, going_on(base=0)).follow().document()["restarts"]) == restarts


def test_who_would_not_have_it_is_heard(tmp_path, clock):
    run = recorder(tmp_path, killed_at_five(), going_on())
    run.runtime.prepare_restart = lambda job, seconds, stop: setattr(run.recovery.supervisor.stop, "is_requested", True)
    result = run.follow().document()
    assert (result["error"]["kind"], result["restarts"]) == ("interrupted", [])
    assert "rank 1 (trainer-1) was killed" in result["error"]["message"]


@pytest.mark.parametrize("error", [Busy("another"), UserError("trainer-1 is away")])
def test_nodes_that_are_not_to_be_had_leave_the_first_failure_with_the_reason(tmp_path, clock, error):
    def again(job, seconds, stop):
        raise error

    run = recorder(tmp_path, killed_at_five(), going_on())
    run.runtime.prepare_restart = again
    result = run.follow().document()
    message = f"rank 1 (trainer-1) was killed by SIGKILL at step 5; not restarted: {error}"
    assert (result["error"]["kind"], result["error"]["message"]) == ("killed", message)
    assert run.folder.exists()


def test_nodes_that_another_run_took_meanwhile_do_not_cost_the_result(tmp_path, clock):
    run = recorder(tmp_path, killed_at_five(), [[events.Busy(rank=0, run="other")], []])
    result = run.follow().document()
    assert (result["error"]["kind"], result["ranks"][0]["steps"]) == ("killed", 4)
    assert "not restarted: run other is on the cluster now" in result["error"]["message"]


def test_a_servers_figures_are_of_the_steps_that_count():
    """It tells once, at its end: of the last attempt's 2 steps of 6. The worker knows of the others."""
    traffic = {"interface_sent_bytes": 1, "interface_received_bytes": 1}
    served = events.Served(rank=1, updates=2, sent_bytes=20, received_bytes=22, **traffic)
    ranks = [SimpleNamespace(worker=w, server=s) for w, s in ((range(1, 6), None), (range(5, 7), served))]
    run = recovery.Recovery.__new__(recovery.Recovery)
    run.attempts = [
        Attempt(
            base,
            0.0,
            [
                recovery.RankState(last_sign=0, steps=[step(0, n, n) for n in one.worker]),
                recovery.RankState(last_sign=0, served=one.server),
            ],
        )
        for base, one in zip((0, 4), ranks, strict=True)
    ]
    worker, server = run.ranks
    assert [s.step for s in worker.steps] == [1, 2, 3, 4, 5, 6]
    assert (server.served.updates, server.served.sent_bytes, server.served.received_bytes) == (6, 60, 62)
    assert outcome.rank_summary(1, "n", "server", server, [], [4]).updates == 6


def test_what_a_restart_lost_is_not_kept():
    restart = Restart(
        rank=1, attempt=1, kind="killed", message="x", from_step=2, lost_steps=1, lost_seconds=1.0, time=NOW
    )
    before = [step(0, 2, 1), step(0, 3, 2), score(3, 2, 0.5), next(end(0, 3))]
    after = [step(0, 3, 9)]
    assert without_repeats([*before, restart, *after]) == [before[0], restart, *after]


@pytest.mark.parametrize("text", ["", "-1", "x", "1.5", "1001"])
def test_a_number_of_restarts_that_cannot_be_is_refused(text):
    with pytest.raises(SpecError, match="RESTARTS"):
        recovery.allowed({"RESTARTS": text})


def test_a_sweep_refuses_it_before_it_begins():
    with pytest.raises(SpecError, match="RESTARTS=x"):
        product(
            {"SYNC": "ddp", "RESTARTS": "x"},
            1,
            runtime_of("local", nodes=2),
        )
    cells, _ = product(
        {"SYNC": "ddp", "RESTARTS": "0,2"},
        1,
        runtime_of("local", nodes=2),
    )
    assert [cell.words["RESTARTS"] for cell in cells] == ["0", "2"]


def test_progress_begins_anew(tmp_path):
    out = io.StringIO()
    with Progress(Console(file=out, width=200), ["a", "b"], 2) as progress:
        for event in (ready(0), step(0, 1, 1), step(1, 1, 1), step(0, 2, 2)):
            progress.take(event)
        lost = {"kind": "killed", "message": "rank 1 was killed", "from_step": 1, "lost_steps": 1, "lost_seconds": 2.0}
        progress.take(Restart(rank=1, attempt=1, **lost))
        for event in (ready(0, 1), step(0, 2, 12), step(1, 2, 12)):
            progress.take(event)
    assert "restart 1: restarted from step 1: rank 1 was killed (1 step and 2.0 s lost)" in out.getvalue()
    assert "step 2/6" in out.getvalue()
    assert "4 s left" in out.getvalue()  # at the pace since the restart


def test_none_is_the_default():
    assert (recovery.allowed({}), recovery.allowed({"RESTARTS": "3"})) == (0, 3)
