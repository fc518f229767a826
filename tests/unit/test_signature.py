"""A launcher's word is told from a rank's, whatever a rank writes to the stream that both share."""

from queue import Queue

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scripted import exited
from signed import KEY

from monitor.runtime.base import Output
from monitor.runtime.streams import RankOutput
from node.signature import ForgedError, Signer, Verifier, new_key
from trainer import events

SAID = [events.Held(rank=0), events.Failed(rank=0, kind="own", message="ü\n"), exited(0)]
RANKS = events.to_line(events.Alive(rank=0)).encode()


def lines_of(key, capsys, said=SAID):
    """What a launcher of this key writes."""
    signer = Signer(key)
    for event in said:
        signer.write(event)
    return capsys.readouterr().out.encode()


def received(data, stream="stdout"):
    """What reaches the supervisor: (stream, line), or a breach."""
    queue = Queue()
    output = RankOutput(0, queue, KEY)
    output.feed(stream, data)
    output.end()
    *found, last = queue.queue
    assert last == Output(0, "stdout", None)
    return [item.breach or (item.stream, item.line) for item in found]


EVENTS = [("launcher", events.to_line(event)) for event in SAID]
NOT_SIGNED = "it sent an event as its launcher, without its launcher's signature"


@pytest.fixture
def signed(capsys):
    """The launcher's lines, without ends."""
    return [line for line in lines_of(KEY, capsys).splitlines() if line]


def test_what_a_launcher_says_arrives_as_its_own(capsys):
    assert received(lines_of(KEY, capsys)) == EVENTS


def test_a_line_that_a_rank_left_open_takes_no_launchers_line_along(capsys):
    first, _, rest = lines_of(KEY, capsys).partition(b"\n")
    said = received(first + b"\n" + RANKS + b"\n" + RANKS[:20] + rest)
    ranks = [("stdout", RANKS.decode()), ("stdout", RANKS[:20].decode())]
    assert said == [EVENTS[0], *ranks, *EVENTS[1:]]


def test_lines_of_a_rank_that_look_alike_are_the_ranks():
    digest = "0" * 64
    noise = [digest, f"{digest}  model.pt", digest + " 1 {}", digest + ' 1 {"event": "unheard"}', f" {digest} 1 {{}}"]
    assert received("\n".join(noise).encode()) == [("stdout", line) for line in noise]


def forgeries(signed):
    """By name: lines that a rank sends after the first two of its launcher, whose third it may have read."""
    held, failed, last = (line.decode() for line in signed)
    mac, number, text = last.split(" ", 2)
    busy = events.to_line(events.Busy(rank=0, run="x"))
    return {
        "no key": f"{'0' * 64} 3 {text}",
        "another event": f"{mac} {number} {busy}",
        "another number": f"{mac} 4 {text}",
        "a changed event": last.replace('"code": 0', '"code": 1'),
        "the first once more": held,
        "the last once more": failed,
    }


@pytest.mark.parametrize("name", forgeries([b"a b c"] * 3))
def test_a_forged_line_is_a_breach_after_which_nothing_counts(signed, name):
    line = forgeries(signed)[name]
    why = "it sent a line of its launcher once more" if "once more" in name else NOT_SIGNED
    said = received(b"\n".join([*signed[:2], line.encode(), signed[2]]))
    assert said == [*EVENTS[:2], why]


def test_a_line_of_another_launcher_is_forged(capsys):
    other = lines_of(new_key(), capsys)
    assert received(other) == [NOT_SIGNED]
    assert received(lines_of(KEY, capsys) + b"\n" + other) == [*EVENTS, NOT_SIGNED]


def test_lines_in_another_order_are_forged(signed):
    assert received(b"\n".join([signed[0], signed[2], signed[1]])) == [
        EVENTS[0],
        EVENTS[2],
        "it sent a line of its launcher once more",
    ]


def test_a_signed_line_on_standard_error_is_text(signed):
    data = b"\n".join(signed)
    assert received(data, "stderr") == [("stderr", line.decode()) for line in signed]


def test_a_line_that_is_lost_takes_no_later_one_along(signed):
    assert received(b"\n".join([signed[0], signed[1][:90], signed[2]])) == [
        EVENTS[0],
        ("stdout", signed[1][:90].decode()),
        EVENTS[2],
    ]


HEX, JSON = st.text("0123456789abcdef", min_size=64, max_size=64), st.sampled_from([event for _, event in EVENTS])


@given(st.text() | st.tuples(HEX, st.integers(1, 10**8), JSON).map(lambda parts: " ".join(map(str, parts))))
@example(EVENTS[0][1])
def test_without_the_key_no_line_is_a_launchers(line):
    try:
        assert Verifier(KEY).text(line) is None
    except ForgedError as error:
        assert str(error) == NOT_SIGNED


def test_each_launcher_has_a_key_of_its_own():
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100 and {len(bytes.fromhex(key)) for key in keys} == {32}
