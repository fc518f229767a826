"""Recorded events of a run that was restarted: each step once, as it was done last."""

import math
from collections.abc import Iterable

from trainer import events


def without_repeats(recorded: Iterable[events.Event]) -> list[events.Event]:
    """Recorded events without the steps and scores that a restart lost: those that were done again come later."""
    kept: list[events.Event] = []
    floor = math.inf  # the earliest step that a later restart goes on from
    for event in reversed(list(recorded)):
        is_lost = getattr(event, "step", 0) > floor or (floor < math.inf and isinstance(event, events.Trained))
        if not is_lost:
            kept.append(event)
        if isinstance(event, events.Restart):
            floor = min(floor, event.from_step)
    return kept[::-1]


def spent_until(recorded: Iterable[events.Event], step: int) -> list[events.Event]:
    """Recorded events with the steps that were spent until `step` was done for good.

    These are all steps before the last restart that lost any up to it, and those up to it since. Events of other kinds
    are all there.
    """
    everything = list(recorded)
    losses = [i for i, e in enumerate(everything) if isinstance(e, events.Restart) and e.from_step < step]
    last = losses[-1] if losses else 0
    return [e for i, e in enumerate(everything) if i < last or not isinstance(e, events.Step) or e.step <= step]
