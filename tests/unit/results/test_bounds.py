"""A small result costs little, whatever it says, and no run's text moves or hides another's row."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_cases import begun, document, ended, per_class, rank_result, write_document, write_run

from monitor import cli
from monitor.metrics.sampling import Row, write_csv
from monitor.report import nodes, run_page
from monitor.report.load import load
from monitor.results import remove, store
from monitor.results.attempts import without_repeats
from monitor.run import outcome
from monitor.text import one_line
from trainer import events
from trainer.spec import MAX_NODES, RunSpec

SPEC = RunSpec.from_settings({"MODEL": "cnn3", "DATA": "synthetic", "NODES": "2", "BATCH": "12"})


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_document(tmp_path / "runs" / "20260301-good", ended("20260301-good"))
    return tmp_path


def whole(**changes) -> dict:
    return document("evil", SPEC, 2, 4) | changes


def listed(capsys) -> list[str]:
    """The lines of `runs`, without the heading."""
    capsys.readouterr()
    assert cli.main(["runs"]) == 0
    return capsys.readouterr().out.splitlines()[1:]


@pytest.mark.parametrize("pid", [10**18, 2**31, 2**31 - 1, 2**63, 1, 0, -1])
@pytest.mark.parametrize("start", [None, "x"])
def test_no_process_id_takes_the_list_away_or_keeps_a_run(here, capsys, pid, start):
    changes = {"orchestrator_pid": pid, "orchestrator_start": start}
    write_document(here / "runs" / "evil", begun("evil", "running", **changes))
    assert [line.split()[:2] for line in listed(capsys)] == [["evil", "failed"], ["20260301-good", "finished"]]
    remove.command({"RUN": "evil"}, SimpleNamespace())
    assert not (here / "runs" / "evil").exists()


STEP = {"step": 1, "loss": 1.0, "accuracy": 0.5, "seconds": 1.0}
FAULT = {"fault": "kill:0@1s", "step": 1, "began_seconds": 1.0, "ended_seconds": None, "error": None}
RESTART = {"attempt": 1, "kind": "k", "message": "m", "from_step": 0, "lost_steps": 1, "lost_samples": 1}
RESTART |= {"lost_sent_bytes": 1, "lost_seconds": 1.0, "startup_seconds": 1.0}
ERROR = {"kind": "k", "message": "m", "last_lines": [""] * 1001}
NAMES = [str(n) for n in range(1001)]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"ranks": [rank_result(0, 1)] * 1025}, "ranks"),
        ({"limits": [{"cpus": 1, "memory_bytes": 1}] * 1025}, "limits"),
        ({"links": [{}] * 1025}, "links"),
        ({"limits": [{"cpus": 1, "memory_bytes": 1}] * 2, "links": [{}]}, "links"),
        ({"faults": [FAULT] * 1001}, "faults"),
        ({"restarts": [RESTART] * 1001}, "restarts"),
        ({"lost_workers": [{"rank": 1, "step": 1, "reason": "r"}] * 1025}, "lost_workers"),
        ({"warnings": [""] * 1001}, "warnings"),
        ({"error": ERROR}, "error.last_lines"),
        ({"versions": dict.fromkeys(NAMES, "1")}, "versions"),
        ({"classes": NAMES, "per_class": None, "confusion_matrix": None}, "classes"),
        ({"confusion_matrix": [[0] * 1001]}, "confusion_matrix"),
        ({"spec": whole()["spec"] | dict.fromkeys(NAMES, 1)}, "spec"),
        ({"spec": whole()["spec"] | {"shares": [1] * 1025}}, "spec.shares"),
        ({"ranks": [rank_result(0, 1) | {"staleness": {"mean": 1, "max": 1, "histogram": {"9" * 10: 1}}}]}, "ranks"),
        ({"ranks": [rank_result(0, 1) | {"staleness": {"mean": 1, "max": 1, "histogram": {"x": 1}}}]}, "ranks"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_more_of_anything_than_a_run_has_is_refused_by_the_fields_name(here, capsys, changes, field):
    write_document(here / "runs" / "evil", whole(**changes))
    assert [line.split()[:2] for line in listed(capsys)] == [["evil", "unreadable"], ["20260301-good", "finished"]]
    assert cli.main(["report", "evil"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"its result.json is not one that syncbed wrote ({field}" in line and len(line) < 400


def test_the_largest_run_is_read():
    ranks = [rank_result(rank, 1) for rank in range(MAX_NODES * 16 + 17)]
    assert len(store.parse("r", whole(ranks=ranks)).ranks) == len(ranks)


def test_staleness_has_a_bar_for_each_age_up_to_a_most():
    of_rank = {"mean": 1, "max": 1, "histogram": {"0": 2, "39": 3, "40": 5, "41": 7, "999999999": 11}}
    (bars,) = run_page.staleness(store.parse("r", whole(ranks=[rank_result(0, 1) | {"staleness": of_rank}])))
    assert (len(bars.labels), bars.labels[-1]) == (41, "40 or more")
    assert [v for v in bars.parts["rank 0"] if v] == [2, 3, 23]


@pytest.mark.parametrize(("count", "is_shown"), [(100, True), (101, False), (1000, False)])
def test_a_confusion_matrix_is_laid_out_up_to_a_most(here, capsys, count, is_shown):
    names = [f"c{n}" for n in range(count)]
    result = store.parse("r", whole(classes=names, confusion_matrix=[[0] * count] * count, per_class=per_class([], [])
                                    or per_class([[0] * count] * count, names)))  # fmt: skip
    items = run_page.classes(result)
    assert any(getattr(item, "name", "") == "confusion-matrix" for item in items) == is_shown
    assert any(isinstance(item, str) and "result.json alone" in item for item in items) != is_shown


BREAKS = ["\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"]


@pytest.mark.parametrize("mark", BREAKS)
@pytest.mark.parametrize("field", ["runtime", "sync", "model", "data", "precision", "other", "fault", "congestion"])
def test_no_text_moves_the_rows_of_other_runs(here, capsys, mark, field):
    evil = f"a{mark}20260302-fake  finished"
    changes: dict = {"runtime": evil} if field == "runtime" else {"spec": whole()["spec"] | {field: evil}}
    if field == "fault":
        changes = {"faults": [FAULT | {"fault": evil}]}
    if field == "congestion":
        changes = {"limits": [{"cpus": 1, "memory_bytes": 1}], "links": [{"congestion": evil}]}
    write_document(here / "runs" / "20260401-evil", whole(**changes))
    assert [line.split()[0] for line in listed(capsys)] == ["20260401-evil", "20260301-good"]


@pytest.mark.parametrize("mark", BREAKS[:4])
def test_no_folders_name_is_two_rows(here, capsys, mark):
    write_document(here / "runs" / f"evil{mark}20260302-fake", ended("evil"))
    write_document(here / "runs" / f"bad{mark}20260303-fake", {"schema": 1})
    rows = listed(capsys)
    assert [row.split()[0] for row in rows] == ["evil", "bad", "20260301-good"]
    assert rows[2].split()[1] == "finished"


def test_rows_are_short_whatever_a_result_says(here, capsys):
    spec = whole()["spec"] | {
        "sync": "x y" * 500_000,
        "other": [1] * 500_000,
        "k" * 500_000: 1,
        "deep": [[["x"]] * 9999],
    }
    write_document(here / "runs" / "evil", whole(spec=spec))
    assert max(map(len, listed(capsys))) < 1000
    assert cli.main(["show", "evil"]) == 0
    assert len(capsys.readouterr().out) < 30_000


LONG = "x" * 500_000


@pytest.mark.parametrize("changes", [{"status": LONG}, {"schema": 2, "runtime": [LONG]}, {"spec": LONG}])
def test_what_is_wrong_is_a_short_line(here, capsys, changes):
    write_document(here / "runs" / "evil", whole(**changes))
    assert cli.main(["show", "evil"]) == 2
    assert len(capsys.readouterr().err) < 400


@given(st.text(), st.integers(2, 30))
def test_one_line_is_one_short_line(text, letters):
    line = one_line(text, letters)
    assert len(line.splitlines()) <= 1 and len(line) <= letters
    assert one_line(line, letters) == line
    if text.isprintable() and len(text) <= letters:
        assert line == text


def test_metrics_of_more_nodes_than_a_run_has(here):
    folder = write_run(here / "runs" / "r")
    write_csv(folder / "metrics.csv", [Row(time=n + m, node=f"n{n}", memory_usage_bytes=1, cpu_seconds_total=m)
                                       for n in range(500) for m in (0, 1)])  # fmt: skip
    (cpu,) = nodes.over_time(load(folder))
    assert len(cpu.series) == MAX_NODES


def test_restarts_and_faults_without_end_are_marked_up_to_a_most(here):
    folder = write_run(here / "runs" / "r", faults=[FAULT] * 1000)
    lost = events.Restart(
        rank=0, attempt=1, kind="killed", message="m", from_step=0, lost_steps=1, lost_seconds=1.0
    )  # fmt: skip
    with (folder / "events.jsonl").open("a") as log:
        log.writelines(events.to_line(lost) + "\n" for _ in range(1000))
    for plot in nodes.over_time(load(folder)):
        assert len(plot.spans) == len(plot.marks) == nodes.MOST_SPANS


def test_scores_without_end_are_thinned():
    result = store.parse("r", whole(evaluations=[STEP | {"step": n} for n in range(5000)]))
    (table,) = run_page.evaluations(result)
    assert len(table.rows) <= run_page.MOST_POINTS + 1 and table.rows[-1][0] == 4999
    assert run_page.at_most([]) == [] and run_page.at_most([7]) == [7]


STEPS = st.integers(0, 9)
RECORDED = st.one_of(
    STEPS.map(lambda n: SimpleNamespace(step=n)),
    STEPS.map(lambda n: events.Restart(
        rank=0, attempt=1, kind="k", message="m", from_step=n, lost_steps=0, lost_seconds=0.0, time=1.0)),
    st.just(events.Trained(rank=0, time=1.0, seconds=1.0, distinct_samples=1, synchronisations=1,
                           interface_sent_bytes=0, interface_received_bytes=0)),
)  # fmt: skip


@given(st.lists(RECORDED))
def test_what_restarts_lost_is_found_in_one_pass(recorded):
    """It is compared with going back at each restart, which takes a time that grows with the square."""
    kept: list = []
    for event in recorded:
        if isinstance(event, events.Restart):
            kept = [e for e in kept if getattr(e, "step", 0) <= event.from_step and not isinstance(e, events.Trained)]
        kept.append(event)
    assert without_repeats(recorded) == kept


def test_our_own_result_holds_as_much_as_is_read(monkeypatch):
    """A hostile rank may say a lot; the result that is written is one that can be read."""
    few = outcome.few([f"w{n}" for n in range(5000)])
    assert (len(few), few[0], few[-1]) == (1000, "w0", "4001 more warnings, which are in events.jsonl")
    assert outcome.few(["a"] * 1000) == ["a"] * 1000
    monkeypatch.setattr(outcome, "MOST", 10)
    scored = [events.Monitored(rank=0, step=n, samples=1, loss=1.0, accuracy=0.5) for n in range(15)]
    record = SimpleNamespace(ranks=[SimpleNamespace(evaluations=scored)], began=0.0)
    assert [score.step for score in outcome.evaluations(record)] == list(range(5, 15))
