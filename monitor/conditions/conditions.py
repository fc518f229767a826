"""The conditions under which a run takes place: what each node may use and send meanwhile. They decide what it costs.

CPUS=0.5            every node of the run has half a core
CPUS=0.5,0.5,0.2    each node its own; what is not named is as the cluster was started with
RATE=100mbit        links in the same way, see links.py
FAULT=kill:2@10s    what happens to ranks and nodes meanwhile, see faults.py
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from monitor.capabilities import Capabilities, runtimes_with
from monitor.conditions import faults, links
from monitor.conditions.amounts import cores, disk, memory
from monitor.conditions.faults import OF_RANKS, Fault
from monitor.conditions.links import Link
from node.limits import Limits
from trainer.spec import RunSpec, SpecError

RANK_DISK_BYTES = 8 << 30  # of a node for each of its ranks: ten checkpoints of the largest model, not fetched yet
SETTINGS = {
    "CPUS": "cores per node during the run: one number, or one for each node as 0.5,0.5,0.2 (lists of a sweep are then "
    "parted by slashes); default: the cluster's",
    "MEMORY": "memory per node during the run, in the same way, as 2g; default: the cluster's",
    "DISK": "what a node may hold in the volume of runs, in the same way; default: 8g for each of its ranks",
    **links.SETTINGS,
    **faults.SETTINGS,
}


class Unavailable(SpecError):
    """This runtime cannot do it, another can."""


@dataclass(frozen=True)
class Conditions:
    """Of a run's nodes. `cpus`, `memory`, `disk`: a text per node, None without any. `links`: empty without any."""

    cpus: tuple[str, ...] | None = None
    memory: tuple[str, ...] | None = None
    disk: tuple[str, ...] | None = None
    links: tuple[Link, ...] = ()
    faults: tuple[Fault, ...] = ()

    @classmethod
    def of(cls, settings: Mapping[str, str], spec: RunSpec, runtime: Capabilities) -> "Conditions":
        """From `settings`, of which only SETTINGS are looked at. Raises SpecError, Unavailable."""
        struck = faults.of(settings, spec)
        texts = {name: settings[name] for name in SETTINGS if name in settings and name != faults.SETTING}
        _refuse_impossible(texts, struck, runtime)
        values = {name: _per_node(name, text, spec.nodes) for name, text in texts.items()}
        link_values = {name: values[name] for name in links.SETTINGS if name in values}
        node_settings = [{name: value[node] for name, value in link_values.items()} for node in range(spec.nodes)]
        return cls(
            values.get("CPUS"),
            values.get("MEMORY"),
            values.get("DISK"),
            tuple(link for one in node_settings if (link := links.link(one))),
            struck,
        )

    def limits(self, node: int, default: Limits, host_cores: int, host_memory: int) -> Limits:
        """The limits of a node during the run; `default`: those that the cluster gave it.

        Raises UserError for more than the host has.
        """
        limits = default.copy()
        if self.cpus:
            limits["cpus"] = cores(self.cpus[node], 1, host_cores)
        if self.memory:
            limits["memory_bytes"] = memory(self.memory[node], 1, host_memory)
        return limits

    def disk_bytes(self, node: int, ranks: int) -> int:
        """What a node with so many ranks may hold in the volume of runs. Raises UserError."""
        return disk(self.disk[node]) if self.disk else RANK_DISK_BYTES * ranks


def _refuse_impossible(texts: Mapping[str, str], struck: Sequence[Fault], runtime: Capabilities) -> None:
    """Raise Unavailable for what this runtime cannot bring about."""
    if texts and runtime.lacks_limits:
        name, text = next(iter(texts.items()))
        others = runtimes_with(lambda other: other.has_limits)
        raise Unavailable(name, text, f"{runtime.lacks_limits}; {others} would do")
    of_a_node = next((fault for fault in struck if fault.kind not in OF_RANKS), None)
    if of_a_node and not runtime.faults_of_nodes:
        others = runtimes_with(lambda other: other.faults_of_nodes)
        kinds = " and ".join(OF_RANKS)
        raise Unavailable(
            faults.SETTING, of_a_node, f"{runtime.name} ranks can be the target of {kinds} only; {others} would do"
        )


def _per_node(name: str, text: str, nodes: int) -> tuple[str, ...]:
    """One value for each node. Raises SpecError."""
    values = tuple(part.strip() for part in text.split(","))
    if len(values) not in (1, nodes) or not all(values):
        raise SpecError(name, text, f"one value, or {nodes} parted by commas, one for each node")
    return values * nodes if len(values) == 1 else values
