"""The evaluator: the rank that scores the servers' weights while the workers train (report R4 has one)."""

from collections.abc import Callable

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from trainer import events
from trainer.data.batches import Batches
from trainer.data.prepared import Prepared
from trainer.flat import unflatten
from trainer.layout import SERVER, roles
from trainer.models.build import autocast
from trainer.registry import SYNCS
from trainer.run.evaluate import evaluate
from trainer.run.start import begin, length, ready
from trainer.spec import RunSpec
from trainer.sync.parts import empty, weights
from trainer.wire import survivors
from trainer.wire.alone import AloneWire
from trainer.wire.collectives import Wire
from trainer.wire.link import FOREVER, NOTHING, PULL, Link, head


def watch(spec: RunSpec, data: Prepared, wire: Wire, tell: Callable[[events.Event], None]) -> None:
    """The evaluator: score the servers' weights again and again, each time there are new ones.

    Raises WireError.

    The servers have no statistics of batch norm; they are taken from the first global batch, in one
    forward pass.
    """
    model, ranks = begin(spec, data, wire), roles(spec)[SERVER]
    images, _ = Batches(data, spec.batch, spec.seed)(1)
    wire.party.peers.alike = {wire.rank}
    links = {Link(wire.party, rank): part for rank, part in zip(ranks, weights(model, spec.servers), strict=True)}
    tell(ready(wire.rank, data, model, *length(spec, data)))
    versions = dict.fromkeys(links, -1)
    while versions:
        with wire.party.errors("pulling weights from the servers"):
            for link, version in versions.items():
                link.send(head(PULL, version)).wait()
            answers = {link: _pull(link, links[link]) for link in versions}
        versions = {link: updates for link, (updates, _) in answers.items() if updates != NOTHING}
        if len(versions) == len(links):
            updates, step = next(iter(answers.values()))
            if step and SYNCS[spec.sync].survives_lost_workers:
                survivors.spare(wire.party, spec)
            estimate_statistics(model, images)
            score = evaluate(model, data, AloneWire(), autocast(spec))
            figures = {"samples": score.samples, "loss": score.loss, "accuracy": score.accuracy}
            tell(events.Monitored(rank=wire.rank, step=step, updates=updates, **figures))
    sent, received = map(sum, zip(*(link.take_bytes() for link in links), strict=True))
    tell(events.Watched(rank=wire.rank, sent_bytes=sent, received_bytes=received))
    if SYNCS[spec.sync].survives_lost_workers:
        survivors.read_lost(wire.party)


def _pull(link: Link, part: dict[str, torch.Tensor]) -> tuple[int, int]:
    answer = head()
    link.receive(answer, patience=FOREVER)
    if answer[0] != NOTHING:
        flat = empty(part)
        link.receive(flat)
        unflatten(flat, part.values())
    updates, step = answer.tolist()
    return updates, step


def estimate_statistics(model: torch.nn.Module, images: torch.Tensor) -> None:
    """Set the running statistics of batch norm to those of these images."""
    layers = [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]
    if not layers:
        return
    model.eval()
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # the mean over the forward passes since the reset
        layer.train()
    with torch.no_grad():
        model(images)
