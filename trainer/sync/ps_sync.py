"""Parameter servers in lock-step."""

import torch

from trainer.compress.base import compressor
from trainer.flat import flatten, unflatten
from trainer.layout import SERVER, roles
from trainer.sync.base import Sync
from trainer.sync.parts import empty, pieces, weights
from trainer.wire import survivors
from trainer.wire.link import DONE, HEAD_BYTES, LAST, LOAD, NOTHING, PULL, PUSH, STATE, Link, head, last_weights_key

COMPRESSOR = "compressor/"  # before the names of what the compressor keeps


class PsSync(Sync):
    """Workers push gradients to the servers, each of which holds a part of the weights and takes the SGD step on it.

    After backward every worker sends each of the SERVERS its part of the gradient. A server waits
    for all workers, adds in rank order, updates its part and sends it back to all: one SGD step on
    the joined batch. Momentum and weight decay are the servers'. Source: Li et al., OSDI 2014; the
    server's side is trainer/servers/.
    Bytes per step: a worker sends S and receives S; a server of the part P of S receives n * P and
    sends n * P, and every message has a head of 16 bytes. So, in all, a worker sends S + 16 *
    SERVERS and receives as much. Once more, after the last step, it sends 32 * SERVERS and receives
    S + 16 * SERVERS.
    COMPRESS makes what is pushed smaller, from point to point (see trainer/compress/); weights come
    back as they are.
    """

    finish_changes_weights = True

    def setup(self, model):
        module = super().setup(model)
        self.compressor = compressor(self.spec)
        self.parts = weights(model, self.spec.servers)
        self.links = [Link(self.wire.party, rank) for rank in roles(self.spec)[SERVER]]
        self.versions = [0] * len(self.links)  # how many updates the weights of each part have had
        return module

    def synchronise(self) -> None:
        gradients = pieces(self.weighted_gradients(), len(self.parts))
        self.wire.party.note("push to the servers")  # the one behind in these is who the others wait for
        self.staleness = self._exchange(PUSH, [[self.compressor.encode(part)] for part in gradients])
        self.synchronisations += 1

    def _exchange(self, what: int, messages: list[list[torch.Tensor]]) -> float:
        """Send each server a request and the messages for it, and take its part of the weights.

        Returns the staleness that the servers counted, the mean over them.
        """
        with self.wire.party.errors("an exchange with the servers"):
            requests = zip(self.links, self.versions, messages, strict=True)
            sendings = [link.send(head(what, version), *message) for link, version, message in requests]
            staleness = [self._take(i) for i in range(len(self.links))]
            for sending in sendings:
                sending.wait()
        for link in self.links:
            self.wire.count("link", *link.take_bytes())
        return sum(staleness) / len(staleness)

    def _take(self, i: int) -> int:
        """The answer of one server: its part of the weights, copied into the model's."""
        answer, flat = head(), empty(self.parts[i])
        self.links[i].receive(answer)
        self.versions[i], staleness = answer.tolist()
        if self.versions[i] == NOTHING:
            raise survivors.GivenUp(f"the servers went on without this worker: {survivors.reason(self.wire.party)}")
        self.links[i].receive(flat)
        unflatten(flat, self.parts[i].values())
        return staleness

    def step(self, optimizer) -> None:
        """The servers have."""

    def finish(self) -> None:
        """Wait for the other workers, then take the weights that are left when all have pushed for the last time."""
        with self.wire.party.errors("the last word to the servers"):
            for link in self.links:
                link.send(head(DONE)).wait()
        self._meet()
        self._exchange(LAST, [[] for _ in self.links])
        self.wire.party.publish(last_weights_key(self.wire.party.global_rank), "")

    def _meet(self) -> None:
        self.wire.party.meet("the last push")

    def step_bytes(self, gradient_bytes: int) -> tuple[float, float]:
        heads = len(self.parts) * HEAD_BYTES
        pushed = sum(self.compressor.message(part).nbytes for part in self.parts)
        last_sent, last_received = 2 * heads / self.steps, (heads + gradient_bytes) / self.steps
        return heads + pushed + last_sent, heads + gradient_bytes + last_received

    def state(self) -> dict:
        """What the compressor keeps; rank 0 adds the servers' momentum."""
        state = {f"{COMPRESSOR}{name}": value for name, value in self.compressor.state_dict().items()}
        if self.wire.rank == 0:
            for i, (link, part) in enumerate(zip(self.links, self.parts, strict=True)):
                momentum = empty(part)
                with self.wire.party.errors("taking the servers' momentum"):
                    link.send(head(STATE)).wait()
                    link.receive(momentum)
                link.take_bytes()
                state[f"momentum/{i}"] = momentum
        return state

    def load_state(self, state: dict) -> None:
        compressor_state = {
            name.removeprefix(COMPRESSOR): v for name, v in state.items() if name.startswith(COMPRESSOR)
        }
        self.compressor.load_state_dict(compressor_state)
        if self.wire.rank == 0:  # the servers began with the weights of a new run
            for i, (link, part) in enumerate(zip(self.links, self.parts, strict=True)):
                with self.wire.party.errors("giving the servers their state"):
                    link.send(head(LOAD), flatten(part.values()), state[f"momentum/{i}"]).wait()
                    link.receive(head())
        self.wire.party.meet("the servers' state")
        self.versions = [-1] * len(self.links)  # whatever the servers have is newer
        self._exchange(PULL, [[] for _ in self.links])
