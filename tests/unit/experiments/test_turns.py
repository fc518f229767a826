"""Benchmarks whose two sides take turns within one run: whose steps count in which turn."""

from concurrent.futures import Future

import pytest

from benchmarks import turns
from benchmarks.turns import Turn, pairs, take_turns

QUICK = [n * 1.0 for n in range(100)]  # a step a second
SLOW = [n * 1.5 for n in range(100)]


def test_each_pair_is_of_the_steps_that_lie_wholly_in_a_turn():
    taken = [Turn(True, 0, 10), Turn(False, 10, 20), Turn(False, 20, 30), Turn(True, 30, 40)]
    assert list(pairs(taken, SLOW, QUICK, 1.0)) == [(1.5, 1.0), (1.5, 1.0)]
    # one step of 1.5 s more, from 8 to 9.5 s: it would count with settle=0 alone if it began before the turn did
    uneven = [0.5, 2.0, 4.0, 6.0, 8.0, 9.5, 25.0]
    assert list(pairs(taken[:2], uneven, QUICK, 1.0)) == [(pytest.approx((9.5 - 2.0) / 4), 1.0)]
    assert list(pairs(taken[:2], uneven, QUICK, 0.0)) == [(pytest.approx((9.5 - 0.5) / 5), 1.0)]


def test_a_pair_one_of_which_has_few_steps_does_not_count():
    taken = [Turn(True, 0, 10), Turn(False, 10, 20), Turn(False, 20, 22), Turn(True, 22, 40), Turn(True, 40, 60)]
    assert list(pairs(taken, QUICK, QUICK, 0.0)) == [(1.0, 1.0)]


def test_turns_go_round_until_the_run_is_over_and_end_with_it(monkeypatch):
    run, given, clock = Future(), [], iter(range(1000))
    monkeypatch.setattr(turns, "time", lambda: next(clock))

    def wait(runs, seconds):
        assert (runs, seconds) == ([run], 10.0)
        if len(given) == 4:
            run.set_result(None)

    monkeypatch.setattr(turns, "wait", wait)
    taken = take_turns(run, 10.0, given.append)
    assert [turn.first for turn in taken] == [True, False, False, True, True, False]
    assert given == [True, False, True, False]  # told only where it changes
    assert [(turn.began, turn.ended) for turn in taken] == [(2 * n, 2 * n + 1) for n in range(6)]
