"""A parameter server: the rank that holds a part of the weights and updates it with what the workers push.

A request is two int64: what is asked, and how many updates the weights have had that the asker
holds. An answer is two int64 as well, then the weights: how many updates these have had, and the
push's staleness or the slowest worker's step. Bytes of a server of the part P of S, over a run of T
steps: n(T+1) parts and as many heads of 16 bytes sent, nT parts (smaller with COMPRESS) and n(T+2)
heads received; what the evaluator and checkpoints ask for comes on top.
"""

import threading
from collections.abc import Callable

import torch

from trainer import events
from trainer.compress.base import compressor
from trainer.data.prepared import Prepared
from trainer.flat import flatten, split
from trainer.layout import EVALUATOR, SERVER, WORKER, roles
from trainer.registry import SYNCS
from trainer.run.start import begin, length, ready
from trainer.servers.shard import Shard
from trainer.spec import RunSpec
from trainer.sync.parts import weights
from trainer.wire import survivors
from trainer.wire.collectives import Wire
from trainer.wire.interface import Window
from trainer.wire.link import DONE, FOREVER, LAST, LOAD, NOTHING, PULL, PUSH, STATE, Link, head, last_weights_key

WATCH_SECONDS = 0.2


class Server:
    """One parameter server: a thread for each rank that asks, and this one, which watches over them."""

    def __init__(self, spec: RunSpec, data: Prepared, wire: Wire, tell: Callable[[events.Event], None]):
        self.spec, self.rank, self.party, self.tell = spec, wire.rank, wire.party, tell
        self.survives = SYNCS[spec.sync].survives_lost_workers
        model, ranks = begin(spec, data, wire), roles(spec)
        self.pieces = weights(model, spec.servers)[ranks[SERVER].index(wire.rank)]
        self.shard = Shard(flatten(self.pieces.values()), spec, spec.staleness if self.survives else 0)
        self.compressor = compressor(spec)
        self.workers = ranks[WORKER]
        self.party.peers.alike = {self.rank}  # it takes part in no collective
        self.interface = Window()  # before there are links: a worker pushes as soon as it has its own
        self.links = {rank: Link(wire.party, rank) for rank in ranks[WORKER] + ranks[EVALUATOR]}
        self._broken: list[tuple[int, Exception]] = []
        self._news = threading.Event()
        tell(ready(wire.rank, data, model, *length(spec, data)))

    def run(self) -> None:
        """Serve until every worker has taken its last weights. Raises WireError."""
        threads = {rank: threading.Thread(target=self._attend, args=(rank,), daemon=True) for rank in self.links}
        for thread in threads.values():
            thread.start()
        while any(threads[worker].is_alive() for worker in self.workers if worker not in self.shard.lost):
            self._news.wait(WATCH_SECONDS)
            self._news.clear()
            self._look()
        if self.survives:
            survivors.read_lost(self.party)
        self.party.until(self._all_taken, "the last weights")  # until then they are on their way, counted by nobody
        interface = self.interface.bytes()
        sent, received = map(sum, zip(*(link.take_bytes() for link in self.links.values()), strict=True))
        self.tell(
            events.Served(
                rank=self.rank,
                updates=self.shard.updates,
                sent_bytes=sent,
                received_bytes=received,
                interface_sent_bytes=interface[0],
                interface_received_bytes=interface[1],
            )
        )

    def _all_taken(self) -> bool:
        workers = [rank for rank in self.workers if rank not in self.shard.lost]
        return self.party.published(*map(last_weights_key, workers))

    def _look(self) -> None:
        """Go on without workers that are lost, once training has begun and where that is to be; else raise."""
        peers = self.party.peers
        if self.survives and self.shard.steps:
            survivors.spare(self.party, self.spec)
        for rank, error in list(self._broken):
            if rank not in peers.expendable or not isinstance(error, RuntimeError):  # Gloo's errors are RuntimeErrors
                with self.party.errors(f"serving rank {rank}"):
                    raise error
            self._drop(rank, f"its connection failed ({' '.join(str(error).split())[:200]})")
        for rank in peers.expendable:
            if reason := peers.absent(rank, self.spec.deadline_seconds / 2):
                self._drop(rank, reason)

    def _drop(self, rank: int, reason: str) -> None:
        if rank not in self.shard.lost:
            survivors.report(self.party, rank, reason)
            self.shard.drop(rank, reason)

    def _attend(self, rank: int) -> None:
        """Answer one rank for as long as it asks."""
        link = self.links[rank]
        try:
            while self._answer(link):
                pass
        except Exception as error:  # of a thread: the main one raises it, or goes on without the rank
            self._broken.append((rank, error))
        self._news.set()

    def _answer(self, link: Link) -> bool:
        """Answer one request. Returns whether more are to come."""
        request, weights = head(), torch.empty_like(self.shard.weights)
        link.receive(request, patience=FOREVER)
        what, version = request.tolist()
        if what == PUSH:
            gradient = self._gradient(link, weights)
            try:
                answer = self.shard.push(link.other, gradient, version)
            except survivors.GivenUp:
                link.send(head(NOTHING)).wait()
                return False
            link.send(head(*answer), gradient).wait()
        elif what == DONE:
            self.shard.done(link.other)
        elif what == PULL and not self.shard.newer(version):
            link.send(head(NOTHING)).wait()
            return False
        elif what in (PULL, LAST):
            link.send(head(*self.shard.pull(weights)), weights).wait()
            return what != LAST
        elif what == STATE:
            link.send(self.shard.momentum()).wait()
        elif what == LOAD:
            momentum = torch.empty_like(weights)
            link.receive(weights, momentum)
            self.shard.load(weights, momentum)
            link.send(head()).wait()
        return True

    def _gradient(self, link: Link, flat: torch.Tensor) -> torch.Tensor:
        """What a worker pushes, decompressed into `flat`."""
        gradients = dict(zip(self.pieces, split(flat, self.pieces.values()), strict=True))
        message = self.compressor.message(gradients)
        link.receive(message)
        self.compressor.decode(message, gradients)
        return flat
