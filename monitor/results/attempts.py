"""Recorded events of a run that was restarted: each step once, as it was done last."""

from collections.abc import Iterable

from trainer import events


def kept(said: Iterable[events.Event]) -> list[events.Event]:
    """Recorded events without the steps and scores that a restart lost: those that were done again come later."""
    found: list[events.Event] = []
    for event in said:
        if isinstance(event, events.Restart):
            found = [e for e in found if getattr(e, "step", 0) <= event.from_step]
            found = [e for e in found if not isinstance(e, events.Trained)]
        found.append(event)
    return found


def wholly(said: Iterable[events.Event], step: int) -> list[events.Event]:
    """What was spent until `step` was done for good: all steps before the last restart that lost any up to it, and
    those up to it since. Of other recorded events nothing is left out.
    """
    found = list(said)
    lost = [i for i, e in enumerate(found) if isinstance(e, events.Restart) and e.from_step < step]
    since = lost[-1] if lost else 0
    return [e for i, e in enumerate(found) if i < since or not isinstance(e, events.Step) or e.step <= step]


def sentence(restart: dict) -> str:
    """One restart in words."""
    where = (
        f"step {restart['from_step']}"
        if restart["from_step"]
        else "the start, as there was no checkpoint of all workers"
    )
    steps = f"{restart['lost_steps']} step{'s'[: restart['lost_steps'] != 1]}"
    seconds = restart["lost_seconds"] + (restart.get("startup_seconds") or 0.0)
    return f"restarted from {where}: {restart['message']} ({steps} and {seconds:.1f} s lost)"
