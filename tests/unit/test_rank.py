"""A rank says what it has to say, and does not wait for whoever reads it. No torch."""

import os
import subprocess
import sys

from trainer import events
from trainer.__main__ import Rank


def test_a_reader_that_is_stopped_holds_no_rank_up():
    """Ctrl-Z: the orchestrator reads nothing, the pipe is full, and training goes on."""
    reading, writing = os.pipe()
    rank = Rank(os.fdopen(writing, "w", encoding="utf-8"))
    told = [events.Warning(rank=0, message=f"{number} {'x' * 1000}") for number in range(1000)]  # a pipe holds 64 KiB
    for event in told:
        rank.tell(event)
    rank.finish_telling(0.2)  # nobody reads: it gives up
    with os.fdopen(reading, encoding="utf-8") as lines:
        assert [events.parse(next(lines)) for _ in told] == told
    rank.finish_telling(30)


def test_a_reader_that_is_gone_ends_the_rank():
    code = """
import os
from trainer import events
from trainer.__main__ import Rank
rank = Rank(os.fdopen(os.dup(1), "w"))
input()
rank.tell(events.Alive(rank=0))
rank.finish_telling()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.close()
        process.communicate(b"\n", timeout=60)
    assert process.returncode == 1
