"""A step's average with neighbours of which one may be lost: by value, with links that answer at once or never."""

import json
from types import SimpleNamespace

import pytest
import torch

from trainer.spec import RunSpec
from trainer.sync import gossip as gossip_module
from trainer.sync.gossip import Gossip
from trainer.wire import survivors
from trainer.wire.alone import AloneParty
from trainer.wire.traffic import Traffic


class Store(dict):
    def set(self, key, value):
        self[key] = value.encode()

    def check(self, keys):
        return all(key in self for key in keys)


class FakeLink:
    """The other end holds `weights`; None: what is sent to it fails. `silent`: it never answers."""

    def __init__(self, weights, silent=False):
        self.weights, self.silent = weights, silent

    def send(self, mine):
        if self.weights is None:
            raise RuntimeError("Connection closed by peer")
        return SimpleNamespace(wait=lambda: None)

    def receive(self, theirs, patience):
        if self.silent:
            raise gossip_module.NotYet
        theirs.fill_(self.weights)

    def take_bytes(self):
        return 8, 8


class FakeParty(AloneParty):
    """Rank 1 of four. `absent`: ranks that are lost, and why."""

    def __init__(self, absent):
        super().__init__()
        self.rank, self.world_size, self.ranks, self.root = 1, 4, (0, 1, 2, 3), Store()
        self.notes = []
        self.note = self.notes.append
        peers = {"absent": lambda rank, seconds: absent.get(rank), "gone": lambda: None, "missing": lambda: None}
        self.peers = SimpleNamespace(expendable=set(), **peers)


class FakeWire:
    def __init__(self, absent):
        self.rank, self.world_size, self.party = 1, 4, FakeParty(absent)
        self.traffic = Traffic()
        self.count = self.traffic.add


def build(links, absent=None, topology="ring"):
    spec = RunSpec(sync="gossip", nodes=4, batch=8, topology=topology)
    sync = Gossip(FakeWire(absent or {}), spec)
    sync.full_wire, sync.links = sync.wire, links
    sync.model = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.constant_(sync.model.weight, 3.0)
    sync.waiting = gossip_module.ThreadPoolExecutor(2)
    return sync


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(gossip_module, "EVIDENCE_SECONDS", 0.3)


def weight(sync):
    return set(sync.model.weight.flatten().tolist())


def test_all_there_are_averaged_and_counted():
    sync = build({0: FakeLink(6.0), 2: FakeLink(9.0)})
    sync.mix(1)
    assert weight(sync) == {6.0}
    assert (sync.synchronisations, sync.full_wire.party.notes) == (1, ["swap of 2 float32"])
    assert sync.full_wire.traffic.take() == {("swap", "sent"): 16, ("swap", "received"): 16}


def test_a_lost_neighbour_is_skipped_from_then_on():
    sync = build({0: FakeLink(6.0), 2: FakeLink(None)}, {2: "no sign of life for 3 s"})
    sync.mix(1)
    assert weight(sync) == {4.5}  # of 3 and 6
    assert sync.full_wire.party.root == {"lost/2": b"no sign of life for 3 s"}
    assert sync.full_wire.traffic.take() == {("swap", "sent"): 8, ("swap", "received"): 8}
    sync.mix(2)
    assert weight(sync) == {5.25}


def test_a_neighbour_that_never_answers_is_waited_for_until_it_is_known_to_be_lost():
    sync = build({0: FakeLink(6.0), 2: FakeLink(1.0, silent=True)}, {2: "no sign of life for 4 s"})
    sync.mix(1)
    assert (weight(sync), list(sync.links)) == ({4.5}, [0])


def test_without_any_neighbour_left_it_trains_on_alone():
    sync = build({2: FakeLink(None)}, {2: "it gave up: x"})
    sync.mix(1)
    sync.mix(2)
    assert (weight(sync), sync.links) == ({3.0}, {})


def test_a_broken_link_to_one_that_lives_is_an_error():
    sync = build({0: FakeLink(6.0), 2: FakeLink(None)})
    with pytest.raises(RuntimeError, match="closed by peer"):
        sync.mix(1)


def test_rank_0_is_never_done_without():
    sync = build({0: FakeLink(None), 2: FakeLink(6.0)}, {0: "no sign of life for 3 s"})
    with pytest.raises(RuntimeError, match="closed by peer"):
        sync.mix(1)


def test_one_that_lives_and_does_not_answer_in_time_is_an_error():
    sync = build({0: FakeLink(6.0), 2: FakeLink(1.0, silent=True)})
    object.__setattr__(sync.spec, "deadline_seconds", 0.5)  # no spec may have so little
    with pytest.raises(RuntimeError, match="timed out"):
        sync.mix(1)


def test_rank_0_says_who_is_left_and_one_that_was_given_up_ends():
    wire, wires = FakeWire({3: "no sign of life for 4 s"}), {(0, 1, 2): "the wire of three"}
    party = wire.party
    wire.rank = party.rank = 0
    spec = RunSpec(sync="gossip", nodes=4, batch=8)
    settled = []
    party.peers.go_on_without = settled.append
    for worker in (1, 2):
        party.publish(f"here/{worker}", "")
    assert survivors.regroup(wire, spec, "here", wires) == "the wire of three"
    assert settled == [{3: "no sign of life for 4 s"}]
    assert json.loads(party.read("lost at here")) == {"3": "no sign of life for 4 s"}
    wire.rank = party.rank = 3
    with pytest.raises(survivors.GivenUp, match="the others went on without this worker: no sign of life for 4 s"):
        survivors.regroup(wire, spec, "here", wires)
