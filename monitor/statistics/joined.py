"""Figures of the batch that all workers compute together in a step."""

from collections.abc import Sequence

from trainer.events import Step


def joined_loss(steps: Sequence[Step]) -> float | None:
    """The loss of the workers' joined batch: their mean, weighted by samples. None where one of them is not finite."""
    total = 0.0
    for step in steps:
        if step.loss is None:
            return None
        total += step.loss * step.samples
    return total / sum(step.samples for step in steps)
