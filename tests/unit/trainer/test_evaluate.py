"""Scores by hand."""

import math
from contextlib import nullcontext

import numpy as np
import pytest
from torch import nn

from trainer.data.prepared import Prepared, Split
from trainer.run.evaluate import evaluate
from trainer.wire.alone import AloneWire


class Reads(nn.Module):
    """Logits: 2.0 for the class written in the first pixel (after normalisation with mean 0, std 1/255)."""

    def forward(self, images):
        return 2.0 * nn.functional.one_hot(images[:, 0, 0, 0].round().long(), 3).float()


def data(says, labels) -> Prepared:
    images = np.zeros((len(says), 3, 4, 4), dtype=np.uint8)
    images[:, 0, 0, 0] = says
    split = Split(images, np.array(labels))
    return Prepared("any", (3, 4, 4), ("a", "b", "c"), (0.0,) * 3, (1 / 255,) * 3, False, split, split)


def test_loss_accuracy_and_confusion_by_hand():
    scored = []
    some = data(says=[0, 0, 1, 2, 2], labels=[0, 1, 1, 2, 0])
    score = evaluate(Reads(), some, AloneWire(), nullcontext(), scored=scored.append)
    assert sum(scored) == 5
    assert score.confusion.tolist() == [[1, 0, 1], [1, 1, 0], [0, 0, 1]]
    assert (score.samples, score.accuracy) == (5, 3 / 5)
    rest = math.log(math.exp(2) + 2)  # of the softmax
    assert score.loss == pytest.approx((3 * (rest - 2) + 2 * rest) / 5)
