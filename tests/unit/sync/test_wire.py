"""Counting bytes, reading errors, and who is suspected: with a dictionary as store and a number as clock."""

import json
from types import SimpleNamespace

import pytest
import torch

from trainer.wire import collectives as wire_module
from trainer.wire import peers as peers_module
from trainer.wire.alone import AloneWire
from trainer.wire.collectives import Wire
from trainer.wire.errors import DeadlineExceeded, Mismatch, PeerLost
from trainer.wire.party import Party
from trainer.wire.peers import SILENT_SECONDS, START_SECONDS, Peers
from trainer.wire.traffic import DIRECTIONS


class Store(dict):
    """The part of torch's store that is used, in one process."""

    def set(self, key, value):
        self[key] = value.encode()

    def check(self, keys):
        return all(k in self for k in keys)

    def multi_get(self, keys):
        return [self[k] for k in keys]


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    sleep = SimpleNamespace(sleep=lambda seconds: setattr(clock, "now", clock.now + seconds))
    monkeypatch.setattr(peers_module, "time", sleep)  # of this module alone: threads of other tests may sleep
    return clock


def together(n, clock, deadline=30.0):
    store = Store()
    all_peers = [Peers(store, r, n, deadline, clock) for r in range(n)]
    for p in all_peers:
        p.note(store, 0, "start-up")
    beat(all_peers)
    beat(reversed(all_peers))  # rank 0 has now seen the others' latest
    return all_peers


def beat(ranks):
    for p in ranks:
        p.exchange()


def wire_of(rank, n) -> Wire:
    """A wire whose notes nobody reads."""
    return Wire(Party(rank, n, Store(), SimpleNamespace(note=lambda *_: None)))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 16])
def test_all_reduce_counts_the_ring_and_keeps_fractions_for_later(n, monkeypatch):
    monkeypatch.setattr(wire_module.dist, "all_reduce", lambda *_, **__: None)
    wire = wire_of(0, n)
    total = 0
    for _ in range(n):
        wire.all_reduce(torch.zeros(25))
        sent, received = wire.take_bytes()
        assert sent == received
        total += sent
    assert total == 2 * (n - 1) * 100


@pytest.mark.parametrize("n", range(1, 17))
@pytest.mark.parametrize("source", [0, 2])
def test_broadcast_counts_each_receiver_once(n, source, monkeypatch):
    monkeypatch.setattr(wire_module.dist, "broadcast", lambda *_, **__: None)
    source %= n
    counts = []
    for rank in range(n):
        wire = wire_of(rank, n)
        wire.broadcast(torch.zeros(25), source)
        counts.append(wire.take_bytes())
    assert [received for _, received in counts] == [0 if r == source else 100 for r in range(n)]
    assert sum(sent for sent, _ in counts) == (n - 1) * 100
    assert counts[source][0] == (n - 1).bit_length() * 100  # the root of a binomial tree has log2(n) children


@pytest.mark.parametrize("n", [1, 2, 3, 7])
@pytest.mark.parametrize("root", [0, 1])
def test_gather_and_scatter_count_what_the_root_receives_and_sends(n, root, monkeypatch):
    root %= n
    for name in ("gather", "scatter", "all_gather"):
        monkeypatch.setattr(wire_module.dist, name, lambda *_, **__: None)
    for rank in range(n):
        wire = wire_of(rank, n)
        here = rank == root
        assert len(wire.gather(torch.zeros(25), root)) == (n if here else 0)
        assert wire.take_bytes() == ((0, (n - 1) * 100) if here else (100, 0))
        wire.scatter(torch.zeros(25), [torch.zeros(25)] * n if here else [], root)
        assert wire.take_bytes() == (((n - 1) * 100, 0) if here else (0, 100))
        assert len(wire.all_gather(torch.zeros(25))) == n
        assert wire.take_bytes() == ((n - 1) * 100, (n - 1) * 100)


def test_an_exchange_counts_both_ways_by_themselves(monkeypatch):
    for name in ("isend", "irecv"):
        monkeypatch.setattr(wire_module.dist, name, lambda *_, **__: SimpleNamespace(wait=lambda: None))
    wire = wire_of(0, 3)
    wire.exchange(torch.zeros(25), 1, torch.zeros(24, dtype=torch.bfloat16), 2, "test")
    assert wire.take_bytes() == (100, 48)


def test_bytes_are_counted_by_collective(monkeypatch):
    for name in ("all_reduce", "broadcast", "all_gather", "gather", "scatter", "isend", "irecv"):
        monkeypatch.setattr(wire_module.dist, name, lambda *_, **__: SimpleNamespace(wait=lambda: None))
    wire, tensor = wire_of(0, 2), torch.zeros(25)
    wire.all_reduce(tensor)
    wire.broadcast(tensor)
    wire.all_gather(tensor)
    wire.gather(tensor)
    wire.scatter(tensor, [tensor, tensor])
    wire.exchange(tensor, 1, torch.zeros(5), 1, "test")
    wire.count("link", 7, 9)
    both = {
        "all_reduce": (100, 100),
        "all_gather": (100, 100),
        "exchange": (100, 20),
        "link": (7, 9),
    }
    taken = {(name, way): n for name, each in both.items() for way, n in zip(DIRECTIONS, each, strict=True)}
    one_way = {("broadcast", "sent"): 100, ("gather", "received"): 100, ("scatter", "sent"): 100}
    assert wire.take_traffic() == taken | one_way
    assert wire.take_traffic() == {}


def test_what_belongs_to_no_step_is_not_counted(monkeypatch):
    monkeypatch.setattr(wire_module.dist, "all_reduce", lambda *_, **__: None)
    wire = wire_of(0, 3)
    for _ in range(3):
        wire.all_reduce(torch.zeros(1))
        with wire.uncounted():
            wire.all_reduce(torch.zeros(1))
    assert wire.take_bytes() == (16, 16)


def test_what_failed_is_not_counted_either(monkeypatch):
    monkeypatch.setattr(wire_module.dist, "all_reduce", lambda *_, **__: None)
    wire = wire_of(0, 2)
    wire.all_reduce(torch.zeros(1))
    wire.waited_seconds = 3.0
    with pytest.raises(ValueError), wire.uncounted():
        wire.all_reduce(torch.zeros(1))
        raise ValueError("a checkpoint that cannot be written")
    assert (wire.take_bytes(), wire.waited_seconds) == ((4, 4), 3.0)


def test_one_rank_alone_meets_itself_at_once_and_sends_nothing():
    wire = AloneWire()
    tensor = torch.ones(3)
    assert torch.equal(wire.broadcast(wire.all_reduce(tensor)), torch.ones(3))
    (part,), (whole,) = wire.gather(tensor), wire.all_gather(tensor)
    assert torch.equal(part, whole)
    assert torch.equal(wire.scatter(torch.zeros(3), [part]), torch.ones(3))
    assert torch.equal(wire.exchange(tensor, 0, torch.zeros(3), 0, "test"), torch.ones(3))
    assert torch.equal(wire.all_reduce_later(tensor).wait()[0], torch.ones(3))
    assert wire.take_bytes() == (0, 0)
    party = wire.party
    party.meet("here")
    party.meet("here")
    party.compare("the run", {"seed": "1"})
    assert (party.tell_all("name", "text"), party.published("key"), party.lost) == (["text"], False, {})
    party.publish("key", "text")
    assert (party.published("key"), party.read("key")) == (True, "text")
    with pytest.raises(RuntimeError, match=r"^timed out$"), party.errors("a test"):
        raise RuntimeError("timed out")
    assert wire.among([0]) is wire
    wire.close()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:9", PeerLost),
        ("Read error [172.18.0.3]:34709: Connection reset by peer. This is typically caused by", PeerLost),
        ("writev [172.18.0.3]:1234: Broken pipe", PeerLost),
        ("Timed out waiting 6000ms for recv operation to complete", DeadlineExceeded),
        ("Application timeout caused pair closure", DeadlineExceeded),
        ("op.preamble.length <= op.nbytes. 2000 vs 1000. Received data size doesn't match expected size.", Mismatch),
    ],
)
def test_gloo_errors_become_typed_ones(text, kind):
    suspects = SimpleNamespace(suspect=lambda: (2, "silent"), disagreement=lambda: None)
    with pytest.raises(kind, match="rank 2: silent") as error, Party(0, 3, Store(), suspects).errors("a test"):
        raise RuntimeError(text)
    assert error.value.suspect_rank == 2


def test_other_errors_pass_unchanged():
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes"), Party(0, 2, Store(), None).errors("a test"):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")


def test_a_silent_rank_is_the_suspect(clock):
    zero, one, two = together(3, clock)
    while clock.now <= SILENT_SECONDS:
        clock.now += 0.5
        beat([zero, one])
    assert zero.suspect()[0] == one.suspect()[0] == 2
    assert two.silent(100) is None


def test_who_left_passes_the_blame_on(clock):
    """Rank 2 died, rank 1 noticed and left first: rank 0 must not blame rank 1."""
    zero, one, _ = together(3, clock)
    one.exchange({"kind": "peer", "message": "rank 2 was lost", "suspect": 2})
    beat([zero])
    assert zero.suspect() == (2, "rank 2 was lost")


def test_who_failed_by_itself_is_the_cause_before_those_it_took_along(clock):
    zero, one, two = together(3, clock)
    one.exchange({"kind": "peer", "message": "a peer was lost", "suspect": None})
    two.exchange({"kind": "own", "message": "disk full", "suspect": None})
    beat([zero])
    assert zero.gone() == (2, "disk full")


def test_a_store_that_does_not_answer_is_rank_0s_silence(clock):
    _, one, _ = together(3, clock, deadline=10)
    for _ in range(16):
        clock.now += 0.5
        assert one.overdue() is None
    clock.now += 0.5
    assert one.overdue()[0] == 0


def test_overdue_is_two_seconds_before_the_deadline(clock):
    zero, one, _ = together(3, clock, deadline=30)
    for _ in range(56):
        clock.now += 0.5
        beat([zero, one])
    assert zero.overdue() is None
    clock.now += 0.5
    beat([zero, one])
    assert zero.overdue() == (2, 28.5)


def test_a_rank_that_never_came_is_missing(clock):
    alone = Peers(Store(), 0, 2, 30, clock)
    assert alone.missing() is None
    clock.now += START_SECONDS
    assert alone.missing() == 1


def test_when_all_are_alive_the_one_behind_is_named(clock, monkeypatch):
    ranks = together(3, clock)
    for p, sequence in zip(ranks, (5, 4, 5), strict=True):
        p.note(p.store, sequence, f"call {sequence}")
    beat(ranks)
    monkeypatch.setattr(ranks[0], "silent", lambda seconds: None)  # their hearts beat on while evidence is waited for
    assert ranks[0].suspect() == (1, "it is alive, but still at call 4 (#4)")


def test_the_odd_collective_of_three_is_named(clock):
    ranks = together(3, clock)
    for p, what in zip(ranks, ("broadcast", "all_reduce", "all_reduce"), strict=True):
        p.note(p.store, 9, what)
    beat(ranks)
    beat(ranks)
    assert ranks[1].disagreement() == (0, "rank 0 began broadcast, others all_reduce (#9)")
    assert ranks[0].disagreement() == ranks[1].disagreement()


def test_agreeing_and_lagging_ranks_do_not_disagree(clock):
    ranks = together(2, clock)
    ranks[0].note(ranks[0].store, 2, "broadcast")
    ranks[1].note(ranks[1].store, 1, "all_reduce")
    beat(ranks)
    assert ranks[0].disagreement() is None
    assert json.loads(ranks[0].store["at/1"]) == [1, "all_reduce"]


def test_who_is_expendable_is_neither_suspected_nor_waited_for_but_found_absent(clock):
    ranks = together(3, clock, deadline=10)
    zero, one, two = ranks
    zero.expendable = {2}
    assert zero.absent(2, 4.0) is None
    for _ in range(17):
        clock.now += 0.5
        beat([zero, one])
    assert zero.absent(2, 4.0) == "no sign of life for 8 s"
    assert zero.absent(1, 4.0) is None
    assert (zero.overdue(), one.overdue()) == (None, (2, 8.5))
    two.exchange({"kind": "own", "message": "disk full", "suspect": None})
    beat([zero])
    assert zero.absent(2, 4.0) == "it gave up: disk full"
    assert zero.gone() is None
    zero.go_on_without({})
    assert zero.gone() == (2, "disk full")
    zero.go_on_without({2: "disk full"})
    assert (zero.gone(), zero.lost, zero.expendable) == (None, {2: "disk full"}, set())


def test_nobody_is_absent_before_it_was_seen_or_while_the_store_does_not_answer(clock):
    zero, one, _ = together(3, clock)
    clock.now += 100
    assert one.absent(2, 4.0) is None
    alone = Peers(Store(), 0, 2, 30, clock)
    alone.exchange()
    assert alone.absent(1, 4.0) is None
    assert zero.absent(1, 4.0) is None


def test_who_was_stopped_itself_judges_nobody_before_it_has_looked_again(clock, monkeypatch):
    """Rank 2 is lost, and rank 1 gets no processor for a while just then: nobody else was silent."""
    zero, one, _ = together(3, clock)

    def sleep(seconds):  # the thread that beats comes to run a moment later than the one that saw the failure
        clock.now += seconds
        if round(clock.now / 0.1) % 5 == 0:
            beat([zero, one])

    monkeypatch.setattr(peers_module.time, "sleep", sleep)
    for _ in range(4):
        clock.now += 0.5
        beat([zero, one])
    clock.now += 3.0
    assert one.suspect()[0] == 2
    beat([zero, one])
    clock.now += 30.0
    assert one.overdue() is None


def test_a_machine_that_stood_still_has_lost_nobody(clock):
    """All ranks, as where a virtual machine is paused: who runs first sees no news of the others."""
    zero, one, two = together(3, clock)
    zero.expendable = {2}
    for _ in range(4):
        clock.now += 0.5
        beat([one, two, zero])
    clock.now += 5.0
    beat([zero])
    assert (zero.absent(2, 4.0), zero.overdue()) == (None, None)
    for _ in range(8):
        clock.now += 0.5
        beat([one, zero])
        assert zero.absent(1, 4.0) is None
    assert zero.absent(2, 4.0) == "no sign of life for 9 s"
