"""Who is left: for strategies that go on when a worker is lost (`survives_lost_workers` in the registry).

While workers train, one that is lost is noticed by the servers, or where there are none by the
workers that it averages with and by rank 0, and nobody ends for it. Where all come together rank 0
says who is left; from then until training goes on a rank that is lost ends the run again. Rank 0
itself is never done without: its process holds the store.
"""

import json

from trainer.layout import WORKER, seats
from trainer.registry import SYNCS
from trainer.spec import RunSpec
from trainer.wire.collectives import Wire
from trainer.wire.party import Party

END = "the end of training"


def spare(party: Party, spec: RunSpec) -> None:
    """From now on the loss of a worker other than rank 0 does not end this rank."""
    party.peers.expendable = {seat.rank for seat in seats(spec) if seat.role == WORKER and seat.rank != 0}


class GivenUp(RuntimeError):
    """This worker was taken for lost and takes no more part. str() is one line."""


def report(party: Party, rank: int, reason: str) -> None:
    """Say that a worker is gone on without."""
    party.publish(f"lost/{rank}", reason)


def reason(party: Party) -> str:
    """Why this worker is gone on without."""
    return party.read(f"lost/{party.global_rank}")


def regroup(wire: Wire, spec: RunSpec, point: str, wires: dict[tuple[int, ...], Wire]) -> Wire:
    """This worker has come to this point, each once.

    Waits until all that are left have; returns the wire among them.

    `wires`: those that exist already, by their ranks; a new one is added. Raises WireError, and
    GivenUp in a worker that is gone on without.
    """
    party = wire.party
    party.publish(f"{point}/{party.global_rank}", "")
    if wire.rank == 0:
        _settle(party, spec, point)
    lost = read_lost(party, point)
    if party.global_rank in lost:
        raise GivenUp(f"the others went on without this worker: {lost[party.global_rank]}")
    ranks = tuple(rank for rank in party.ranks if rank not in lost)
    if ranks not in wires:
        wires[ranks] = wire.among(ranks)
    return wires[ranks]


def _settle(party: Party, spec: RunSpec, point: str) -> None:
    """Rank 0: wait until each other worker has come or is lost, then say who is lost."""
    others = set(range(1, spec.workers))

    def all_known() -> bool:
        others.difference_update([r for r in others if _any(party, f"{point}/{r}", f"lost/{r}")])
        for rank in () if SYNCS[spec.sync].servers else others:  # servers notice who is lost themselves
            if why := party.peers.absent(rank, spec.deadline_seconds / 2):
                report(party, rank, why)
        return not others

    party.until(all_known, point)
    lost = {r: party.read(f"lost/{r}") for r in range(spec.workers) if party.published(f"lost/{r}")}
    party.publish(f"lost at {point}", json.dumps(lost))


def read_lost(party: Party, point: str = END) -> dict[int, str]:
    """Wait for rank 0's word on who was lost, and count on all others again. Raises WireError."""
    party.until(lambda: party.published(f"lost at {point}"), point)
    lost = {int(rank): reason for rank, reason in json.loads(party.read(f"lost at {point}")).items()}
    party.peers.go_on_without(lost)
    return lost


def _any(party: Party, *keys: str) -> bool:
    return any(party.published(key) for key in keys)
