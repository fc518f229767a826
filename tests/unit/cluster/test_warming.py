"""In which nodes a process that forks ranks is started."""

from types import SimpleNamespace

import pytest

from monitor.engine import warming
from monitor.errors import UserError

GIB = 1 << 30


def started(memory_limits, memory_total=24 * GIB, warm=()):
    """The numbers of the nodes in which one is started."""
    done = []
    nodes = {
        Node(rank, done): {"warm": rank in warm, "memory_limit_bytes": limit}
        for rank, limit in enumerate(memory_limits)
    }
    warming.warm_up(SimpleNamespace(info=lambda: {"MemTotal": memory_total}), nodes)
    return done


class Node:
    """A node that may be a key, as a container is."""

    def __init__(self, rank, done):
        self._rank, self._done = rank, done

    def exec_run(self, command, detach):
        assert command == ["hidden-python", "-m", "node.warm"] and detach
        self._done.append(self._rank)


def test_each_node_that_has_none_and_has_room_gets_one():
    assert started([None, GIB, GIB - 1, 4 * GIB], warm=[3]) == [0, 1]
    assert started([GIB] * 4, warm=range(4)) == []
    assert started([]) == []


@pytest.mark.parametrize(("nodes", "gibibytes", "some"), [(4, 5, True), (4, 4, False), (19, 24, True), (20, 24, False)])
def test_all_together_take_a_quarter_of_the_memory_at_most(nodes, gibibytes, some):
    assert started([GIB] * nodes, gibibytes * GIB) == (list(range(nodes)) if some else [])


def test_an_engine_that_has_gone_costs_nothing():
    def gone():
        raise UserError("the engine has gone")

    warming.warm_up(SimpleNamespace(info=gone), {Node(0, []): {"warm": False, "memory_limit_bytes": GIB}})
