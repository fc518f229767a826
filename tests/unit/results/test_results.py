"""What a result says, from events with known answers."""

import io
import json
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_cases import begun as case
from rich.console import Console
from rich.text import Text

from monitor import cli, console
from monitor.errors import UserError
from monitor.metrics.sampling import Row
from monitor.results import machine, scores, show, store, tables
from monitor.results.parts import DataInfo
from monitor.results.result import SCHEMA, Result
from monitor.results.terminal import in_terminal
from monitor.run import outcome, resume
from monitor.run.recovery import Attempt
from monitor.run.verdict import Failure, RankState
from trainer import events
from trainer.spec import RunSpec


def step(rank, number, seconds, loss=1.0, samples=4, when=100.0, staleness=None):
    phases = {"data": 0.1, "forward": 0.2, "backward": 0.3, "sync": seconds - 0.7, "optimizer": 0.1}
    return events.Step(
        rank=rank,
        time=when,
        step=number,
        epoch=1,
        loss=loss,
        accuracy=0.5,
        samples=samples,
        seconds=phases,
        step_seconds=seconds,
        sent_bytes=10,
        received_bytes=20,
        staleness=staleness,
    )


def state(rank, steps):
    return RankState(
        last_sign=0,
        started=events.Started(rank=rank, time=12.0, world_size=2, host="h", pid=1, threads=1, interface="lo"),
        steps=steps,
        trained=events.Trained(
            rank=rank,
            seconds=30.0,
            distinct_samples=7,
            synchronisations=3,
            interface_sent_bytes=9,
            interface_received_bytes=8,
        ),
        finished=events.Finished(rank=rank, peak_memory_bytes=1000 + rank, cpu_seconds=5.0),
    )


def complete(ranks, failure=None, evaluated=None, rows=()):
    """The JSON document of a run of these ranks."""
    record = outcome.RunRecord(
        ranks=ranks,
        first=Attempt(0, 10.0, ranks),
        restarts=[],
        node_names=["local-0", "local-1"],
        roles=["worker", "worker"],
        links=[],
        faults=[],
        failure=failure,
        evaluated=evaluated,
        checkpoints=[],
        warnings=[],
        rows=list(rows),
        began=10.0,
        ended=60.0,
    )
    begun = begin("id", "local", RunSpec(nodes=2, batch=8))
    return outcome.complete(begun, record).document()


def begin(run_id, runtime, spec) -> Result:
    return outcome.begin(run_id, runtime, spec, DataInfo(label="cifar10", key="c"), limits=[], links=[])


def two_ranks():
    first = [step(0, 1, 9.0, when=25.0), step(0, 2, 1.0), step(0, 3, 2.0, loss=2.0), step(0, 4, 3.0, loss=2.0)]
    second = [step(1, 1, 9.5, when=25.0), step(1, 2, 2.0), step(1, 3, 2.0), step(1, 4, 2.0, loss=5.0)]
    return [state(0, first), state(1, second)]


def test_the_first_step_is_left_out_of_the_means_but_not_of_the_bytes():
    result = complete(two_ranks())
    zero = result["ranks"][0]
    assert zero["step_seconds"] == {"mean": 2.0, "median": 2.0, "p95": 3.0}
    assert zero["phase_seconds"]["sync"] == pytest.approx(2.0 - 0.7)
    assert sum(zero["phase_seconds"].values()) == pytest.approx(zero["step_seconds"]["mean"])
    assert (zero["steps"], zero["sent_bytes"], zero["received_bytes"]) == (4, 40, 80)
    assert result["samples_seen"] == 32
    assert result["distinct_samples"] == 7


def test_train_loss_is_of_the_last_global_batch_weighted_by_samples():
    ranks = two_ranks()
    assert complete(ranks)["train_loss"] == pytest.approx((2.0 * 4 + 5.0 * 4) / 8)
    ranks[1].steps[-1] = step(1, 4, 2.0, loss=5.0, samples=12)
    assert complete(ranks)["train_loss"] == pytest.approx((2.0 * 4 + 5.0 * 12) / 16)


def test_a_loss_that_is_not_finite_is_null_and_so_is_the_whole_of_it():
    ranks = two_ranks()
    ranks[0].steps[-1] = events.parse(events.to_line(step(0, 4, 2.0, loss=float("nan"))))
    assert complete(ranks)["train_loss"] is None


def test_start_up_ends_when_the_first_step_begins_and_its_parts_add_up():
    seconds = complete(two_ranks())["seconds"]
    assert seconds["startup"] == pytest.approx(25.0 - 9.5 - 10.0)
    assert sum(seconds["startup_parts"].values()) == pytest.approx(seconds["startup"])
    assert (seconds["training"], seconds["total"]) == (30.0, 50.0)


def test_node_figures_come_from_the_nodes_rows():
    rows = [
        Row(
            time=1.0,
            node="local-0",
            cpu_seconds_total=1.0,
            memory_working_set_bytes=5.0,
            network_receive_bytes_total=1.0,
        ),
        Row(
            time=2.0,
            node="local-0",
            cpu_seconds_total=1.5,
            memory_working_set_bytes=9.0,
            network_receive_bytes_total=4.0,
        ),
        Row(time=2.0, node="local-1", cpu_seconds_total=7.0),
    ]
    zero, one = complete(two_ranks(), rows=rows)["ranks"]
    assert zero["peak_cpu_percent"] == pytest.approx(50.0)
    assert (zero["node_peak_memory_bytes"], zero["network_received_bytes"]) == (9.0, 3.0)
    assert (one["peak_cpu_percent"], one["node_peak_memory_bytes"]) == (None, None)


def test_a_failed_run_says_why_and_keeps_what_was_measured():
    ranks = [two_ranks()[0], RankState(last_sign=0)]
    result = complete(ranks, failure=Failure("killed", "rank 1 (local-1) was killed", 1, ("last",)))
    assert (result["status"], result["error"]["rank"], result["test_accuracy"]) == ("failed", 1, None)
    assert result["ranks"][0]["steps"] == 4
    assert result["ranks"][1]["step_seconds"]["mean"] is None
    json.dumps(result, allow_nan=False)


def test_per_class_against_counting_by_hand():
    matrix = [[3, 1, 0], [2, 4, 0], [1, 0, 0]]
    cat, dog, owl = scores.class_scores(matrix, ["cat", "dog", "owl"])
    expected = {"class": "cat", "precision": 3 / 6, "recall": 3 / 4, "f1": pytest.approx(0.6), "support": 4}
    assert cat.model_dump(by_alias=True) == expected
    assert (dog.precision, dog.recall, dog.support) == (4 / 5, 4 / 6, 6)
    assert (owl.precision, owl.recall, owl.f1, owl.support) == (0.0, 0.0, 0.0, 1)


@given(st.lists(st.floats(0, 100), min_size=1), st.sampled_from([50, 95, 99, 100]))
def test_percentile_is_the_smallest_measured_value_that_covers_the_share(values, percent):
    found = scores.percentile(values, percent)
    assert found in values
    covered = sum(value <= found for value in values)
    below = sum(value < found for value in values)
    assert covered >= percent / 100 * len(values) > below or below == 0


def write(folder: Path, content) -> None:
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(content if isinstance(content, str) else json.dumps(content))


def test_a_run_of_a_sweep_is_found_in_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "sweeps/mine/20260101-a", {"schema": 1, "status": "finished"})
    with pytest.raises(
        UserError, match=r"^run 20260101-a: not found in runs \(newest: none yet\); RUNS_DIR=sweeps/mine has it$"
    ):
        store.load("20260101-a", Path("runs"))


def test_reading_refuses_in_one_line(tmp_path):
    write(tmp_path / "20260101-a", {"schema": SCHEMA + 1, "status": "finished"})
    write(tmp_path / "20260102-b", '{"schema": 1, "sta')
    with pytest.raises(UserError, match=r"run nope: not found in .* \(newest: 20260102-b, 20260101-a\)"):
        store.load("nope", tmp_path)
    with pytest.raises(UserError, match="schema 3 is newer"):
        store.load("20260101-a", tmp_path)
    with pytest.raises(UserError, match=r"20260102-b: result.json cannot be read"):
        store.load("20260102-b", tmp_path)


def test_a_run_whose_orchestrator_was_killed_reads_as_failed(tmp_path):
    begun = begin("x", "docker", RunSpec()).document()
    write(tmp_path / "alive", begun)
    assert store.load("alive", tmp_path).status == "running"
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    write(tmp_path / "dead", begun | {"orchestrator_pid": pid})
    dead = store.load("dead", tmp_path)
    assert (dead.status, dead.error.kind) == ("failed", "orchestrator")


@pytest.mark.parametrize("other", ["process", "boot"])
def test_a_later_process_of_the_same_id_is_not_the_orchestrator(other, tmp_path, monkeypatch):
    begun = begin("x", "docker", RunSpec()).document()
    if other == "boot":
        (tmp_path / "boot_id").write_text("another\n")
        monkeypatch.setattr(machine, "BOOT_ID", tmp_path / "boot_id")
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as later:  # many ticks after this process
        write(tmp_path / "reused", begun | ({"orchestrator_pid": later.pid} if other == "process" else {}))
        assert store.load("reused", tmp_path).error.kind == "orchestrator"


def test_an_orchestrator_that_ended_unasked_has_ended(tmp_path):
    """As in a container whose first process does not look after its orphans."""
    begun = begin("x", "docker", RunSpec()).document()
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    with child:
        begun |= {"orchestrator_pid": child.pid, "orchestrator_start": machine.process_start(child.pid)}
        write(tmp_path / "x", begun)
        assert store.load("x", tmp_path).status == "running"
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert store.load("x", tmp_path).error.kind == "orchestrator"


def test_a_result_of_before_the_start_was_kept_goes_by_the_process_id(tmp_path):
    write(tmp_path / "old", case("old", "running", schema=1, orchestrator_pid=os.getppid()))
    assert store.load("old", tmp_path).status == "running"


def test_where_the_machine_does_not_tell_the_process_id_decides(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "BOOT_ID", tmp_path / "none")
    begun = begin("x", "docker", RunSpec()).document()
    write(tmp_path / "x", begun)
    assert begun["orchestrator_start"] is None
    assert store.load("x", tmp_path).status == "running"


def test_saving_is_whole_or_not_at_all(tmp_path):
    begun = begin("x", "local", RunSpec())
    store.save(begun, tmp_path)
    with pytest.raises(ValueError, match="not JSON compliant"):
        store.save(begun.model_copy(update={"train_loss": float("nan")}), tmp_path)
    assert store.load(".", tmp_path) == begun


def printed_ranks(document) -> dict[str, list[str]]:
    """The cells of the table of ranks in a terminal, by heading."""
    table = tables.narrow_rank_tables(tables.rank_table(Result.model_validate(document)))[0]
    return {column.header: [str(cell) for cell in column.cells] for column in in_terminal(table).columns}


def test_the_table_has_a_mean_row_with_the_mean_of_every_column():
    cells = printed_ranks(complete(two_ranks()))
    assert cells["s/step"] == ["2.000", "2.000", "2.000"]
    assert cells["p95"] == ["3.000", "2.000", "2.500"]
    assert cells["rank"] == ["0", "1", "mean"]
    assert cells["peak CPU %"] == ["-", "-", "-"]


def test_staleness_is_told_per_worker_and_a_servers_bytes_are_those_it_served():
    worker = state(0, [step(0, n, 1.0, staleness=s) for n, s in enumerate((0.0, 1.5, 2.0, 0.0), 1)])
    counted = {"interface_sent_bytes": 310, "interface_received_bytes": 210}
    served = events.Served(rank=1, updates=4, sent_bytes=300, received_bytes=200, **counted)
    server = RankState(last_sign=0, served=served)
    zero, one = complete([worker, server])["ranks"]
    assert zero["staleness"] == {"mean": 0.875, "max": 2.0, "histogram": {"0": 2, "2": 2}}
    assert (zero["updates"], zero["sent_bytes"]) == (None, 40)
    assert (one["staleness"], one["updates"], one["sent_bytes"], one["received_bytes"]) == (None, 4, 300, 200)
    assert {name: one[name] for name in counted} == counted
    assert (zero["interface_sent_bytes"], zero["interface_received_bytes"]) == (9, 8)


def test_an_evaluators_bytes_are_those_of_the_weights_it_took():
    watched = events.Watched(rank=1, sent_bytes=48, received_bytes=900)
    _, one = complete([state(0, [step(0, 1, 1.0)]), RankState(last_sign=0, watched=watched)])["ranks"]
    assert (one["sent_bytes"], one["received_bytes"], one["interface_sent_bytes"]) == (48, 900, None)


def test_figures_of_a_node_stand_once_in_tables_and_means_are_of_nodes():
    document = complete(two_ranks())
    ranks = document["ranks"]
    for rank, node, peak in zip(ranks, ("local-0", "local-1"), (50.0, 10.0), strict=True):
        rank |= {"node": node, "peak_cpu_percent": peak, "throttled_seconds": peak / 10}
    ranks.insert(1, ranks[0] | {"rank": 1})
    ranks[2] |= {"rank": 2}
    ranks.append(ranks[2] | {"rank": 3, "role": "evaluator"})
    assert printed_ranks(document)["peak CPU %"] == ["50", "-", "10", "-", "30"]
    table = tables.rank_table(Result.model_validate(document))
    for heading, values in {"peak CPU %": [50, None, 10, None, 30], "throttled s": [5, None, 1, None, 3]}.items():
        assert [row[table.headings.index(heading)] for row in table.rows] == values


def test_a_lost_worker_is_named_and_does_not_take_the_train_loss_along():
    ranks = two_ranks()
    ranks[1].steps, ranks[1].lost_reason = ranks[1].steps[:2], "was killed by SIGKILL"
    result = complete(ranks)
    assert result["lost_workers"] == [{"rank": 1, "step": 2, "reason": "was killed by SIGKILL"}]
    assert result["train_loss"] == 2.0
    assert result["status"] == "finished"


def test_evaluations_on_the_way_are_kept():
    ranks = two_ranks()
    told = events.Monitored(rank=1, time=40.0, step=3, updates=6, samples=13, loss=1.5, accuracy=0.5)
    ranks[1].evaluations.append(told)
    expected = {"step": 3, "updates": 6, "loss": 1.5, "accuracy": 0.5, "seconds": 30.0}
    assert complete(ranks)["evaluations"] == [expected]


def test_a_folder_of_runs_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    def refused(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refused)
    with pytest.raises(UserError, match=r"^RUNS_DIR=.*: cannot be read \(Permission denied\)$"):
        store.folders(tmp_path)
    monkeypatch.setattr(Path, "is_dir", refused)
    with pytest.raises(UserError, match=r"^RESUME=latest: cannot be read \(Permission denied\)$"):
        resume.find("latest", tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        "no JSON",
        "[1]",
        '"finished"',
        {"schema": "x", "status": "finished"},
        {"schema": 1},
        {"schema": 1, "id": "bad", "status": "running", "orchestrator_pid": "me"},
        {"schema": 1, "id": ["bad"], "status": "finished", "spec": 3},
        {"schema": 1, "status": "finished", "ranks": [{"step_seconds": None}]},
    ],
)
def test_a_result_that_cannot_be_read_does_not_hide_the_others(content, tmp_path, capsys):
    write(tmp_path / "good", complete(two_ranks()) | {"id": "good"})
    write(tmp_path / "bad", content)
    assert cli.main(["runs", f"RUNS_DIR={tmp_path}"]) == 0
    told = capsys.readouterr()
    lines = {line.split()[0]: line.split()[1] for line in told.out.splitlines()}
    assert lines["good"] == "finished"
    assert lines["bad"] in ("unreadable", "failed")
    if lines["bad"] == "unreadable":
        assert told.err.startswith("warning: run bad: ")
    assert cli.main(["runs", "--json", f"RUNS_DIR={tmp_path}"]) == 0
    assert {run["id"] for run in json.loads(capsys.readouterr().out) if run["id"] == "good"} == {"good"}
    assert cli.main(["show", "bad", f"RUNS_DIR={tmp_path}"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("syncbed: run bad: ")
    assert err.count("\n") == 1


def test_what_comes_from_outside_is_never_markup(tmp_path, capsys):
    names = ["[/red]", "[bold]", ":smile:"]
    matrix = [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    evaluated = events.Evaluated(
        rank=0, time=50.0, loss=1.0, accuracy=1.0, samples=3, seconds=1.0, classes=names, confusion_matrix=matrix
    )
    result = complete(two_ranks(), evaluated=evaluated) | {"id": "m[red]x", "warnings": ["[/dim] said"]}
    result["data"] |= {"label": "[/x]", "train_samples": 9}
    result["ranks"][0]["node"] = "[/node]"
    runs = tmp_path / "m[/red]y"
    write(runs / "m[red]x", result)
    assert cli.main(["show", "m[red]x", f"RUNS_DIR={runs}"]) == 0
    said = capsys.readouterr().out
    for text in (*names, "m[red]x", "[/x]", "[/node]", "warning: [/dim] said"):
        assert text in said
    assert cli.main(["runs", f"RUNS_DIR={runs}"]) == 0
    assert "m[red]x" in capsys.readouterr().out
    console.console(stderr=True).print(f"result: {runs}")
    assert f"result: {runs}" in capsys.readouterr().err


def test_show_takes_settings_without_an_id(tmp_path, capsys):
    write(tmp_path / "x", complete(two_ranks()) | {"id": "x"})
    (tmp_path / "latest").symlink_to("x")
    for words in ([f"RUNS_DIR={tmp_path}"], [f"RUNS_DIR={tmp_path}", "RUN=x"], ["x", f"RUNS_DIR={tmp_path}"]):
        assert cli.main(["show", *words]) == 0
        assert capsys.readouterr().out.startswith("x  finished")


@pytest.mark.parametrize("width", [60, 100, 300])
def test_the_list_of_runs_looks_the_same_however_it_is_laid_out(width):
    rows = [[Text(f"{heading[:3]}{n * 'x'}") for heading in show.HEADINGS] for n in range(4)]
    texts = []
    for table in (show._run_table(rows, Console(width=width)), show._table_of(rows)):
        say = Console(width=width, record=True, file=io.StringIO())
        say.print(table)
        texts.append(say.export_text())
    assert texts[0] == texts[1]
