"""What nodes may use during a run: words become limits, limits are put on containers and waited for inside."""

from types import SimpleNamespace

import pytest

from monitor.capabilities import RUNTIMES
from monitor.conditions.conditions import Conditions
from monitor.engine import container_limits
from monitor.errors import UserError
from node import cgroup, limits
from trainer.spec import RunSpec, SpecError

GIB = 2**30
OWN = {"cpus": 0.5, "memory_bytes": 2 * GIB}


def each(nodes: int, **words) -> list[dict]:
    made = Conditions.of(words, RunSpec(nodes=nodes, batch=nodes), RUNTIMES["docker"])
    return [made.limits(node, OWN, host_cores=4, host_memory=8 * GIB) for node in range(nodes)]


def test_one_value_is_for_all_and_several_are_for_each():
    assert each(3, CPUS="0.25") == [OWN | {"cpus": 0.25}] * 3
    assert [one["cpus"] for one in each(3, CPUS="0.5, 0.5,.2")] == [0.5, 0.5, 0.2]
    assert each(2, MEMORY="1g,512m") == [OWN | {"memory_bytes": GIB}, OWN | {"memory_bytes": GIB // 2}]


def disk(nodes: int, ranks: int, **words) -> list[int]:
    made = Conditions.of(words, RunSpec(nodes=nodes, batch=nodes), RUNTIMES["docker"])
    return [made.disk_bytes(node, ranks) for node in range(nodes)]


def test_what_a_node_may_hold_on_the_disk():
    assert disk(2, ranks=1) == [8 * GIB] * 2 and disk(1, ranks=4) == [32 * GIB]
    assert disk(2, ranks=4, DISK="500m") == [500 << 20] * 2
    assert disk(3, ranks=1, DISK="1g, 2G,1.5gb") == [GIB, 2 * GIB, 3 * GIB // 2]


@pytest.mark.parametrize("text", ["0", "1k", "-1g", "8 GB of it", "1e9", "2000000g"])
def test_what_no_node_may_hold_on_the_disk_is_one_line(text):
    with pytest.raises(UserError, match=rf"^DISK={text}: what a node may hold in /runs, from 1m to \S+, such as 8g"):
        disk(2, ranks=1, DISK=text)


def test_what_is_not_named_is_the_clusters():
    assert each(2) == [OWN, OWN]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"CPUS": "0.5,0.5"}, "CPUS=0.5,0.5: one value, or 3 parted by commas, one for each node"),
        ({"CPUS": "0.5,,1"}, "CPUS=0.5,,1: one value, or 3"),
        ({"CPUS": ""}, "CPUS=: one value, or 3"),
        ({"CPUS": "1,1,5"}, "CPUS=5: cores per node, a number from 0.05 to the host's 4"),
        ({"CPUS": "fast"}, "CPUS=fast: cores per node"),
        ({"MEMORY": "100m"}, "MEMORY=100m: memory per node from 512m to the host's 8192m"),
    ],
)
def test_what_cannot_be_is_one_line(words, says):
    with pytest.raises((SpecError, UserError)) as error:
        each(3, **words)
    assert str(error.value).startswith(says)
    assert "\n" not in str(error.value)


def test_processes_of_this_machine_have_no_limits():
    with pytest.raises(SpecError, match=r"CPUS=0.5: processes of this machine have no .*RUNTIME=docker would do"):
        Conditions.of({"CPUS": "0.5"}, RunSpec(nodes=2, batch=2), RUNTIMES["local"])
    assert Conditions.of({}, RunSpec(nodes=2, batch=2), RUNTIMES["local"]) == Conditions()


class Container:
    """A running node, as the docker SDK shows it."""

    def __init__(self, quota=50_000, memory=2 * GIB, **labels):
        self.labels = {"syncbed.cpu_quota": "50000", "syncbed.memory": str(2 * GIB)} | labels
        self.attrs = {"HostConfig": {"CpuQuota": quota, "CpuPeriod": 100_000, "Memory": memory}}
        self.updates = []

    def update(self, **changes):
        self.updates.append(changes)
        new = {"CpuQuota": changes["cpu_quota"], "CpuPeriod": changes["cpu_period"], "Memory": changes["mem_limit"]}
        self.attrs["HostConfig"] |= new

    def reload(self):
        """It shows what is there already."""


def test_a_limit_of_cores_is_one_as_well_as_a_quota_is():
    service = Container(quota=0, memory=GIB)
    service.attrs["HostConfig"] |= {"CpuPeriod": 0, "NanoCpus": 1_500_000_000}  # as compose's `cpus: 1.5`
    assert container_limits.now(service) == {"cpus": 1.5, "memory_bytes": GIB}


def test_limits_are_put_on_and_taken_back():
    node = Container()
    assert container_limits.original(node) == container_limits.now(node) == OWN
    assert container_limits.put(node, OWN | {"cpus": 0.2})
    assert container_limits.now(node) == OWN | {"cpus": 0.2}
    assert container_limits.put(node, container_limits.original(node))
    assert container_limits.now(node) == OWN
    assert not container_limits.put(node, OWN)  # nothing to do
    memory = {"mem_limit": 2 * GIB, "memswap_limit": 2 * GIB}
    assert node.updates == [{"cpu_period": 100_000, "cpu_quota": quota} | memory for quota in (20_000, 50_000)]


def test_a_node_of_an_older_cluster_keeps_what_it_has():
    node = Container(quota=0)
    node.labels.clear()
    assert container_limits.original(node) == {"cpus": None, "memory_bytes": 2 * GIB}
    assert not container_limits.put(node, container_limits.original(node))


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (OWN, None),
        (OWN | {"cpus": 0.505}, None),
        (OWN | {"memory_bytes": 2 * GIB - 4096}, None),
        (OWN | {"cpus": 0.2}, "CPUS=0.5 was asked for, 0.2 is in force"),
        (OWN | {"cpus": None}, "CPUS=0.5 was asked for, None is in force"),
        (OWN | {"memory_bytes": GIB}, "MEMORY=2147483648 was asked for, 1073741824 is in force"),
    ],
)
def test_what_is_in_force_is_held_against_what_was_asked(found, says):
    assert limits.wrong(found, OWN) == says


def seen_inside(monkeypatch, *cores):
    """The node's CPU limit at each look; the last one stays."""
    left = list(cores)

    def read():
        return SimpleNamespace(cpu_limit_cores=left.pop(0) if len(left) > 1 else left[0], memory_limit_bytes=2 * GIB)

    monkeypatch.setattr(cgroup, "read", read)
    return left


def test_inside_the_node_limits_are_waited_for(monkeypatch):
    left = seen_inside(monkeypatch, 0.5, 0.5, 0.2)
    assert limits.await_inside(OWN | {"cpus": 0.2}) is None
    assert left == [0.2]


def test_limits_that_do_not_come_are_said(monkeypatch):
    monkeypatch.setattr(limits, "SECONDS", 0.0)
    seen_inside(monkeypatch, 0.5)
    assert limits.await_inside(OWN | {"cpus": 0.2}) == "CPUS=0.2 was asked for, 0.5 is in force"
