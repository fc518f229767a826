"""Limits and links of a run on real containers: in force while it goes on, as seen from inside; taken back after it."""

import re
import signal

import pytest
from orchestrator import wait_until
from test_cluster_runs import LONG, nothing_left, start
from testbed import said, syncbed

from monitor.engine import container_limits, inspection
from monitor.runtime import wires

SMALL = {"NODES": 2, "MODEL": "cnn3"}
GIB = 2**30


def inside(cluster, nodes=4) -> list[float]:
    """The CPU limit that each node sees, in cores."""
    return [inspection.node_facts(cluster.node(i))["cpu_limit_cores"] for i in range(nodes)]


def given(cluster) -> list[dict]:
    """What Docker holds each node to."""
    for node in cluster.nodes:
        node.reload()
    return [container_limits.now(node) for node in cluster.nodes]


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


def shaped(cluster) -> list[str]:
    """The tbf qdiscs that the nodes see."""
    shown = [said(node, "tc", "qdisc", "show", "dev", "eth0") for node in cluster.nodes]
    return [line.split(" burst")[0].split("rate ")[1] for text in shown for line in text.splitlines() if "tbf" in line]


def controls(cluster) -> set[str]:
    """The congestion controls of the ranks' connections between the run's two nodes, as the kernel shows them."""
    one, other = cluster.nodes[:2]
    (network,) = other.attrs["NetworkSettings"]["Networks"].values()
    shown = one.exec_run(["ss", "-tinH", "dst", network["IPAddress"]])[1].decode()
    return set(re.findall(r"(\S+) wscale:", shown))


@pytest.mark.parametrize("rate", ["50mbit", "200mbit", "1gbit"])
def test_a_link_lets_through_what_was_asked_for(cluster, tmp_path, rate):
    for attempt in range(3):  # on a busy machine it may let less through: its node has to wait for a core
        (tmp_path / str(attempt)).mkdir()
        run = start(cluster, tmp_path / str(attempt), RATE=rate, STEPS=2, **SMALL)
        code, out = run.finish()
        assert code == 0, out
        links = run.result()["links"]
        shares = [link["measured"]["rate_bits"] / link["rate_bits"] for link in links]
        assert max(shares) < 1.05
        if min(shares) > 0.95:
            break
        assert any("is the limit" in warning for warning in run.result()["warnings"])
    assert min(shares) > 0.95
    assert [link["rate_bits"] for link in links] == [{"50mbit": 5e7, "200mbit": 2e8, "1gbit": 1e9}[rate]] * 2
    assert shaped(cluster) == []
    nothing_left(cluster)


def test_a_training_step_takes_what_the_slowest_link_lets_through(cluster, tmp_path):
    """A flat all-reduce on a link that counts: its payload fills it, headers included, but for what it waits itself."""
    words = {"NODES": 2, "MODEL": "vgg11", "BATCH": 4, "SYNC": "all_reduce", "GRANULARITY": "flat", "STEPS": 3}
    for attempt in range(3):  # on a busy machine a node waits for a core too
        (tmp_path / str(attempt)).mkdir()
        run = start(cluster, tmp_path / str(attempt), RATE="200mbit,100mbit", CONGESTION="reno", **words)
        run.wait_for("ready")  # all steps are to come, 3 s each
        assert wait_until(lambda: controls(cluster)) == {"reno"}
        assert shaped(cluster) == ["200Mbit", "100Mbit"]
        code, out = run.finish()
        assert code == 0, out
        slow = run.result()["ranks"][1]
        share = 8 * slow["sent_bytes"] / slow["steps"] / slow["phase_seconds"]["sync"] / 100e6
        assert share < 1
        if share > 0.75:
            break
    assert share > 0.75
    assert [link["congestion"] for link in run.result()["links"]] == ["reno"] * 2
    routes = [said(node, "ip", "route") for node in cluster.nodes]
    assert all("scope link" in text and "congctl" not in text for text in routes), "taken back"


def test_a_congestion_control_that_there_is_not_is_refused_before_anything_is_started(cluster, tmp_path):
    code, out = start(cluster, tmp_path, CONGESTION="swift", STEPS=2, **SMALL).finish()
    assert code == 2
    assert "CONGESTION=swift: the engine's kernel has no such congestion control; it has " in out
    assert "reno" in out
    assert not list(tmp_path.glob("runs/*"))


def test_what_the_kernel_has_not_is_refused_with_what_it_can_do(cluster, tmp_path):
    code, out = start(cluster, tmp_path, LINK="wan-eu-us", STEPS=2, **SMALL).finish()
    kinds = wires.kinds(cluster.client, cluster.node(0).image.id, cluster.project)
    assert kinds["tbf"]
    if kinds["netem"]:
        pytest.skip("this kernel has netem")
    assert code == 2
    assert "no netem (sch_netem), which delay, jitter and loss need; RATE=500mbit alone would do" in out
    assert not list(tmp_path.glob("runs/*"))


def test_links_of_a_killed_orchestrator_are_taken_back_by_clean(cluster, tmp_path):
    run = start(cluster, tmp_path, RATE="300mbit", **SMALL | LONG)
    run.wait_for("step")
    run.process.kill()
    run.process.wait()
    nothing_left(cluster)
    assert shaped(cluster) == ["300Mbit", "300Mbit"]
    assert "a run that was killed left its link shaped" in syncbed("doctor", f"PROJECT={cluster.project}").stdout
    assert "a run's link of" in syncbed("clean", f"PROJECT={cluster.project}").stdout
    assert shaped(cluster) == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"CPUS": "0.5,0.5,0.5"}, "CPUS=0.5,0.5,0.5: one value, or 2 parted by commas"),
        ({"RATE": "100"}, "RATE=100: a number with a unit (kbit, mbit, gbit), as 100mbit"),
        ({"CPUS": "1000"}, "CPUS=1000: cores per node, a number from 0.05 to the host's"),
    ],
)
def test_limits_that_cannot_be_are_refused_before_anything_is_started(cluster, tmp_path, words, says):
    code, out = start(cluster, tmp_path, STEPS=2, **SMALL, **words).finish()
    assert code == 2
    assert says in out
    assert not list(tmp_path.glob("runs/*"))
