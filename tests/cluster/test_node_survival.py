"""What a run survives on real containers, and what is left when it does not: nothing, and the next run works."""

import signal

from orchestrator import wait_until
from test_cluster_runs import LONG, nothing_left, start
from testbed import said

SMALL = {"NODES": 2, "MODEL": "cnn3"}
EXACT = {**SMALL, "STEPS": 200, "EVERY": 50}
END_AGENT = ["sh", "-c", "kill -KILL $(cat /proc/1/task/1/children)"]  # the container ends with its main process


def healthy(service):
    """Docker says so of this container as it is now."""
    service.reload()
    return service.attrs["State"]["Health"]["Status"] == "healthy"


def test_a_node_that_goes_away_is_waited_for_and_the_weights_are_an_undisturbed_runs(cluster, tmp_path):
    (tmp_path / "usual").mkdir()
    usual = start(cluster, tmp_path / "usual", **EXACT)
    code, out = usual.finish()
    assert code == 0, out
    run = start(cluster, tmp_path, RESTARTS=1, RATE="300mbit", **EXACT)
    run.wait_for("checkpoint")
    cluster.node(1).exec_run(END_AGENT)
    code, out = run.finish()
    assert code == 0, out
    result = run.result()
    (restart,) = result["restarts"]
    assert restart["kind"] in ("killed", "lost")
    assert restart["from_step"] in (50, 100, 150)
    assert "rank 1 (trainer-1)" in restart["message"]
    assert run.weights() == usual.weights()
    for field in ("test_accuracy", "train_loss", "distinct_samples", "samples_seen", "synchronisations"):
        assert result[field] == usual.result()[field], field
    assert [rank["sent_bytes"] for rank in result["ranks"]] == [r["sent_bytes"] for r in usual.result()["ranks"]]
    nothing_left(cluster)
    shown = [said(node, "tc", "qdisc", "show", "dev", "eth0") for node in cluster.nodes]
    assert "tbf" not in "".join(shown)  # also of the node that lost its link and was given it again
    assert cluster.node(0).exec_run(["ls", "/runs"]).output == b""
    wait_until(lambda: healthy(cluster.node(1)), 60)


def test_a_closed_terminal_ends_the_run_in_order(cluster, tmp_path):
    run = start(cluster, tmp_path, **SMALL | LONG)
    run.wait_for("step")
    run.process.send_signal(signal.SIGHUP)
    code, out = run.finish()
    assert (code, run.result()["error"]["kind"]) == (1, "interrupted"), out
    nothing_left(cluster)
    assert cluster.node(0).exec_run(["ls", "/runs"]).output == b""


def test_prometheus_restarted_in_mid_run_costs_rows_and_not_the_run(cluster, tmp_path):
    prometheus = cluster.service("prometheus")
    run = start(cluster, tmp_path, NODES=2, STEPS=100)
    run.wait_for("step")
    prometheus.stop(timeout=2)
    stopped = run.events("step", 0)[-1]["time"]  # however quick the machine, the gap is twice what is told
    wait_until(lambda: run.events("step", 0)[-1]["time"] > stopped + 8 or run.process.poll() is not None, 120)
    prometheus.start()
    code, out = run.finish()
    wait_until(lambda: healthy(prometheus), 60)
    assert code == 0, out
    told = [text for text in run.result()["warnings"] if "metrics.csv has no rows for" in text]
    assert {text.split(":")[0] for text in told} == {"trainer-0", "trainer-1"}, run.result()["warnings"]
    assert len((run.run / "metrics.csv").read_text().splitlines()) > 4  # and it has those from before and after
