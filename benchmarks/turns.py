"""Two ways of doing the same that take turns within seconds, so that what else the machine does hits both alike."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from itertools import pairwise
from statistics import fmean
from time import time
from typing import NamedTuple

FEWEST_STEPS = 3  # of a turn that counts


class Turn(NamedTuple):
    """Who had it, and from when to when, in seconds since 1970."""

    first: bool
    began: float
    ended: float


def take_turns(run: Future, seconds: float, give: Callable[[bool], None]) -> list[Turn]:
    """Call `give(True)` and `give(False)` in turn until the run is over, every second pair the other way round."""
    taken: list[Turn] = []
    while not run.done():
        first = len(taken) % 4 in (0, 3)
        if not taken or taken[-1].first != first:
            give(first)
        began = time()
        wait([run], seconds)
        taken.append(Turn(first, began, time()))
    return taken


def pairs(
    taken: Sequence[Turn], first: Sequence[float], second: Sequence[float], settle: float
) -> Iterator[tuple[float, float]]:
    """Mean seconds from step to step of both, of each two turns, from the times at which each one's steps ended.

    What begins less than `settle` seconds after a turn began, or ends after it, is left out.
    """
    for two in zip(taken[::2], taken[1::2], strict=False):
        means = {}
        for turn in two:
            ends = pairwise(first if turn.first else second)
            steps = [b - a for a, b in ends if a >= turn.began + settle and b <= turn.ended]
            if len(steps) >= FEWEST_STEPS:
                means[turn.first] = fmean(steps)
        if len(means) == 2:
            yield means[True], means[False]
