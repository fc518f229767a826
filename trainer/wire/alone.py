"""One rank alone: Wire and Party with nobody to send to and nobody to wait for."""

from collections.abc import Sequence
from contextlib import contextmanager

import torch

from trainer.wire.collectives import Wire
from trainer.wire.gloo import HashStore
from trainer.wire.party import Party
from trainer.wire.peers import Peers


class AloneParty(Party):
    """One rank, whose store is in its own process.

    Every meeting is immediate, and errors pass as they are.
    """

    def __init__(self):
        store = HashStore()  # in this process
        super().__init__(0, 1, store, Peers(store, 0, 1, 0.0))  # its heartbeat never starts, and nobody is ever lost

    def among(self, ranks: Sequence[int]) -> Party:
        return self

    def meet(self, name: str) -> None:
        """Everybody is there."""

    def tell_all(self, name: str, text: str) -> list[str]:
        return [text]

    def part(self) -> None:
        """There is nobody to part from."""

    @contextmanager
    def errors(self, doing: str):
        yield

    def note(self, what: str) -> None:
        """Nobody reads it."""


class AloneWire(Wire):
    """One rank. Every collective results in this rank's own tensor, and counts nothing."""

    def __init__(self, party: Party | None = None):
        super().__init__(party or AloneParty())

    def connect(self) -> None:
        """There is nobody to connect to."""

    def among(self, ranks: Sequence[int]) -> Wire:
        return self

    def connect_mpi(self) -> None:
        """There is nobody to connect to."""

    def close(self) -> None:
        """Nothing is open."""

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def all_reduce_mpi(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def all_reduce_later(self, tensor: torch.Tensor) -> torch.futures.Future:
        future: torch.futures.Future = torch.futures.Future()
        future.set_result([tensor])
        return future

    def broadcast(self, tensor: torch.Tensor, source: int = 0) -> torch.Tensor:
        return tensor

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return [tensor]

    def gather(self, tensor: torch.Tensor, target: int = 0) -> list[torch.Tensor]:
        return [tensor]

    def scatter(self, tensor: torch.Tensor, parts: list[torch.Tensor], source: int = 0) -> torch.Tensor:
        return tensor.copy_(parts[0])

    def exchange(self, outgoing: torch.Tensor, to: int, incoming: torch.Tensor, source: int, what: str) -> torch.Tensor:
        return incoming.copy_(outgoing)
