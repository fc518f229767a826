"""Reports: the faults of a run, as a table and on its curves over time."""

from types import SimpleNamespace

from report_cases import begun

from monitor.report import nodes, run_page
from monitor.report.plots import Lines, Series, Span, svg
from monitor.results.result import Result

FAULTS = [
    {"fault": "kill:1@step=2", "step": 2, "began_seconds": 1.5, "ended_seconds": 9.0, "error": None},
    {"fault": "freeze:0@1s+2s", "step": 1, "began_seconds": 1.0, "ended_seconds": 3.0, "error": None},
    {"fault": "slow:1@9s,cpus=0.1", "step": None, "began_seconds": None, "ended_seconds": None, "error": None},
]


def result(faults) -> Result:
    return Result.model_validate(begun("x", faults=faults))


def test_faults_are_a_table_and_marks_on_the_curves_over_time():
    (table,) = run_page.fault_table(result(FAULTS))
    assert table.rows[0] == ["kill:1@step=2", 1.5, 9.0, 2, ""]
    assert table.rows[2] == ["slow:1@9s,cpus=0.1", None, None, None, ""]
    assert run_page.fault_table(result([])) == []
    marks = nodes.fault_marks(SimpleNamespace(result=result(FAULTS)))
    assert marks == [Span("kill:1", 1.5, 1.5), Span("freeze:0", 1.0, 3.0)]
    drawn = svg(Lines("n", "t", "s", "%", [Series("a", [0, 5], [1, 2])], marks=marks))
    assert "kill:1" in drawn
    assert "freeze:0" in drawn
    assert nodes.fault_marks(SimpleNamespace(result=result([]))) == []
