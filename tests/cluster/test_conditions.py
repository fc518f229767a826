"""Limits of a run on real containers: in force while it goes on, as seen from inside; taken back whatever ends it."""

import signal

import pytest
from test_cluster_runs import LONG, nothing_left, start
from testbed import syncbed

from monitor import engine, limits

SMALL = {"NODES": 2, "MODEL": "logistic", "DATA": "synthetic"}
GIB = 2**30


def inside(cluster, nodes=4) -> list[float]:
    """The CPU limit that each node sees, in cores."""
    return [engine.node_facts(cluster.node(i))["cpu_limit_cores"] for i in range(nodes)]


def given(cluster) -> list[dict]:
    """What Docker holds each node to."""
    for node in cluster.nodes:
        node.reload()
    return [limits.now(node) for node in cluster.nodes]


def test_each_node_has_its_own_limits_while_the_run_goes_on(cluster, tmp_path):
    before = given(cluster)
    run = start(cluster, tmp_path, CPUS="0.4,0.2", MEMORY="1g", **SMALL | LONG)
    run.wait_for("step")
    assert inside(cluster) == pytest.approx([0.4, 0.2, 0.5, 0.5], abs=0.01)
    assert [one["memory_bytes"] for one in given(cluster)[:2]] == [GIB, GIB]
    run.process.send_signal(signal.SIGINT)
    code, _ = run.finish()
    assert code == 1
    wanted = [{"cpus": cpus, "memory_bytes": GIB} for cpus in (0.4, 0.2)]
    assert run.result()["limits"] == wanted
    assert given(cluster) == before
    nothing_left(cluster)


def test_what_a_killed_orchestrator_left_is_told_and_taken_back(cluster, tmp_path):
    before = given(cluster)
    run = start(cluster, tmp_path, CPUS="0.3", **SMALL | LONG)
    run.wait_for("step")
    run.process.kill()
    run.process.wait()
    nothing_left(cluster)
    assert inside(cluster, 2) == pytest.approx([0.3, 0.3], abs=0.01)
    told = syncbed("doctor", f"PROJECT={cluster.project}").stdout
    assert "trainer-1-1: CPUS=0.5 was asked for, 0.3 is in force" in told
    (tmp_path / "next").mkdir()
    run = start(cluster, tmp_path / "next", STEPS=2, **SMALL)
    code, out = run.finish()
    assert code == 0, out
    assert [one["cpus"] for one in run.result()["limits"]] == [0.5, 0.5]
    assert given(cluster) == before


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"CPUS": "0.5,0.5,0.5"}, "CPUS=0.5,0.5,0.5: one value, or 2 parted by commas"),
        ({"CPUS": "1000"}, "CPUS=1000: cores per node, a number from 0.05 to the host's"),
    ],
)
def test_limits_that_cannot_be_are_refused_before_anything_is_started(cluster, tmp_path, words, says):
    code, out = start(cluster, tmp_path, STEPS=2, **SMALL, **words).finish()
    assert code == 2
    assert says in out
    assert not list(tmp_path.glob("runs/*"))
