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


STRAY = """
import os, sys
hold = "import fcntl, time; lock = open('/run/syncbed/lock', 'a+'); fcntl.flock(lock, fcntl.LOCK_EX); time.sleep(600)"
if os.fork() == 0:
    os.setsid()
    os.execve(sys.executable, ["python", "-c", hold], {})
"""
HOLDER = "from node.lock import lock_holder; print(lock_holder())"
LOOK = """
launcher=$(grep -lz '^node.launcher$' /proc/[0-9]*/cmdline | head -1 | cut -d/ -f3)
echo launcher $launcher
for file in environ maps mem fd/0 fd/1; do (: </proc/$launcher/$file) 2>/dev/null && echo $file; done
ls /proc/$launcher/fd 2>/dev/null || true
"""
DUMPABLE = "import ctypes; print(ctypes.CDLL(None).prctl(3))"  # PR_GET_DUMPABLE of prctl(2)


def test_a_nodes_user_neither_holds_its_node_nor_speaks_as_its_launcher(cluster, tmp_path):
    node = cluster.node(0)
    assert node.exec_run(["python", "-c", STRAY]).exit_code == 0
    wait_until(lambda: said(node, "python", "-c", HOLDER) != "None\n")
    run = start(cluster, tmp_path, **SMALL | LONG)
    run.wait_for("step")
    word, launcher, *seen = said(node, "sh", "-c", LOOK).split()
    assert (word, launcher.isdigit(), seen) == ("launcher", True, [])
    assert (said(node, "python", "-c", DUMPABLE), said(node, "hidden-python", "-c", DUMPABLE)) == ("1\n", "0\n")
    run.process.send_signal(signal.SIGINT)
    code, out = run.finish()
    assert (code, run.result()["error"]["kind"]) == (1, "interrupted"), out
    nothing_left(cluster)


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


WARM_PROCESS = "grep -lz '^node.warm$' /proc/[0-9]*/cmdline | cut -d/ -f3 | sort -n | head -1"
FORKS = f'warm=$({WARM_PROCESS}); grep -l "^PPid:.$warm$" $(ls /proc/[0-9]*/status) 2>/dev/null | wc -l'


def test_ranks_are_forks_of_a_process_that_waits_in_their_node_and_die_with_it(cluster, tmp_path):
    code, out = start(cluster, tmp_path, STEPS=2, **SMALL).finish()
    assert code == 0, out  # at its end the last of the nodes gets such a process
    nodes = [cluster.node(rank) for rank in range(2)]
    wait_until(
        lambda: all(node.exec_run(["test", "-S", "/run/syncbed/warm.sock"]).exit_code == 0 for node in nodes), 90
    )
    run = start(cluster, tmp_path, **SMALL | LONG)
    run.wait_for("step", rank=1)
    assert [said(node, "sh", "-c", FORKS).strip() for node in nodes] == ["1", "1"]
    nodes[1].exec_run(["sh", "-c", f"kill -KILL $({WARM_PROCESS})"])
    code, out = run.finish()
    assert (code, run.result()["error"]["rank"]) == (1, 1), out
    nothing_left(cluster)
    code, out = start(cluster, tmp_path, STEPS=2, **SMALL).finish()
    assert code == 0, out
