"""The ranks that take part in a wire: they meet, tell each other facts, and blame who failed.

All of it goes through torch.distributed's store, not through the collectives, so that it works when
those fail.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from datetime import timedelta

from trainer.wire.errors import MEANINGS, WHAT, Mismatch, PeerLost
from trainer.wire.gloo import PrefixStore, Store
from trainer.wire.peers import START_SECONDS, Peers


class Party:
    """The ranks of one wire, as this rank sees them.

    `store`: the names of this party alone. `root`: the store of the party of all ranks. `ranks`:
    this party's ranks as the party of all ranks numbers them.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        store: Store,
        peers: Peers,
        deadline_seconds: float = 30.0,
        root: Store | None = None,
        ranks: tuple[int, ...] | None = None,
    ):
        self.rank, self.world_size = rank, world_size
        self.store, self.peers, self.deadline_seconds = store, peers, deadline_seconds
        self.root = store if root is None else root
        self.ranks = tuple(range(world_size)) if ranks is None else ranks
        self._sequence = self._tellings = 0

    @property
    def global_rank(self) -> int:
        """This rank's number in the party of all ranks."""
        return self.ranks[self.rank]

    @property
    def lost(self) -> dict[int, str]:
        """The ranks that this one goes on without, and why each is lost."""
        return self.peers.lost

    def among(self, ranks: Sequence[int]) -> "Party":
        """The party of some of this one's ranks, numbered anew in this order.

        This rank is one of them.
        """
        store = PrefixStore(f"among {','.join(map(str, ranks))}", self.store)
        global_ranks = tuple(self.ranks[rank] for rank in ranks)
        rank, deadline = ranks.index(self.rank), self.deadline_seconds
        party = Party(rank, len(ranks), store, self.peers, deadline, self.root, global_ranks)
        party._sequence = self._sequence
        self.peers.alike = set(global_ranks)
        return party

    # -- meeting and telling -------------------------------------------------------------------------------------

    def meet(self, name: str) -> None:
        """Wait for all ranks at the point `name` (each name once), however slow, as long as their hearts beat.

        Used before collectives that follow work of unequal length, which the deadline would cut
        short.
        Raises PeerLost naming a rank that gave up or never came. Finding one that froze is the
        heartbeat's part.
        """
        with self.errors(f"meeting at {name}"):
            self.store.set(f"meet/{name}/{self.rank}", "")
            missing = [r for r, rank in enumerate(self.ranks) if rank not in self.lost]

            def all_there() -> bool:
                missing[:] = [r for r in missing if not self.store.check([f"meet/{name}/{r}"])]
                return not missing

            self.until(all_there, name)

    def until(self, holds: Callable[[], bool], name: str) -> None:
        """Wait until `holds` returns True, however long, as long as the ranks' hearts beat.

        Raises as `meet`.
        """
        while not holds():
            if culprit := self.peers.gone():
                raise PeerLost(f"rank {culprit[0]} gave up before {name}: {culprit[1]}", culprit[0])
            if (rank := self.peers.missing()) is not None:
                raise PeerLost(f"rank {rank} has not started within {START_SECONDS:.0f} s", rank)
            time.sleep(0.01)

    def tell_all(self, name: str, text: str) -> list[str]:
        """What every rank says about `name`, in rank order.

        Through the store: for what is small and seldom.

        Waits for all ranks as `meet` does, and raises as that does.
        """
        self._tellings += 1
        key = f"said/{self._tellings}"
        with self.errors(f"telling {name}"):
            self.store.set(f"{key}/{self.rank}", text)
            self.meet(f"telling {self._tellings}: {name}")
            if self._tellings > 1:  # all have come this far, so all have read what was said before
                self.store.delete_key(f"said/{self._tellings - 1}/{self.rank}")
            return [self.store.get(f"{key}/{r}").decode() for r in range(self.world_size)]

    def compare(self, name: str, facts: dict[str, str]) -> None:
        """Check that every rank holds the same facts.

        Raises Mismatch naming the first rank unlike rank 0.
        """
        first, *others = self.tell_all(name, "\n".join(f"{k}={v}" for k, v in facts.items()))
        for rank, other in enumerate(others, start=1):
            if other != first:
                pairs = zip(first.split("\n"), other.split("\n"), strict=False)
                differs = "; ".join(f"{theirs} (rank 0: {ours})" for ours, theirs in pairs if ours != theirs)
                raise Mismatch(f"rank {rank} differs from rank 0 in {name}: {differs}", rank)

    def publish(self, key: str, text: str) -> None:
        """Write `text` where every rank of the run can read it, of this party or not."""
        self.root.set(key, text)

    def published(self, *keys: str) -> bool:
        """Whether there is a text under each of these keys."""
        return self.root.check(list(keys))

    def read(self, key: str) -> str:
        """What was published. Waits for it, up to the store's own timeout."""
        return self.root.get(key).decode()

    def part(self) -> None:
        """After success, once all have met for the last time.

        Rank 0, whose process holds the store, goes last.
        """
        self.peers.stop()
        with self.errors("parting"):
            self.store.set(f"parted/{self.rank}", "")
            if self.rank == 0:
                there = [rank for rank in self.ranks if rank not in self.lost]
                self.store.wait([f"parted/{r}" for r in there], timedelta(seconds=self.deadline_seconds))

    # -- failing -------------------------------------------------------------------------------------------------

    @contextmanager
    def errors(self, doing: str):
        """Turn what torch and Gloo raise into a typed WireError that names a suspect.

        Others pass unchanged.
        """
        try:
            yield
        except RuntimeError as error:  # DistBackendError, DistNetworkError and DistStoreError are RuntimeErrors too
            text = " ".join(str(error).split())
            kind = next((kind for kind, pattern in MEANINGS if pattern.search(text)), None)
            if kind is None:
                raise
            suspect, evidence = self.peers.suspect()
            if odd := self.peers.disagreement():
                raise Mismatch(f"ranks disagree about a collective: {odd[1]}", odd[0]) from error
            blame = f"rank {suspect}: {evidence}" if suspect is not None else evidence
            message = f"{WHAT[kind].format(doing=doing, deadline=self.deadline_seconds)}; {blame}"
            raise kind(message, suspect) from error

    def note(self, what: str) -> None:
        """Say which collective this rank begins, so that the one behind is found when time runs out."""
        self._sequence += 1
        self.peers.note(self.root, self._sequence, what)
