"""A link: point-to-point messages between two ranks, in a process group of their own.

In one group for all ranks, a receive that runs out of time breaks the connections to every other
rank as well. With a group for each pair, a peer that is lost breaks nothing but the link to it.
"""

from datetime import timedelta

import torch

from trainer.wire.gloo import PrefixStore, gloo_group
from trainer.wire.party import Party

FOREVER = timedelta(days=365)


class Link:
    """This rank's end. Messages arrive in the order they were sent in.

    Both ends are made at the same time.

    Bytes are counted on this link alone: several links of one rank may be in use at once, each by
    its own thread.
    What Gloo raises passes as it is: whose fault it was is for the caller to find out
    (Party.errors).
    """

    def __init__(self, party: Party, other: int):
        self.party, self.other = party, other
        self.sent = self.received = 0  # bytes of payload
        me = party.global_rank
        name = f"link {min(me, other)}-{max(me, other)}"
        with party.errors(f"connecting to rank {other}"):
            store = PrefixStore(name, party.root)
            self._pair = gloo_group(store, int(me > other), 2, party.deadline_seconds)
        self._far = int(me < other)
        self._deadline = timedelta(seconds=party.deadline_seconds)

    def take_bytes(self) -> tuple[int, int]:
        """Payload bytes sent and received since the last call."""
        sent, received = self.sent, self.received
        self.sent = self.received = 0
        return sent, received

    def send(self, *messages: torch.Tensor) -> "Sending":
        """Begin to send. The messages must be left alone until the result's `wait` has returned."""
        works = [self._pair.send([message], self._far, 0) for message in messages]
        self.sent += sum(message.nbytes for message in messages)
        return Sending(works, self._deadline, messages)

    def receive(self, *messages: torch.Tensor, patience: timedelta | None = None) -> None:
        """Fill the messages with what the other end sends.

        Waits for DEADLINE unless `patience` says how long.
        """
        for message in messages:
            self._pair.recv([message], self._far, 0).wait(patience or self._deadline)
            self.received += message.nbytes


class Sending:
    """What is on its way."""

    def __init__(self, works, patience: timedelta, messages):
        self._works, self._patience = works, patience
        self._messages = messages  # Gloo reads them until they have been handed over

    def wait(self) -> None:
        """Until it has been handed over."""
        for work in self._works:
            work.wait(self._patience)


# Requests over a link to a server, see trainer/servers/server.py.
PUSH, DONE, LAST, PULL, STATE, LOAD = range(6)
NOTHING = -1  # in place of a number of updates: no weights follow
HEAD_BYTES = 16


def last_weights_key(worker: int) -> str:
    """Where in the store a worker says that it has the last weights."""
    return f"taken/{worker}"


def head(what: int = 0, number: int = 0) -> torch.Tensor:
    """What goes before every message to and from a server: two int64."""
    return torch.tensor([what, number])
