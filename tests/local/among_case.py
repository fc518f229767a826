"""What a rank of a Group does to test a wire among some of its ranks."""

import torch


def collectives(wire, ranks: list[int]) -> list | None:
    """Every collective among these ranks: (what this rank got, bytes sent and received); None on the others."""
    if wire.rank not in ranks:
        return None
    some = wire.among(ranks)
    n, mine = some.world_size, torch.full((12,), float(some.rank + 1))
    zeros = torch.zeros(12)
    found = [
        some.all_reduce(mine.clone()),
        some.all_reduce_later(mine.clone()).wait()[0],
        some.broadcast(mine.clone(), n - 1),
        torch.cat(some.all_gather(mine)),
        torch.cat([*some.gather(mine, n - 1), zeros[:0]]),
        some.scatter(zeros.clone(), [mine * (i + 1) for i in range(n)]),
    ]
    if n > 1:
        found.append(some.exchange(mine, (some.rank + 1) % n, zeros, (some.rank - 1) % n, "a round"))
    some.party.meet("a place")
    some.party.compare("a fact", {"ranks": str(ranks)})
    return [(some.rank, n), [tensor.tolist() for tensor in found], some.take_bytes()]
