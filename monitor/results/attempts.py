"""Recorded events of a run that was restarted: each step once, as it was done last."""

from collections.abc import Iterable

from trainer import events


def without_repeats(recorded: Iterable[events.Event]) -> list[events.Event]:
    """Recorded events without the steps and scores that a restart lost: those that were done again come later."""
    remaining: list[events.Event] = []
    for event in recorded:
        if isinstance(event, events.Restart):
            remaining = [e for e in remaining if getattr(e, "step", 0) <= event.from_step]
            remaining = [e for e in remaining if not isinstance(e, events.Trained)]
        remaining.append(event)
    return remaining


def spent_until(recorded: Iterable[events.Event], step: int) -> list[events.Event]:
    """Recorded events with the steps that were spent until `step` was done for good.

    These are all steps before the last restart that lost any up to it, and those up to it since. Events of other kinds
    are all there.
    """
    everything = list(recorded)
    losses = [i for i, e in enumerate(everything) if isinstance(e, events.Restart) and e.from_step < step]
    last = losses[-1] if losses else 0
    return [e for i, e in enumerate(everything) if i < last or not isinstance(e, events.Step) or e.step <= step]
