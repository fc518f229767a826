"""The conditions under which a run takes place: what each node may use and send meanwhile. They decide what it costs.

CPUS=0.5            every node of the run has half a core
CPUS=0.5,0.5,0.2    each node its own; what is not named is as the cluster was started with
RATE=100mbit        links in the same way, see links.py
FAULT=kill:2@10s    what happens to ranks and nodes meanwhile, see faults.py
"""

from dataclasses import dataclass

from monitor.conditions import faults, links
from monitor.conditions.amounts import cores, memory
from monitor.conditions.faults import OF_RANKS, Fault
from monitor.conditions.links import Link
from node.limits import Limits
from trainer.spec import RunSpec, SpecError

SETTINGS = {
    "CPUS": "cores per node during the run: one number, or one for each node as 0.5,0.5,0.2 (lists of a sweep are then "
    "parted by slashes); default: the cluster's",
    "MEMORY": "memory per node during the run, in the same way, as 2g; default: the cluster's",
    **links.SETTINGS,
    **faults.SETTINGS,
}


class Unavailable(SpecError):
    """This runtime cannot do it, another can."""


@dataclass(frozen=True)
class Conditions:
    """Of each node of a run. `cpus` and `memory`: words, None where nothing was said; `links`: empty without any."""

    cpus: tuple[str, ...] | None = None
    memory: tuple[str, ...] | None = None
    links: tuple[Link, ...] = ()
    faults: tuple[Fault, ...] = ()

    @classmethod
    def of(cls, settings: dict[str, str], spec: RunSpec, runtime: str) -> "Conditions":
        """From `settings`, of which only SETTINGS are looked at. Raises SpecError, Unavailable."""
        nodes, expected = spec.nodes, faults.of(settings, spec)
        given = {name: settings[name] for name in SETTINGS if name in settings and name != faults.SETTING}
        if given and runtime == "local":
            hint = "processes of this machine have no limits and links of their own; RUNTIME=docker would do"
            raise Unavailable(*next(iter(given.items())), hint)
        if runtime == "local" and (of_node := next((f for f in expected if f.kind not in OF_RANKS), None)):
            hint = f"local ranks can be the target of {' and '.join(OF_RANKS)} only; RUNTIME=docker would do"
            raise Unavailable(faults.SETTING, of_node, hint)
        each = {name: _each(name, text, nodes) for name, text in given.items()}
        words = [{name: each[name][node] for name in links.SETTINGS if name in each} for node in range(nodes)]
        return cls(each.get("CPUS"), each.get("MEMORY"), tuple(links.link(own) for own in words if own), expected)

    def limits(self, node: int, own: Limits, host_cores: int, host_memory: int) -> Limits:
        """What this node is to be held to; `own`: what the cluster gave it. Raises UserError for more than there is."""
        wanted = dict(own)
        if self.cpus:
            wanted["cpus"] = cores(self.cpus[node], 1, host_cores)
        if self.memory:
            wanted["memory_bytes"] = memory(self.memory[node], 1, host_memory)
        return wanted


def _each(name: str, text: str, nodes: int) -> tuple[str, ...]:
    """One value a node."""
    values = tuple(part.strip() for part in text.split(","))
    if len(values) not in (1, nodes) or not all(values):
        raise SpecError(name, text, f"one value, or {nodes} parted by commas, one for each node")
    return values * nodes if len(values) == 1 else values
