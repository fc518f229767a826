"""A run whose metrics have a hole says so, in its result and on the screen."""

from types import SimpleNamespace

from monitor.metrics.sampling import Row
from monitor.run.attempts import Attempt
from monitor.run.recorder import Recorder


def recorded(rows: list[Row], **started: float) -> Recorder:
    """A run of one rank a node, started at these times (Unix seconds; 0: never), of which these rows are known."""
    recorder = Recorder.__new__(Recorder)
    ranks = [SimpleNamespace(started=SimpleNamespace(time=time) if time else None) for time in started.values()]
    recorder.recovery = SimpleNamespace(attempts=[Attempt(0, 99.0, ranks)])
    recorder.runtime = SimpleNamespace(rows=lambda job, start, end, warn: rows)
    recorder.job, recorder.node_names, recorder.warnings, recorder._last_event = None, list(started), [], 129.0
    return recorder


def test_a_node_whose_rows_do_not_cover_the_run_is_a_warning():
    rows = [Row(time=100.0 + t, node=node) for t in range(30) for node in ("a", "b") if node == "a" or t > 14]
    recorder = recorded(rows, a=100.0, b=100.0)
    assert recorder._rows() == rows
    assert recorder.warnings == ["b: metrics.csv has no rows for 14 s of the run; its figures lack them"]


def test_training_figures_of_an_earlier_run_are_not_this_ones_on_any_node():
    """An agent shows a rank's last figures for some seconds after it ended, and nodes are not started at once."""
    rows = [Row(time=99.0 + t, node=node, training_step=16.0, training_loss=2.0) for t in range(4) for node in "abc"]
    found = recorded(rows, a=100.0, b=101.5, c=0.0)._rows()
    kept = {node: [r.time for r in found if r.node == node and r.training_step == 16.0] for node in "abc"}
    assert kept == {"a": [100.0, 101.0, 102.0], "b": [102.0], "c": []}
    assert all((row.training_step is None) == (row.training_loss is None) for row in found)
    assert [(row.time, row.node) for row in found] == [(row.time, row.node) for row in rows]
