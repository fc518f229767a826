"""Faults on real nodes: each kind once; what is stated comes of it (benchmarks/chaos.py), and nothing outlasts it."""

import pytest
from orchestrator import Orchestrator
from test_cluster_runs import nothing_left, start
from test_node_conditions import given
from testbed import syncbed

from benchmarks import chaos
from monitor.engine import inspection
from monitor.results import store

# Every fault once, over strategies that meet it differently; `make chaos` does them all.
CASES = [
    ("passing", "all_reduce"),
    ("kill", "ps_async"),
    ("freeze", "gossip"),
    ("partition", "ddp"),
    ("restart", "ring"),
]


def begin(cluster, folder, fault, sync, **more) -> Orchestrator:
    """The run in which this fault befalls this strategy."""
    cache = folder.parent / "prepared"  # one for all tests of the session
    words = chaos.words(fault, sync, 300) | {"PROJECT": cluster.project, "DATA_CACHE": cache, "PAGES": 0} | more
    if sync == "ps_async":  # its first worker may be STALENESS steps ahead of one that has not done its first
        words["FAULT"] = words["FAULT"].replace("@step=5", "@step=20")
    return Orchestrator(folder, bare=True, **words)


def untouched(cluster) -> bool:
    """Whether no node is shaped or cut off, or has a rank."""
    nothing_left(cluster)
    return not any(inspection.node_facts(node)["shaped"] for node in cluster.nodes)


@pytest.mark.parametrize(("fault", "sync"), CASES)
@pytest.mark.timeout(150)
def test_what_is_stated_comes_of_it_and_nothing_is_left(cluster, tmp_path, fault, sync):
    before = given(cluster)
    run = begin(cluster, tmp_path, fault, sync)
    _, out = run.finish()
    assert chaos.judge(fault, sync, store.load(run.run.name, run.runs))["wrong"] is None, out
    assert given(cluster) == before
    assert untouched(cluster)
    moments = [event["moment"] for event in run.events("fault")]
    assert moments.count("begin") == moments.count("end") == len(run.result()["faults"])


def test_what_a_killed_orchestrator_cut_is_told_and_taken_back(cluster, tmp_path):
    run = begin(cluster, tmp_path, "partition", "ddp", STEPS=2000, DEADLINE=60)
    run.wait_for("fault")
    run.process.kill()
    run.process.wait()
    nothing_left(cluster)
    assert [inspection.node_facts(node)["shaped"] for node in cluster.nodes] == [True, True, False, False]
    assert "a run that was killed left its link shaped" in syncbed("doctor", f"PROJECT={cluster.project}").stdout
    assert "a run's link of" in syncbed("clean", f"PROJECT={cluster.project}").stdout
    assert untouched(cluster)


def test_what_cannot_be_is_refused_before_anything_is_started(cluster, tmp_path):
    code, out = start(cluster, tmp_path, NODES=2, FAULT="slow:1@step=1,cpus=0.5", STEPS=2).finish()
    assert code == 2
    assert "FAULT=slow:1@step=1,cpus=0.5: the node has 0.5 cores; cpus below that would do" in out
    assert not list(tmp_path.glob("runs/*"))
