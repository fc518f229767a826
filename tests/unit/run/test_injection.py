"""Faults are brought about when they are due, once, and taken back: scripted time, ranks and nodes."""

import json
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from scripted import ScriptedRuntime, exited, ready, step
from test_recovery import killed_at_five, recorder

from monitor.conditions import faults
from monitor.conditions.links import Link
from monitor.errors import UserError
from monitor.run import injection
from monitor.run.injection import Injector
from monitor.run.progress import Progress
from monitor.run.rank_state import RankState
from monitor.run.recovery import Recovery, RestartPolicy
from monitor.run.supervise import Supervisor
from monitor.runtime.base import Job
from monitor.runtime.node_faults import NodeFaults
from trainer import events
from trainer.spec import RunSpec

SPEC = RunSpec(nodes=3, batch=12)


class Place:
    """Nodes that do what is asked, or cannot."""

    def __init__(self, text, cannot=()):
        self.faults = faults.of({"FAULT": text}, SPEC)
        self.done, self.cannot = [], cannot

    def strike(self, fault):
        self.done.append(("strike", fault.kind))
        if "strike" in self.cannot:
            raise UserError("no such node")

    def relieve(self, fault):
        self.done.append(("relieve", fault.kind))
        if "relieve" in self.cannot:
            raise UserError("the engine went away")


class Signalled:
    def __init__(self):
        self.signals = []

    def signal(self, name):
        self.signals.append(name)


class Bed:
    """An injector whose clock stands still."""

    def __init__(self, text, monkeypatch, cannot=()):
        self.now, self.said = 1000.0, []
        monkeypatch.setattr(injection, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(injection, "CLOCK", SimpleNamespace(now=lambda: self.now))
        self.place = Place(text, cannot)
        self.injector = Injector(self.place, self.said.append)
        self.ranks = [RankState(last_sign=0, handle=Signalled()) for _ in range(3)]

    def did(self, number):
        self.injector.note_step(step(0, number).__class__(**vars(step(0, number)) | {"time": self.now}))

    def tick(self, ahead=0.0):
        """Time goes on; what became due is done when it returns."""
        self.now += ahead
        self.injector.tick(self.ranks)
        for record in self.injector.records:
            for work in filter(None, (record.striking, record.relieving)):
                work.result(10)
        self.injector.tick(self.ranks)

    @property
    def signals(self):
        return [rank.handle.signals for rank in self.ranks]

    @property
    def moments(self):
        return [(event.fault.split("@")[0], event.moment, event.error) for event in self.said]


def test_a_step_counts_once_a_worker_has_done_it(monkeypatch):
    bed = Bed("kill:2@step=3", monkeypatch)
    for number in (1, 2):
        bed.did(number)
        bed.tick()
    assert bed.signals == [[], [], []]
    bed.did(3)
    bed.tick()
    bed.tick(100)
    assert bed.signals == [[], [], ["KILL"]]
    (event,) = bed.said
    assert (event.rank, event.fault, event.moment, event.step, event.error) == (2, "kill:2@step=3", "begin", 3, None)


def test_seconds_count_from_the_beginning_of_the_first_step(monkeypatch):
    bed = Bed("freeze:1@10s+5s", monkeypatch)
    bed.tick(100)
    assert bed.signals[1] == []  # no step has begun
    bed.did(1)  # which took half a second
    bed.tick(9.4)
    assert bed.signals[1] == []
    bed.tick(0.2)
    assert bed.signals[1] == ["STOP"]
    bed.tick(4.9)
    assert bed.signals[1] == ["STOP"]
    bed.tick(0.2)
    assert bed.signals[1] == ["STOP", "CONT"]
    bed.injector.end(bed.ranks)
    assert bed.signals[1] == ["STOP", "CONT"]
    assert bed.moments == [("freeze:1", "begin", None), ("freeze:1", "end", None)]
    (told,) = bed.injector.facts()
    assert (told.began_seconds, told.ended_seconds) == (pytest.approx(10.1), pytest.approx(15.2))


@pytest.mark.parametrize(
    ("text", "does"),
    [
        ("freeze:1@1s+1s; freeze:1@2s+1s", ["STOP", "CONT", "STOP", "CONT"]),
        ("slow:1@1s+1s,cpus=0.1; slow:1@2s+1s,cpus=0.2", ["strike", "relieve"] * 2),
        ("link:1@1s+1s,rate=10mbit; link:1@2s+1s,rate=5mbit", ["strike", "relieve"] * 2),
        ("partition:0|1@1s+1s; partition:1|2@2s+1s", ["strike", "relieve"] * 2),
    ],
)
def test_one_that_follows_another_begins_when_that_was_taken_back(monkeypatch, text, does):
    """The first begins late, so it ends late: its end must not take back the second."""
    bed = Bed(text, monkeypatch)
    done = lambda: bed.signals[1] + [what for what, _ in bed.place.done]  # noqa: E731
    bed.did(1)
    bed.tick(0.9)  # 1.4 s after the first step began
    assert done() == does[:1]
    bed.tick(0.8)
    assert done() == does[:1]
    bed.tick(0.3)
    bed.tick()
    assert done() == does[:3]
    bed.tick(0.9)
    assert done() == does[:3]
    bed.tick(0.2)
    assert done() == does


def test_what_is_for_good_ends_with_the_run(monkeypatch):
    bed = Bed("slow:1@step=1,cpus=0.1", monkeypatch)
    bed.did(1)
    bed.tick()
    bed.tick(1e6)
    assert bed.place.done == [("strike", "slow")]
    bed.injector.end(bed.ranks)
    assert bed.place.done == [("strike", "slow"), ("relieve", "slow")]


def test_what_the_run_did_not_come_to_is_warned_of(monkeypatch):
    bed = Bed("kill:2@step=3", monkeypatch)
    bed.did(2)
    bed.tick()
    bed.injector.end(bed.ranks)
    bed.injector.close()
    assert [event.message for event in bed.said] == ["FAULT=kill:2@step=3: the run ended before it was due"]
    none = {"step": None, "began_seconds": None, "ended_seconds": None, "error": None}
    assert [told.model_dump() for told in bed.injector.facts()] == [{"fault": "kill:2@step=3"} | none]


@pytest.mark.parametrize(
    ("cannot", "says"),
    [
        (["strike"], "could not be brought about: no such node"),
        (["relieve"], "could not be taken back: the engine went away"),
        (["strike", "relieve"], "could not be brought about: no such node"),
    ],
)
def test_what_cannot_be_done_is_told_and_tried_to_be_taken_back(monkeypatch, cannot, says):
    bed = Bed("partition:0|1@step=1", monkeypatch, cannot)
    bed.did(1)
    bed.tick()
    bed.injector.end(bed.ranks)
    assert bed.place.done == [("strike", "partition"), ("relieve", "partition")]
    assert bed.injector.facts()[0].error == says
    assert bed.moments[-1] == ("partition:0|1", "end", says)


@pytest.mark.parametrize("how", ["exited", "ended", "finished", "lost_reason"])
@pytest.mark.parametrize("kind", ["kill", "freeze"])
def test_a_rank_that_has_ended_by_then_suffers_nothing_and_it_is_told(monkeypatch, kind, how):
    bed = Bed(f"{kind}:1@step=1", monkeypatch)
    setattr(bed.ranks[1], how, True)
    bed.did(1)
    bed.tick()
    assert bed.signals == [[], [], []]
    assert bed.moments == [(f"{kind}:1", "begin", "could not be brought about: rank 1 had ended by then")]


def test_a_rank_that_was_never_started_is_no_crash(monkeypatch):
    bed = Bed("kill:1@step=1", monkeypatch)
    bed.ranks[1].handle = None
    bed.did(1)
    bed.tick()
    assert bed.moments == [("kill:1", "begin", "could not be brought about: rank 1 had ended by then")]


def test_a_rank_is_struck_at_once_while_a_node_is_still_being_struck(monkeypatch):
    """Cutting a node off takes the engine seconds: a freeze that is due meanwhile must not wait, nor end late."""
    bed, let = Bed("partition:0|1@step=1; kill:2@step=1", monkeypatch), threading.Event()
    bed.place.strike = lambda fault: let.wait(30)
    bed.did(1)
    bed.injector.tick(bed.ranks)
    bed.injector.records[1].striking.result(10)
    assert bed.signals == [[], [], ["KILL"]]
    assert not bed.injector.records[0].striking.done()
    let.set()
    bed.injector.end(bed.ranks)


def test_events_and_result_agree_on_the_step_it_began_at(monkeypatch):
    """Steps go on while a node is being struck."""
    bed = Bed("restart:1@step=1", monkeypatch)
    bed.place.strike = lambda fault: bed.did(7)
    bed.did(1)
    bed.tick()
    assert [event.step for event in bed.said] == [told.step for told in bed.injector.facts()] == [1]


@pytest.mark.parametrize("method", ["strike", "relieve"])
def test_what_nobody_thought_of_is_told_too(monkeypatch, method):
    def fail(fault):
        raise ValueError("no JSON")

    bed = Bed("slow:1@step=1,cpus=0.1", monkeypatch)
    setattr(bed.place, method, fail)
    bed.did(1)
    bed.tick()
    bed.injector.end(bed.ranks)
    assert bed.injector.facts()[0].error.endswith("ValueError: no JSON")


def test_no_fault_strikes_twice_and_none_before_the_next_attempt_trains(monkeypatch):
    bed = Bed("kill:1@step=2; kill:2@step=4; kill:0@5s", monkeypatch)
    bed.did(2)
    bed.tick()
    bed.injector.end(bed.ranks)
    bed.tick(100)  # the nodes start again
    assert bed.signals == [[], ["KILL"], []]
    bed.did(2)
    bed.tick()
    assert bed.signals == [["KILL"], ["KILL"], []]
    bed.did(4)
    bed.tick()
    assert bed.signals == [["KILL"], ["KILL"], ["KILL"]]


class Faulty(ScriptedRuntime):
    faults = faults.of({"FAULT": "kill:1@step=3; kill:1@step=90"}, RunSpec(nodes=2, batch=8, steps=100))


def test_a_supervised_rank_is_killed_as_any_other_and_named():
    said = []
    runtime = Faulty([[ready(0), step(0)], [ready(1), step(1)]], holding=(0, 1))
    job = Job("r", RunSpec(nodes=2, batch=8, deadline_seconds=20.0), "key", Path())
    failure = Supervisor(runtime, job, said.append).run()
    assert (failure.kind, failure.rank) == ("killed", 1)
    (told,) = [event for event in said if isinstance(event, events.Fault) and event.moment == "begin"]
    assert (told.fault, told.rank, told.step) == ("kill:1@step=3", 1, 3)


def test_a_restarted_run_keeps_its_faults_and_warns_of_the_late_ones(tmp_path):
    said = []
    again = [
        [ready(r), step(r), events.Finished(rank=r, peak_memory_bytes=1, cpu_seconds=1.0), exited(r)] for r in (0, 1)
    ]
    runtime = Faulty([[ready(0), step(0)], [ready(1), step(1)]], holding=(0, 1), later=[again])
    job = Job("r", RunSpec(nodes=2, batch=8, deadline_seconds=20.0), "key", tmp_path)
    stop = SimpleNamespace(is_requested=False, running=lambda: None, writing=lambda: None)
    recovery = Recovery(runtime, job, said.append, stop, RestartPolicy(1))
    assert recovery.run() is None
    assert [one.began_seconds is None for one in recovery.injector.facts()] == [False, True]
    warned = [event.message for event in said if isinstance(event, events.Warning)]
    assert warned == ["FAULT=kill:1@step=90: the run ended before it was due"]


class Node:
    """A container as the docker SDK shows it."""

    def __init__(self, number):
        self.name = f"trainer-{number}"
        self.labels = {}
        self.image = SimpleNamespace(id="image")
        self.attrs = {
            "HostConfig": {"CpuQuota": 50_000, "CpuPeriod": 100_000, "Memory": 2**30},
            "NetworkSettings": {"Networks": {"nodes": {"IPAddress": f"10.0.0.{number}"}}},
        }
        self.restarts = []

    def update(self, **changes):
        self.attrs["HostConfig"] |= {"CpuQuota": changes["cpu_quota"]}

    def reload(self):
        """It shows what is there already."""

    def restart(self, timeout):
        self.restarts.append(timeout)


@pytest.fixture
def nodes(monkeypatch):
    """Three nodes and their faults, `net`: each one's link and cut."""
    made = SimpleNamespace(
        nodes=[Node(i) for i in range(3)], net={}, touched=set(), kinds={"tbf": True, "netem": False}
    )
    made.kinds["blackhole"] = True

    def shape(client, node, project, link, cut=()):
        made.net[node.name] = (link.rate_bits if link else None, sorted(cut))

    from monitor.runtime import wires

    monkeypatch.setattr(wires, "shape", shape)
    monkeypatch.setattr(wires, "kinds", lambda *where: made.kinds)
    given = [{"cpus": 0.5, "memory_bytes": 2**30}] * 3
    made.faults = NodeFaults(None, "p", made.nodes, given, [], made.touched)
    made.of = lambda text: faults.of({"FAULT": text}, SPEC)
    return made


def test_a_slow_node_gets_its_cpus_back(nodes):
    (slow,) = nodes.of("slow:2@1s,cpus=0.1")
    nodes.faults.strike(slow)
    assert [node.attrs["HostConfig"]["CpuQuota"] for node in nodes.nodes] == [50_000, 50_000, 10_000]
    nodes.faults.relieve(slow)
    assert [node.attrs["HostConfig"]["CpuQuota"] for node in nodes.nodes] == [50_000] * 3


def test_a_partition_cuts_both_ways_beside_a_link_and_goes_before_it(nodes):
    cut, link = nodes.of("partition:0,1|2@1s+2s; link:2@1s,rate=10mbit")
    nodes.faults.strike(cut)
    nodes.faults.strike(link)
    there = {"trainer-0": (None, ["10.0.0.2"]), "trainer-1": (None, ["10.0.0.2"])}
    assert nodes.net == there | {"trainer-2": (10_000_000, ["10.0.0.0", "10.0.0.1"])}
    nodes.faults.relieve(cut)
    assert nodes.net == {"trainer-0": (None, []), "trainer-1": (None, []), "trainer-2": (10_000_000, [])}
    nodes.faults.relieve(link)
    assert nodes.net["trainer-2"] == (None, [])
    assert nodes.touched == {"trainer-0", "trainer-1", "trainer-2"}  # whoever tidies up looks again


def test_a_node_that_no_group_names_reaches_all(nodes):
    nodes.faults.strike(nodes.of("partition:0|1@1s")[0])
    assert nodes.net == {"trainer-0": (None, ["10.0.0.1"]), "trainer-1": (None, ["10.0.0.0"])}


def test_a_node_that_is_restarted_gets_its_link_and_its_cut_back(nodes):
    """Its network is a new one, without what shaped the old."""
    cut, link, restart = nodes.of("partition:0|1@1s; link:1@1s,rate=10mbit; restart:1@2s")
    nodes.faults.strike(cut)
    nodes.faults.strike(link)
    nodes.net.clear()
    nodes.nodes[1].attrs["NetworkSettings"]["Networks"]["nodes"]["IPAddress"] = "10.0.0.9"
    nodes.faults.strike(restart)
    assert nodes.net == {"trainer-1": (10_000_000, ["10.0.0.0"]), "trainer-0": (None, ["10.0.0.9"])}


def test_a_node_that_came_back_by_itself_gets_its_link_back(nodes):
    """A run with RATE and RESTARTS whose node died: Docker starts it again, with nothing on its interface."""
    link = Link(10_000_000)
    given = [{"cpus": 0.5, "memory_bytes": 2**30}] * 3
    mended = NodeFaults(None, "p", nodes.nodes, given, [link, link, Link()], nodes.touched)
    mended.mend([True, False, False])
    assert nodes.net == {"trainer-1": (10_000_000, [])}


def test_a_restart_is_at_once(nodes):
    nodes.faults.strike(nodes.of("restart:1@1s")[0])
    assert [node.restarts for node in nodes.nodes] == [[], [0], []]


@pytest.mark.parametrize(
    ("text", "lacks", "says"),
    [
        ("slow:1@1s,cpus=0.5", (), "FAULT=slow:1@1s,cpus=0.5: the node has 0.5 cores; cpus below that would do"),
        (
            "link:1@1s,rate=10mbit,delay=5ms",
            (),
            "FAULT=link:1@1s,rate=10mbit,delay=5ms: the engine's kernel has no netem.*rate=10mbit alone would do",
        ),
        (
            "kill:1@1s; link:1@1s,delay=5ms",
            (),
            "FAULT=link:1@1s,delay=5ms: the engine's kernel has no netem.*rate=10mbit alone would do",
        ),
        (
            "link:1@1s,rate=10mbit",
            ("tbf",),
            "FAULT=link:1@1s,rate=10mbit: the engine's kernel has no tbf.*leave it out",
        ),
        ("partition:0|1@1s", ("blackhole",), "cannot be cut here.*freeze and kill would do"),
    ],
)
def test_what_these_nodes_cannot_have_is_refused_before_the_run(nodes, text, lacks, says):
    nodes.kinds |= dict.fromkeys(lacks, False)
    with pytest.raises(UserError, match=says):
        nodes.faults.refuse(nodes.of(text))


def test_what_they_can_have_is_not_refused(nodes):
    nodes.faults.refuse(
        nodes.of("slow:1@1s,cpus=0.4; link:1@1s,rate=10mbit; partition:0|1@1s; restart:2@2s; kill:0@1s")
    )


def test_progress_tells_the_end_of_what_lasts_alone():
    say = Console(record=True, width=200)
    progress = Progress(say, ["trainer-0"], 1)
    for fault, moment, error in (
        ("kill:0@1s", "begin", None),
        ("kill:0@1s", "end", None),
        ("freeze:0@1s+1s", "end", None),
        ("restart:0@1s", "end", "could not be taken back: the engine went away"),
    ):
        progress.take(events.Fault(rank=0, fault=fault, moment=moment, step=7, seconds=0.1, error=error))
    assert say.export_text().splitlines() == [
        "fault kill:0@1s begins after step 7",
        "fault freeze:0@1s+1s ends after step 7",
        "fault restart:0@1s ends after step 7: could not be taken back: the engine went away",
    ]


def test_a_result_names_its_faults_from_the_beginning(tmp_path):
    """A run whose orchestrator is killed has no other result: it must not pass for one without faults."""
    run = recorder(tmp_path, killed_at_five(), planned=faults.of({"FAULT": "kill:1@step=5"}, SPEC))
    none = {"step": None, "began_seconds": None, "ended_seconds": None, "error": None}
    said = json.loads((run.folder / "result.json").read_text())
    assert said["faults"] == [{"fault": "kill:1@step=5"} | none]
