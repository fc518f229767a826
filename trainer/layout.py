"""Who sits where: the ranks of a run, the node each is on, and what it does there.

Derived from the spec by both sides.

Workers come first and are numbered node by node, so that rank 0 is always a worker on node 0.
Parameter servers follow, then the evaluator. A server that shares nodes (COLOCATED=1) sits beside
the workers, one server a node in turn; otherwise servers have the last nodes to themselves. The
evaluator sits beside the last server.
"""

from dataclasses import dataclass

from trainer.registry import SYNCS
from trainer.spec import RunSpec

WORKER, SERVER, EVALUATOR = "worker", "server", "evaluator"


@dataclass(frozen=True)
class Seat:
    """One rank: a process on a node."""

    rank: int
    node: int
    local_rank: int  # among the ranks of this node
    role: str = WORKER


def seats(spec: RunSpec) -> tuple[Seat, ...]:
    """Every rank of the run, in rank order."""
    worker_nodes = spec.nodes - spec.servers_alone
    where = [(node, WORKER) for node in range(worker_nodes) for _ in range(spec.nproc)]
    if SYNCS[spec.sync].servers:
        first = worker_nodes if spec.servers_alone else 0
        homes = [first + shard % (spec.nodes - first) for shard in range(spec.servers)]
        where += [(node, SERVER) for node in homes]
        where += [(homes[-1], EVALUATOR)] * spec.evaluator
    ranks_on = dict.fromkeys(range(spec.nodes), 0)
    all_seats = []
    for rank, (node, role) in enumerate(where):
        all_seats.append(Seat(rank, node, ranks_on[node], role))
        ranks_on[node] += 1
    return tuple(all_seats)


def on_node(all_seats: tuple[Seat, ...], node: int) -> int:
    """How many ranks a node holds."""
    return sum(seat.node == node for seat in all_seats)


def roles(spec: RunSpec) -> dict[str, list[int]]:
    """The ranks of each role."""
    return {role: [seat.rank for seat in seats(spec) if seat.role == role] for role in (WORKER, SERVER, EVALUATOR)}
