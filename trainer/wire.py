"""Every collective goes through here: bytes and seconds are counted, deadlines set, peers named in errors.

Bytes are the payload that Gloo's algorithm for the collective sends and receives on this rank, so that they can be
compared with a formula (exactly) and with the network interface (plus a few per cent of headers).
"""

import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from datetime import timedelta
from fractions import Fraction

import torch
import torch.distributed as dist

from trainer.peers import START_SECONDS, Peers
from trainer.traffic import Taken, Traffic, total
from trainer.wire_errors import MEANINGS, WHAT, Mismatch, PeerLost


class Wire:
    """The collectives of one rank. Without a store (one rank, nothing distributed) every collective does nothing."""

    def __init__(self, rank: int = 0, world_size: int = 1, store=None, peers: Peers | None = None, deadline=30.0):
        self.rank, self.world_size = rank, world_size
        self.store, self.peers, self.deadline = store, peers, deadline
        self.root = store  # of the wire of all ranks; `store` has this wire's own names
        self.ranks = tuple(range(world_size))  # this wire's ranks as the wire of all ranks numbers them
        self.group = None  # torch's name for the wire of all ranks
        self.waited_seconds = 0.0  # time in which this rank did nothing but wait for a collective
        self._traffic = Traffic()
        self._sequence = self._tellings = 0
        self._mpi = None

    def connect(self) -> None:
        """Form the Gloo process group, once all ranks are there. Raises WireError."""
        self.meet("start")
        with self.errors("forming the process group"):
            dist.init_process_group(
                "gloo",
                store=dist.PrefixStore("gloo", self.store),
                rank=self.rank,
                world_size=self.world_size,
                timeout=timedelta(seconds=self.deadline),
            )

    def among(self, ranks: Sequence[int]) -> "Wire":
        """A wire for some of this one's ranks, numbered anew in this order. Each of them calls this, no other does."""
        if self.store is None or tuple(ranks) == self.ranks:
            return self
        name = f"among {','.join(map(str, ranks))}"
        wire = Wire(ranks.index(self.rank), len(ranks), dist.PrefixStore(name, self.store), self.peers, self.deadline)
        wire.root, wire.ranks, wire._sequence = self.root, tuple(self.ranks[r] for r in ranks), self._sequence
        self.peers.alike = set(wire.ranks)
        with self.errors("forming a process group of some ranks"):
            # dist.new_group names a group by how many this rank has made before, which is not alike on all ranks.
            store, patience = dist.PrefixStore("gloo", wire.store), timedelta(seconds=self.deadline)
            wire.group = dist.ProcessGroupGloo(store, wire.rank, wire.world_size, patience)
        return wire

    def connect_mpi(self) -> None:
        """Join MPI_COMM_WORLD as well, once all ranks are there. Raises WireError and EnvironmentFault."""
        from trainer.mpi import Mpi  # loads MPI

        self.meet("MPI")
        with self.errors("joining MPI"):
            self._mpi = Mpi(self.rank, self.world_size)

    # -- collectives ---------------------------------------------------------------------------------------------

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum over the ranks, in place. Blocks; the time counts as waited."""
        if self.store is None:
            return tensor
        with self._blocking(f"all_reduce of {_shape(tensor)}"):
            dist.all_reduce(tensor, group=self.group)
        self._count_ring(tensor)
        return tensor

    def all_reduce_mpi(self, tensor: torch.Tensor) -> torch.Tensor:
        """`all_reduce` through MPI, after connect_mpi. The bytes are those of the ring that trainer/mpi.py asks for."""
        with self._blocking(f"MPI all_reduce of {_shape(tensor)}"):
            self._mpi.all_reduce(tensor, self.deadline)
        self._count_ring(tensor)
        return tensor

    def all_reduce_later(self, tensor: torch.Tensor) -> torch.futures.Future:
        """Begin to sum over the ranks, in place; the future holds [tensor]. The caller counts what it waits."""
        self.note(f"all_reduce of {_shape(tensor)}")
        self._count_ring(tensor)
        return dist.all_reduce(tensor, group=self.group, async_op=True).get_future()

    def broadcast(self, tensor: torch.Tensor, source: int = 0) -> torch.Tensor:
        """Copy from rank `source` to all, in place. Blocks; the time counts as waited."""
        if self.store is None:
            return tensor
        with self._blocking(f"broadcast of {_shape(tensor)}"):
            dist.broadcast(tensor, group=self.group, group_src=source)
        # Gloo sends along a binomial tree: position p has a child p + 2^i for each i below p's lowest set bit.
        n, position = self.world_size, (self.rank - source) % self.world_size
        bits = range((n - 1).bit_length())
        children = sum(position % (2 << i) == 0 and position + (1 << i) < n for i in bits)
        self.count("broadcast", children * tensor.nbytes, tensor.nbytes if self.rank != source else 0)
        return tensor

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Every rank's tensor, in the order of ranks; all of one shape and type. Blocks; the time counts as waited."""
        if self.store is None:
            return [tensor]
        gathered = [torch.empty_like(tensor) for _ in range(self.world_size)]
        with self._blocking(f"all_gather of {_shape(tensor)}"):
            dist.all_gather(gathered, tensor, self.group)
        # Gloo passes all tensors but one along a ring.
        others = (self.world_size - 1) * tensor.nbytes
        self.count("all_gather", others, others)
        return gathered

    def gather(self, tensor: torch.Tensor, target: int = 0) -> list[torch.Tensor]:
        """Every rank's tensor on rank `target`, in the order of ranks; an empty list on the others. Blocks."""
        if self.store is None:
            return [tensor]
        here = self.rank == target
        gathered = [torch.empty_like(tensor) for _ in range(self.world_size)] if here else []
        with self._blocking(f"gather of {_shape(tensor)} on rank {target}"):
            dist.gather(tensor, gathered or None, group=self.group, group_dst=target)
        # Gloo has each rank send to the target directly.
        self.count("gather", *((0, (self.world_size - 1) * tensor.nbytes) if here else (tensor.nbytes, 0)))
        return gathered

    def scatter(self, tensor: torch.Tensor, parts: list[torch.Tensor], source: int = 0) -> torch.Tensor:
        """Fill `tensor` with this rank's of `parts`, which rank `source` gives and nobody else. Blocks."""
        if self.store is None:
            return tensor.copy_(parts[0])
        here = self.rank == source
        with self._blocking(f"scatter of {_shape(tensor)} from rank {source}"):
            dist.scatter(tensor, parts if here else None, group=self.group, group_src=source)
        # Gloo has the source send to each rank directly.
        self.count("scatter", *(((self.world_size - 1) * tensor.nbytes, 0) if here else (0, tensor.nbytes)))
        return tensor

    def exchange(self, outgoing: torch.Tensor, to: int, incoming: torch.Tensor, source: int, what: str) -> torch.Tensor:
        """Send `outgoing` to rank `to` while `incoming` is filled by rank `source`. Blocks until both are done.

        `what` names the operation, alike on all ranks that take part. The time counts as waited.
        """
        with self._blocking(what):
            works = (
                dist.isend(outgoing, group=self.group, group_dst=to),
                dist.irecv(incoming, group=self.group, group_src=source),
            )
            for work in works:
                work.wait()
        self.count("exchange", outgoing.nbytes, incoming.nbytes)
        return incoming

    # -- counters ------------------------------------------------------------------------------------------------

    def count(self, collective: str, sent: int | Fraction, received: int | Fraction) -> None:
        """Add payload bytes of a collective."""
        self._traffic.add(collective, sent, received)

    def _count_ring(self, tensor: torch.Tensor) -> None:
        """Ring all-reduce: n-1 parts of size 1/n go round twice (Patarasuk & Yuan 2009), 2(n-1)/n of the bytes."""
        part = Fraction(2 * (self.world_size - 1) * tensor.nbytes, self.world_size)
        self.count("all_reduce", part, part)

    def take_traffic(self) -> Taken:
        """Payload bytes by collective and direction since the last call of this or of `take_bytes`."""
        return self._traffic.take()

    def take_bytes(self) -> tuple[int, int]:
        """The same in two numbers: sent and received."""
        return total(self.take_traffic())

    @contextmanager
    def uncounted(self):
        """What is sent and waited for in here belongs to no step: the counters are left as they were."""
        before = self._traffic.copy(), self.waited_seconds
        yield
        self._traffic, self.waited_seconds = before

    # -- meeting and failing -------------------------------------------------------------------------------------

    def meet(self, name: str) -> None:
        """Wait for all ranks at the point `name` (each name once), however slow, as long as their hearts beat.

        Used before collectives that follow work of unequal length, which the deadline would cut short.
        Raises PeerLost naming a rank that gave up or never came. Finding one that froze is the heartbeat's part.
        """
        if self.store is None:
            return
        with self.errors(f"meeting at {name}"):
            self.store.set(f"meet/{name}/{self.rank}", "")
            missing = [r for r, rank in enumerate(self.ranks) if rank not in self.peers.lost]

            def all_there() -> bool:
                missing[:] = [r for r in missing if not self.store.check([f"meet/{name}/{r}"])]
                return not missing

            self.until(all_there, name)

    def until(self, holds: Callable[[], bool], name: str) -> None:
        """Wait until `holds` returns True, however long, as long as the ranks' hearts beat. Raises as `meet`."""
        while not holds():
            if gone := self.peers.gone():
                raise PeerLost(f"rank {gone[0]} gave up before {name}: {gone[1]}", gone[0])
            if (rank := self.peers.missing()) is not None:
                raise PeerLost(f"rank {rank} has not started within {START_SECONDS:.0f} s", rank)
            time.sleep(0.01)

    def tell_all(self, name: str, text: str) -> list[str]:
        """What every rank says about `name`, in rank order. Through the store: for what is small and seldom.

        Waits for all ranks as `meet` does, and raises as that does.
        """
        if self.store is None:
            return [text]
        self._tellings += 1
        key = f"said/{self._tellings}"
        with self.errors(f"telling {name}"):
            self.store.set(f"{key}/{self.rank}", text)
            self.meet(f"telling {self._tellings}: {name}")
            if self._tellings > 1:  # all have come this far, so all have read what was said before
                self.store.delete_key(f"said/{self._tellings - 1}/{self.rank}")
            return [self.store.get(f"{key}/{r}").decode() for r in range(self.world_size)]

    def compare(self, name: str, facts: dict[str, str]) -> None:
        """Check that every rank holds the same facts. Raises Mismatch naming the first rank unlike rank 0."""
        if self.store is None:
            return
        said = self.tell_all(name, "\n".join(f"{k}={v}" for k, v in facts.items()))
        for rank, other in enumerate(said):
            if other != said[0]:
                pairs = zip(said[0].split("\n"), other.split("\n"), strict=False)
                differs = "; ".join(f"{theirs} (rank 0: {first})" for first, theirs in pairs if first != theirs)
                raise Mismatch(f"rank {rank} differs from rank 0 in {name}: {differs}", rank)

    def close(self) -> None:
        """After success: part in order. Rank 0, whose process holds the store, goes last."""
        if self.store is None:
            return
        self.meet("the end")
        if self._mpi:
            self._mpi.close()
        self.peers.stop()
        with self.errors("parting"):
            self.store.set(f"parted/{self.rank}", "")
            if self.rank == 0:
                left = [r for r in self.ranks if r not in self.peers.lost]
                self.store.wait([f"parted/{r}" for r in left], timedelta(seconds=self.deadline))
        if not self.peers.lost:  # torch would wait for them
            dist.destroy_process_group()

    @contextmanager
    def errors(self, doing: str):
        """Turn what torch and Gloo raise into a typed WireError that names a suspect. Others pass unchanged."""
        try:
            yield
        except RuntimeError as error:  # DistBackendError, DistNetworkError and DistStoreError are RuntimeErrors too
            text = " ".join(str(error).split())
            kind = next((kind for kind, pattern in MEANINGS if pattern.search(text)), None)
            if kind is None or self.store is None:
                raise
            suspect, evidence = self.peers.suspect()
            if odd := self.peers.disagreement():
                raise Mismatch(f"ranks disagree about a collective: {odd[1]}", odd[0]) from error
            who = f"rank {suspect}: {evidence}" if suspect is not None else evidence
            message = f"{WHAT[kind].format(doing=doing, deadline=self.deadline)}; {who}"
            raise kind(message, suspect) from error

    def note(self, what: str) -> None:
        """Say which collective this rank begins, so that the one behind is found when time runs out."""
        self._sequence += 1
        self.peers.note(self.root, self._sequence, what)

    @contextmanager
    def _blocking(self, what: str):
        began = time.perf_counter()
        with self.errors(what):
            self.note(what)
            yield
        self.waited_seconds += time.perf_counter() - began


def _shape(tensor: torch.Tensor) -> str:
    return f"{'x'.join(map(str, tensor.shape)) or 1} {str(tensor.dtype).removeprefix('torch.')}"
