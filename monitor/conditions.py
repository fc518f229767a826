"""The conditions under which a run takes place: what each node may use meanwhile. They decide no result, only its cost.

CPUS=0.5            every node of the run has half a core
CPUS=0.5,0.5,0.2    each node its own; what is not named is as the cluster was started with
"""

from dataclasses import dataclass

from monitor.cluster_settings import cores, memory
from monitor.limits import Limits
from trainer.spec import SpecError

SETTINGS = {
    "CPUS": "cores per node during the run: one number, or one for each node as 0.5,0.5,0.2; default: the cluster's",
    "MEMORY": "memory per node during the run, in the same way, as 2g; default: the cluster's",
}


class Unavailable(SpecError):
    """This runtime cannot do it, another can."""


@dataclass(frozen=True)
class Conditions:
    """The words of a run, one value for each of its nodes; None where nothing was said."""

    cpus: tuple[str, ...] | None = None
    memory: tuple[str, ...] | None = None

    @classmethod
    def of(cls, settings: dict[str, str], nodes: int, runtime: str) -> "Conditions":
        """From `settings`, of which only CPUS and MEMORY are looked at. Raises SpecError, Unavailable."""
        given = {name: settings[name] for name in SETTINGS if name in settings}
        for name, text in given.items():
            if runtime == "local":
                raise Unavailable(name, text, "processes of this machine have no limits; RUNTIME=docker would do")
        return cls(*(_each(name, given.get(name), nodes) for name in SETTINGS))

    def limits(self, node: int, own: Limits, host_cores: int, host_memory: int) -> Limits:
        """What this node is to be held to; `own`: what the cluster gave it. Raises UserError for more than there is."""
        wanted = dict(own)
        if self.cpus:
            wanted["cpus"] = cores(self.cpus[node], 1, host_cores)
        if self.memory:
            wanted["memory_bytes"] = memory(self.memory[node], 1, host_memory)
        return wanted


def _each(name: str, text: str | None, nodes: int) -> tuple[str, ...] | None:
    """One value a node."""
    if text is None:
        return None
    values = tuple(part.strip() for part in text.split(","))
    if len(values) not in (1, nodes) or not all(values):
        raise SpecError(name, text, f"one value, or {nodes} parted by commas, one for each node")
    return values * nodes if len(values) == 1 else values
