"""Who is left: for strategies that go on when a worker is lost (`survives_lost_workers` in the registry).

While workers train, one that is lost is noticed by the servers, and nobody ends for it. When training is over rank 0
says who is left, and from then on a rank that is lost ends the run again. Rank 0 itself is never done without: its
process holds the store.
"""

import json

from trainer.layout import WORKER, seats
from trainer.spec import RunSpec
from trainer.wire import Wire


def spare(wire: Wire, spec: RunSpec) -> None:
    """From now on the loss of a worker other than rank 0 does not end this rank."""
    wire.peers.expendable = {seat.rank for seat in seats(spec) if seat.role == WORKER and seat.rank != 0}


def report(wire: Wire, rank: int, reason: str) -> None:
    """A server says that it went on without a worker."""
    wire.root.set(f"lost/{rank}", reason)


def reason(wire: Wire) -> str:
    """Why the servers went on without this worker."""
    return wire.root.get(f"lost/{wire.ranks[wire.rank]}").decode()


def trained(wire: Wire, spec: RunSpec) -> dict[int, str]:
    """This worker is done. Waits until all that are left are; returns who was lost, and why. Raises WireError."""
    wire.root.set(f"trained/{wire.ranks[wire.rank]}", "")
    if wire.rank == 0:
        others = set(range(1, spec.workers))

        def known() -> bool:
            others.difference_update([r for r in others if _any(wire, f"trained/{r}", f"lost/{r}")])
            return not others

        wire.until(known, "the end of training")
        lost = {r: wire.root.get(f"lost/{r}").decode() for r in range(spec.workers) if _any(wire, f"lost/{r}")}
        wire.root.set("lost", json.dumps(lost))
    return settled(wire)


def settled(wire: Wire) -> dict[int, str]:
    """Wait for rank 0's word on who was lost, and count on all others again. Raises WireError."""
    wire.until(lambda: _any(wire, "lost"), "the end of training")
    lost = {int(rank): reason for rank, reason in json.loads(wire.root.get("lost")).items()}
    wire.peers.go_on_without(lost)
    return lost


def _any(wire: Wire, *keys: str) -> bool:
    return any(wire.root.check([key]) for key in keys)
