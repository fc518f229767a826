"""A run whose metrics have a hole says so, in its result and on the screen."""

from types import SimpleNamespace

from monitor.recorder import Recorder
from monitor.recovery import Attempt
from monitor.sampling import Row


def test_a_node_whose_rows_do_not_cover_the_run_is_a_warning():
    rows = [Row(time=100.0 + t, node=node) for t in range(30) for node in ("a", "b") if node == "a" or t > 14]
    recorder = Recorder.__new__(Recorder)
    ranks = [SimpleNamespace(started=SimpleNamespace(time=100.0))]
    recorder.recovery = SimpleNamespace(attempts=[Attempt(0, 99.0, ranks)])
    recorder.place = SimpleNamespace(rows=lambda job, start, end, warn: rows)
    recorder.job, recorder.names, recorder.warnings, recorder._heard = None, ["a", "b"], [], 129.0
    assert recorder._rows() == rows
    assert recorder.warnings == ["b: metrics.csv has no rows for 14 s of the run; its figures lack them"]
