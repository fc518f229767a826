"""What a rank prints is bounded before it is kept: a line, all lines, all bytes."""

import time
from queue import Queue

import pytest
from hypothesis import given
from hypothesis import strategies as st
from signed import KEY

from monitor.runtime.base import Lines, Output
from monitor.runtime.streams import SHORT_RUN, Budget, RankOutput, budget_of
from trainer.events import LINE_BYTES
from trainer.spec import RunSpec


def outputs(pieces, budget=SHORT_RUN, stream="stdout"):
    """What comes of these pieces, but for the end."""
    queue = Queue()
    rank = RankOutput(3, queue, KEY, budget)
    for piece in pieces:
        rank.feed(stream, piece)
    rank.end()
    *found, last = queue.queue
    assert last == Output(3, "stdout", None)
    return found


@given(st.lists(st.binary(max_size=20) | st.sampled_from(["ü".encode()[:1], "ü".encode()[1:], b"\n"]), max_size=20))
def test_lines_are_the_same_however_they_come(pieces):
    lines = Lines()
    parts = [line for piece in pieces for line in lines.feed(piece)] + lines.end()
    whole = b"".join(pieces).decode("utf-8", "replace").split("\n")
    assert parts == (whole if whole[-1] else whole[:-1])


def test_bytes_without_a_newline_take_no_time_and_are_a_breach():
    began = time.process_time()
    found = outputs([b"x" * 1000] * 20_000)
    assert time.process_time() - began < 2
    assert found == [Output(3, "stdout", "", f"it sent a line of more than {LINE_BYTES} bytes")]


@pytest.mark.parametrize("size", [LINE_BYTES, LINE_BYTES - 1, 1])
def test_a_line_as_long_as_allowed_is_passed_on(size):
    assert [len(output.line) for output in outputs([b"x" * size + b"\n"])] == [size]


def test_a_long_line_on_standard_error_is_cut():
    assert [len(o.line) for o in outputs([b"x" * 3 * LINE_BYTES, b"\nnext\n"], stream="stderr")] == [LINE_BYTES, 4]


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize(
    "piece, budget, why",
    [
        (b"x" * 99 + b"\n", Budget(bytes=2_000_000), "it printed more than 2 MB"),
        (b"\n", Budget(lines=1000), "it printed more than 1000 lines"),
        (b"\n" * 500, Budget(lines=1000), "it printed more than 1000 lines"),
    ],
)
def test_past_its_budget_nothing_is_kept(stream, piece, budget, why):
    found = outputs([piece] * 30_000, budget, stream)
    assert [output.breach for output in found if output.breach] == [why]
    assert found[-1].breach == why
    assert sum(len(output.line) for output in found) <= budget.bytes and len(found) <= budget.lines + 1


def test_a_budget_grows_with_the_run():
    short, long, epochs = RunSpec(), RunSpec(steps=10**6), RunSpec(steps=None, epochs=100)
    assert budget_of(short).bytes > 1 << 26
    assert budget_of(long).bytes > 1000 * 10**6
    assert budget_of(epochs).lines > budget_of(short).lines
