"""Which rank sits where, against layouts written out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer import registry
from trainer.layout import EVALUATOR, SERVER, WORKER, on_node, seats
from trainer.spec import RunSpec, SpecError


@pytest.fixture(autouse=True)
def served(monkeypatch):
    """A strategy with parameter servers, whatever the registry holds."""
    takes = ("servers", "colocated", "evaluator")
    entry = registry.Strategy("nowhere:Served", "for this test", servers=True, settings=takes)
    monkeypatch.setitem(registry.SYNCS, "served", entry)


def table(**settings):
    return [(seat.node, seat.local_rank, seat.role) for seat in seats(RunSpec(**settings))]


def test_one_rank_a_node():
    assert table(nodes=3, batch=3) == [(0, 0, WORKER), (1, 0, WORKER), (2, 0, WORKER)]


def test_nproc_ranks_are_numbered_node_by_node():
    assert table(nodes=2, nproc=2, batch=4) == [(0, 0, WORKER), (0, 1, WORKER), (1, 0, WORKER), (1, 1, WORKER)]


def test_servers_have_the_last_nodes_to_themselves():
    found = table(sync="served", nodes=4, servers=2, evaluator=1, batch=4)
    assert found == [(0, 0, WORKER), (1, 0, WORKER), (2, 0, SERVER), (3, 0, SERVER), (3, 1, EVALUATOR)]


def test_colocated_servers_sit_beside_workers_in_turn():
    found = table(sync="served", nodes=2, servers=3, colocated=1, batch=4)
    assert found == [(0, 0, WORKER), (1, 0, WORKER), (0, 1, SERVER), (1, 1, SERVER), (0, 2, SERVER)]


def test_servers_that_leave_no_worker_are_refused():
    with pytest.raises(SpecError, match="SERVERS=2 leaves no node for a worker; COLOCATED=1 would do"):
        RunSpec(sync="served", nodes=2, servers=2, batch=4)


def test_the_default_batch_divides_over_the_workers():
    assert RunSpec.from_settings({"SYNC": "served", "NODES": "4"}).batch == 255
    assert RunSpec.from_settings({"SYNC": "served", "NODES": "4", "COLOCATED": "1"}).batch == 256
    assert RunSpec.from_settings({"NODES": "3", "NPROC": "2"}).batch == 252


@given(
    nodes=st.integers(1, 16),
    nproc=st.integers(1, 4),
    servers=st.integers(1, 16),
    colocated=st.integers(0, 1),
    evaluator=st.integers(0, 1),
)
def test_every_layout_is_whole(nodes, nproc, servers, colocated, evaluator):
    if not colocated and servers >= nodes:
        return
    workers = (nodes - (0 if colocated else servers)) * nproc
    spec = RunSpec(
        sync="served",
        nodes=nodes,
        nproc=nproc,
        servers=servers,
        colocated=colocated,
        evaluator=evaluator,
        batch=workers,
    )
    found = seats(spec)
    assert [seat.rank for seat in found] == list(range(workers + servers + evaluator))
    assert sum(seat.role == WORKER for seat in found) == spec.workers == workers
    assert (found[0].node, found[0].role) == (0, WORKER)
    for node in range(nodes):
        assert sorted(seat.local_rank for seat in found if seat.node == node) == list(range(on_node(found, node)))
        assert on_node(found, node) > 0
