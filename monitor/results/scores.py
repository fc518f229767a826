"""Small computations on results that several rooms need."""

import math

from trainer.events import Step
from trainer.layout import WORKER


def percentile(values: list[float], percent: float) -> float | None:
    """The nearest-rank percentile: a value that was measured, never one in between. None for no values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)] if ordered else None


def joined_loss(steps: list[Step]) -> float | None:
    """The loss of the workers' joined batch: their mean, weighted by samples. None where one of them is not finite."""
    if any(step.loss is None for step in steps):
        return None
    return sum(step.loss * step.samples for step in steps) / sum(step.samples for step in steps)


def per_class(matrix: list[list[int]], classes: list[str]) -> list[dict]:
    """Precision, recall, F1 and support of each class from a confusion matrix [true][predicted]. 0 / 0 counts as 0."""
    report = []
    for k, name in enumerate(classes):
        hits, support, claimed = matrix[k][k], sum(matrix[k]), sum(row[k] for row in matrix)
        precision, recall = hits / claimed if claimed else 0.0, hits / support if support else 0.0
        f1 = 2 * precision * recall / (precision + recall) if hits else 0.0
        report.append({"class": name, "precision": precision, "recall": recall, "f1": f1, "support": support})
    return report


def workers(result: dict) -> list[dict]:
    """The ranks that trained."""
    return [rank for rank in result["ranks"] if rank.get("role", WORKER) == WORKER and rank["steps"]]
