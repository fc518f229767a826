"""One event, one line, and back."""

import io
import json
import math

import pytest

from trainer import events
from trainer.events import Alive, Evaluated, Exited, Failed, Finished, Step, Trained, parse, to_line, write

STEP = Step(
    rank=1, time=5.5, step=3, epoch=1, loss=2.5, accuracy=0.25, samples=64, seconds=dict.fromkeys(events.PHASES, 0.1),
    step_seconds=0.5, sent_bytes=7, received_bytes=8,
)  # fmt: skip


@pytest.mark.parametrize(
    "event",
    [
        STEP,
        Alive(rank=0, time=1.0),
        Failed(rank=2, time=1.0, kind="own", message='a "quoted" line', suspect_rank=None, traceback="a\nb"),
        Evaluated(
            rank=0, samples=2, loss=1.0, accuracy=0.5, confusion_matrix=[[1, 1], [0, 0]], classes=["ü", "b"], seconds=1
        ),
        Trained(
            rank=0,
            seconds=1.0,
            distinct_samples=9,
            synchronisations=3,
            interface_sent_bytes=1,
            interface_received_bytes=2,
        ),
        Finished(rank=0, peak_memory_bytes=10**12, cpu_seconds=1.5),
        Exited(rank=0, code=None, signal="SIGKILL", out_of_memory=True),
    ],
)  # fmt: skip
def test_an_event_is_one_line_and_comes_back_equal(event):
    line = to_line(event)
    assert "\n" not in line
    assert parse(line) == event


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_json_does_not_have_become_null_however_deep(value):
    deep = events.finite({"a": [value, {"b": value}], "c": 1.5})
    assert deep == {"a": [None, {"b": None}], "c": 1.5}
    assert parse(to_line(STEP.__class__(**{**STEP.__dict__, "loss": value}))).loss is None


@pytest.mark.parametrize("line", ["", "hello", "5", "[]", "{}", '{"event": "unheard"}', '{"event": "alive"}', "{"])
def test_other_lines_are_no_events(line):
    assert parse(line) is None


def test_a_field_of_a_later_version_is_passed_over():
    assert parse('{"event": "alive", "rank": 1, "time": 2.0, "mood": "good"}') == Alive(rank=1, time=2.0)


def test_write_is_one_flushed_line():
    stream = io.StringIO()
    write(STEP, stream)
    write(STEP, stream)
    first, second, rest = stream.getvalue().split("\n")
    assert json.loads(first) == json.loads(second)
    assert rest == ""
