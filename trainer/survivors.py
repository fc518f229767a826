"""Who is left: for strategies that go on when a worker is lost (`survives_lost_workers` in the registry).

While workers train, one that is lost is noticed by the servers, or where there are none by the workers that it averages
with and by rank 0, and nobody ends for it. Where all come together rank 0 says who is left; from then until training
goes on a rank that is lost ends the run again. Rank 0 itself is never done without: its process holds the store.
"""

import json

from trainer.layout import WORKER, seats
from trainer.registry import SYNCS
from trainer.spec import RunSpec
from trainer.wire import Wire

END = "the end of training"


def spare(wire: Wire, spec: RunSpec) -> None:
    """From now on the loss of a worker other than rank 0 does not end this rank."""
    wire.peers.expendable = {seat.rank for seat in seats(spec) if seat.role == WORKER and seat.rank != 0}


class GivenUp(RuntimeError):
    """This worker was taken for lost and takes no more part. str() is one line."""


def report(wire: Wire, rank: int, reason: str) -> None:
    """Say that a worker is gone on without."""
    wire.root.set(f"lost/{rank}", reason)


def reason(wire: Wire) -> str:
    """Why this worker is gone on without."""
    return wire.root.get(f"lost/{wire.ranks[wire.rank]}").decode()


def left(wire: Wire, spec: RunSpec, point: str, made: dict[tuple[int, ...], Wire]) -> Wire:
    """This worker has come to this point, each once. Waits until all that are left have; returns the wire among them.

    `made`: the wires that were made before, by their ranks; a new one is added. Raises WireError, and GivenUp in a
    worker that is gone on without.
    """
    wire.root.set(f"{point}/{wire.ranks[wire.rank]}", "")
    if wire.rank == 0:
        others = set(range(1, spec.workers))

        def known() -> bool:
            others.difference_update([r for r in others if _any(wire, f"{point}/{r}", f"lost/{r}")])
            for rank in () if SYNCS[spec.sync].servers else others:  # servers notice who is lost themselves
                if why := wire.peers.absent(rank, spec.deadline_seconds / 2):
                    report(wire, rank, why)
            return not others

        wire.until(known, point)
        lost = {r: wire.root.get(f"lost/{r}").decode() for r in range(spec.workers) if _any(wire, f"lost/{r}")}
        wire.root.set(f"lost at {point}", json.dumps(lost))
    lost = settled(wire, point)
    if (own := wire.ranks[wire.rank]) in lost:
        raise GivenUp(f"the others went on without this worker: {lost[own]}")
    ranks = tuple(rank for rank in wire.ranks if rank not in lost)
    if ranks not in made:
        made[ranks] = wire.among(ranks)
    return made[ranks]


def settled(wire: Wire, point: str = END) -> dict[int, str]:
    """Wait for rank 0's word on who was lost, and count on all others again. Raises WireError."""
    wire.until(lambda: _any(wire, f"lost at {point}"), point)
    lost = {int(rank): reason for rank, reason in json.loads(wire.root.get(f"lost at {point}")).items()}
    wire.peers.go_on_without(lost)
    return lost


def _any(wire: Wire, *keys: str) -> bool:
    return any(wire.root.check([key]) for key in keys)
