"""Small computations on results that several rooms need."""

import math
from collections.abc import Iterable

from monitor.results.parts import ClassScore


def percentile(values: Iterable[float], percent: float) -> float | None:
    """The nearest-rank percentile: a value that was measured, never one in between. None for no values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)] if ordered else None


def class_scores(matrix: list[list[int]], classes: list[str]) -> list[ClassScore]:
    """Precision, recall, F1 and support of each class from a confusion matrix [true][predicted]. 0 / 0 counts as 0."""
    scores = []
    for k, name in enumerate(classes):
        hits, support, claims = matrix[k][k], sum(matrix[k]), sum(row[k] for row in matrix)
        precision = hits / claims if claims else 0.0
        recall = hits / support if support else 0.0
        f1 = 2 * precision * recall / (precision + recall) if hits else 0.0
        scores.append(ClassScore(name=name, precision=precision, recall=recall, f1=f1, support=support))
    return scores
