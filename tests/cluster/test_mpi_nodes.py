"""Real MPI between containers, without ssh: the average, its traffic, and what a lost rank leaves: nothing."""

import pytest
import torch
from orchestrator import Orchestrator, wait_until
from test_strategies import HEADERS, QUIET_BYTES

OF_A_RUN = "grep -lz ^SYNCBED_RUN_ID= /proc/[0-9]*/environ 2>/dev/null || true"


def start(cluster, folder, **settings):
    words = {"RUNTIME": "docker", "PROJECT": cluster.project, "SYNC": "psgd", "TRANSPORT": "mpi"}
    return Orchestrator(folder, **words | settings)


def nothing_left(cluster):
    wait_until(lambda: all(n.exec_run(["sh", "-c", OF_A_RUN]).output == b"" for n in cluster.nodes))


@pytest.fixture(scope="module")
def finished(cluster, tmp_path_factory):
    """The same run over MPI and over Gloo, on three nodes: MPICH's other algorithms would not send as much per rank."""
    folder = tmp_path_factory.mktemp("finished")
    runs = {}
    for transport in ("mpi", "gloo"):
        runs[transport] = run = start(cluster, folder, NODES=3, TRANSPORT=transport, BATCH=6, STEPS=2)
        code, out = run.finish()
        assert code == 0, out
        path = run.run / run.result()["checkpoints"][-1]["path"] / "model.pt"
        run.kept = run.result(), torch.load(path, weights_only=True)["model"]
    nothing_left(cluster)
    return runs["mpi"].kept, runs["gloo"].kept


def test_the_average_between_nodes_is_the_one_over_gloo(finished):
    (mpi, weights), (gloo, expected) = finished
    assert [rank["node"] for rank in mpi["ranks"]] == ["trainer-0", "trainer-1", "trainer-2"]
    for name, value in expected.items():
        torch.testing.assert_close(weights[name], value, msg=lambda text, name=name: f"{name}: {text}")
    assert mpi["synchronisations"] == gloo["synchronisations"] == 1


def test_the_interface_carries_what_the_wire_counted(finished):
    """As the ranks read it themselves, over training and nothing else: Prometheus may see a new cluster too late."""
    (mpi, _), _ = finished
    for rank in mpi["ranks"]:
        assert rank["sent_bytes"] == rank["received_bytes"] == 9_231_114 * 4 * 2 * 2 // 3
        for way in ("sent", "received"):
            counted = rank[f"interface_{way}_bytes"]
            assert rank[f"{way}_bytes"] <= counted <= HEADERS * rank[f"{way}_bytes"] + QUIET_BYTES


@pytest.mark.parametrize(("sign", "kind"), [("KILL", "killed"), ("STOP", "frozen")])
def test_a_lost_rank_ends_the_run_and_is_named(cluster, tmp_path, sign, kind):
    run = start(cluster, tmp_path, BATCH=16, STEPS=2000, DEADLINE=12)
    run.wait_for("step", rank=2)
    pid = run.events("started", rank=2)[0]["pid"]
    assert cluster.node(2).exec_run(["sh", "-c", f"kill -{sign} {pid}"]).exit_code == 0
    code, out = run.finish()
    error = run.result()["error"]
    assert (code, error["kind"], error["rank"]) == (1, kind, 2), out
    nothing_left(cluster)


def test_a_killed_orchestrator_leaves_no_process_in_any_node(cluster, tmp_path):
    run = start(cluster, tmp_path, BATCH=16, STEPS=2000)
    run.wait_for("step")
    run.process.kill()
    run.process.communicate()
    nothing_left(cluster)
