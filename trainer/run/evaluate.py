"""The test set, each sample once: sharded over the ranks, sums brought together."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy

from trainer.data.batches import evaluation_batches
from trainer.data.prepared import Prepared
from trainer.wire.collectives import Wire


@dataclass(frozen=True)
class Score:
    loss: float  # mean cross-entropy over the samples
    confusion: torch.Tensor  # int64 (classes, classes): [true class][predicted class]

    @property
    def samples(self) -> int:
        return int(self.confusion.sum())

    @property
    def accuracy(self) -> float:
        return int(self.confusion.trace()) / self.samples


def evaluate(
    model, data: Prepared, wire: Wire, autocast, when: str = "evaluation", scored: Callable[[int], None] | None = None
) -> Score:
    """Score the model on the whole test set; every rank gets the result. Raises WireError.

    `autocast` is the context of the forward passes; `when` names the ranks' meeting, each name
    once. `scored` is told the samples of each batch as this rank has scored it. Sums travel as
    float64, in which counts are exact.
    """
    classes = len(data.classes)
    loss, confusion = 0.0, torch.zeros(classes * classes, dtype=torch.int64)
    model.eval()
    with torch.inference_mode():
        for images, labels in evaluation_batches(data, wire.rank, wire.world_size):
            with autocast:
                logits = model(images)
            loss += cross_entropy(logits.float(), labels, reduction="sum").item()
            confusion += torch.bincount(labels * classes + logits.argmax(1), minlength=classes * classes)
            if scored:
                scored(len(labels))
    wire.party.meet(when)
    sums = wire.all_reduce(torch.cat([torch.tensor([loss], dtype=torch.float64), confusion.double()]))
    confusion = sums[1:].round().long().view(classes, classes)
    return Score(sums[0].item() / int(confusion.sum()), confusion)
