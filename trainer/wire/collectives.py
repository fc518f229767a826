"""Every collective goes through here: bytes and seconds are counted, deadlines set, peers named in errors.

Bytes are the payload that Gloo's algorithm for the collective sends and receives on this rank, so
that they can be compared with a formula (exactly) and with the network interface (plus a few per
cent of headers).
"""

import time
from collections.abc import Sequence
from contextlib import contextmanager
from datetime import timedelta
from fractions import Fraction
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from trainer.wire.gloo import PrefixStore, gloo_group
from trainer.wire.party import Party
from trainer.wire.traffic import Amounts, Traffic, total

if TYPE_CHECKING:
    from trainer.wire.mpi import Mpi


class Wire:
    """The collectives of one rank. `party`: the ranks that take part.

    One rank alone has an AloneWire instead.
    """

    def __init__(self, party: Party):
        self.party = party
        self.rank, self.world_size = party.rank, party.world_size
        self.group: dist.ProcessGroup | None = None  # None: torch's default group, of all ranks
        self.waited_seconds = 0.0  # time in which this rank did nothing but wait for a collective
        self._traffic = Traffic()
        self._mpi: Mpi | None = None

    def connect(self) -> None:
        """Form the Gloo process group, once all ranks are there. Raises WireError."""
        self.party.meet("start")
        with self.party.errors("forming the process group"):
            dist.init_process_group(
                "gloo",
                store=PrefixStore("gloo", self.party.store),
                rank=self.rank,
                world_size=self.world_size,
                timeout=timedelta(seconds=self.party.deadline_seconds),
            )

    def among(self, ranks: Sequence[int]) -> "Wire":
        """A wire for some of this one's ranks, numbered anew in this order.

        Each of them calls this, no other does.
        """
        if tuple(ranks) == self.party.ranks:
            return self
        wire = Wire(self.party.among(ranks))
        with self.party.errors("forming a process group of some ranks"):
            store = PrefixStore("gloo", wire.party.store)
            wire.group = gloo_group(store, wire.rank, wire.world_size, self.party.deadline_seconds)
        return wire

    def connect_mpi(self) -> None:
        """Join MPI_COMM_WORLD as well, once all ranks are there.

        Raises WireError and EnvironmentFault.
        """
        from trainer.wire.mpi import Mpi  # loads MPI

        self.party.meet("MPI")
        with self.party.errors("joining MPI"):
            self._mpi = Mpi(self.rank, self.world_size)

    def close(self) -> None:
        """After success: part in order."""
        self.party.meet("the end")
        if self._mpi:
            self._mpi.close()
        self.party.part()
        if not self.party.lost:  # torch would wait for them
            dist.destroy_process_group()

    # -- collectives ---------------------------------------------------------------------------------------------

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum over the ranks, in place. Blocks; the time counts as waited."""
        with self._blocking(f"all_reduce of {_shape(tensor)}"):
            dist.all_reduce(tensor, group=self.group)
        self.count_ring(tensor)
        return tensor

    def all_reduce_mpi(self, tensor: torch.Tensor) -> torch.Tensor:
        """`all_reduce` through MPI, after connect_mpi.

        The bytes are those of the ring that mpi.py asks for.
        """
        assert self._mpi is not None, "connect_mpi comes first"
        with self._blocking(f"MPI all_reduce of {_shape(tensor)}"):
            self._mpi.all_reduce(tensor, self.party.deadline_seconds)
        self.count_ring(tensor)
        return tensor

    def all_reduce_later(self, tensor: torch.Tensor) -> torch.futures.Future:
        """Begin to sum over the ranks, in place; the future holds [tensor].

        The caller counts what it waits.
        """
        self.party.note(f"all_reduce of {_shape(tensor)}")
        self.count_ring(tensor)
        work = dist.all_reduce(tensor, group=self.group, async_op=True)
        assert work is not None  # it is None only for a rank outside of the group
        return work.get_future()

    def broadcast(self, tensor: torch.Tensor, source: int = 0) -> torch.Tensor:
        """Copy from rank `source` to all, in place. Blocks; the time counts as waited."""
        with self._blocking(f"broadcast of {_shape(tensor)}"):
            dist.broadcast(tensor, group=self.group, group_src=source)
        # Gloo sends along a binomial tree: position p has a child p + 2^i for each i below p's lowest set bit.
        n, position = self.world_size, (self.rank - source) % self.world_size
        bits = range((n - 1).bit_length())
        children = sum(position % (2 << i) == 0 and position + (1 << i) < n for i in bits)
        self.count("broadcast", children * tensor.nbytes, tensor.nbytes if self.rank != source else 0)
        return tensor

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Every rank's tensor, in the order of ranks; all of one shape and type.

        Blocks; the time counts as waited.
        """
        gathered = [torch.empty_like(tensor) for _ in range(self.world_size)]
        with self._blocking(f"all_gather of {_shape(tensor)}"):
            dist.all_gather(gathered, tensor, self.group)
        # Gloo passes all tensors but one along a ring.
        others = (self.world_size - 1) * tensor.nbytes
        self.count("all_gather", others, others)
        return gathered

    def gather(self, tensor: torch.Tensor, target: int = 0) -> list[torch.Tensor]:
        """Every rank's tensor on rank `target`, in the order of ranks; an empty list on the others.

        Blocks.
        """
        here = self.rank == target
        gathered = [torch.empty_like(tensor) for _ in range(self.world_size)] if here else []
        with self._blocking(f"gather of {_shape(tensor)} on rank {target}"):
            dist.gather(tensor, gathered or None, group=self.group, group_dst=target)
        # Gloo has each rank send to the target directly.
        if here:
            self.count("gather", 0, (self.world_size - 1) * tensor.nbytes)
        else:
            self.count("gather", tensor.nbytes, 0)
        return gathered

    def scatter(self, tensor: torch.Tensor, parts: list[torch.Tensor], source: int = 0) -> torch.Tensor:
        """Fill `tensor` with this rank's of `parts`, which rank `source` gives and nobody else.

        Blocks.
        """
        here = self.rank == source
        with self._blocking(f"scatter of {_shape(tensor)} from rank {source}"):
            dist.scatter(tensor, parts if here else None, group=self.group, group_src=source)
        # Gloo has the source send to each rank directly.
        if here:
            self.count("scatter", (self.world_size - 1) * tensor.nbytes, 0)
        else:
            self.count("scatter", 0, tensor.nbytes)
        return tensor

    def exchange(self, outgoing: torch.Tensor, to: int, incoming: torch.Tensor, source: int, what: str) -> torch.Tensor:
        """Send `outgoing` to rank `to` while `incoming` is filled by rank `source`.

        Blocks until both are done.

        `what` names the operation, alike on all ranks that take part. The time counts as waited.
        """
        with self._blocking(what):
            sending = dist.isend(outgoing, group=self.group, group_dst=to)
            receiving = dist.irecv(incoming, group=self.group, group_src=source)
            assert sending is not None and receiving is not None  # None only for a rank outside of the group
            sending.wait()
            receiving.wait()
        self.count("exchange", outgoing.nbytes, incoming.nbytes)
        return incoming

    # -- counters ------------------------------------------------------------------------------------------------

    def count(self, collective: str, sent: int | Fraction, received: int | Fraction) -> None:
        """Add payload bytes of a collective."""
        self._traffic.add(collective, sent, received)

    def count_ring(self, tensor: torch.Tensor) -> None:
        """Ring all-reduce: n-1 parts of size 1/n go round twice (Patarasuk & Yuan 2009), 2(n-1)/n of the bytes."""
        part = Fraction(2 * (self.world_size - 1) * tensor.nbytes, self.world_size)
        self.count("all_reduce", part, part)

    def take_traffic(self) -> Amounts:
        """Payload bytes by collective and direction since the last call of this or of `take_bytes`."""
        return self._traffic.take()

    def take_bytes(self) -> tuple[int, int]:
        """The same in two numbers: sent and received."""
        return total(self.take_traffic())

    @contextmanager
    def uncounted(self):
        """What is sent and waited for in here belongs to no step: the counters are left as they were."""
        before = self._traffic.copy(), self.waited_seconds
        try:
            yield
        finally:
            self._traffic, self.waited_seconds = before

    @contextmanager
    def _blocking(self, what: str):
        began = time.perf_counter()
        with self.party.errors(what):
            self.party.note(what)
            yield
        self.waited_seconds += time.perf_counter() - began


def _shape(tensor: torch.Tensor) -> str:
    return f"{'x'.join(map(str, tensor.shape)) or 1} {str(tensor.dtype).removeprefix('torch.')}"
