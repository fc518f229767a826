"""The settings of `syncbed up`: what they mean, and whether this machine can do it."""

from dataclasses import dataclass

from monitor.conditions.amounts import cores, memory, whole
from monitor.engine import container_limits, images
from monitor.engine.images import Images
from monitor.engine.naming import project
from monitor.errors import UserError, refuse_unknown
from monitor.text import plural
from trainer.spec import MAX_NODES

SHM_BYTES = 256 * 2**20  # /dev/shm of a node
SETTINGS = {
    "NODES": f"how many trainer nodes, 1..{MAX_NODES}",
    "CPUS": "cores per node (default: the host's cores over NODES)",
    "MEMORY": "memory per node, such as 2g or 1500m (default: 80 % of the host's over NODES)",
    "PROJECT": "name of the cluster: containers, network and volumes carry it",
    "PROMETHEUS_PORT": "port of Prometheus on 127.0.0.1",
    "GRAFANA_PORT": "port of Grafana on 127.0.0.1",
    **images.SETTINGS,
}
DOWN_SETTINGS = {"PROJECT": SETTINGS["PROJECT"]}
LOG_SETTINGS = SETTINGS | {"NODE": "one service, such as trainer-2", "FOLLOW": "1: go on until Ctrl-C"}
DEFAULT_PORTS = {"PROMETHEUS_PORT": 9090, "GRAFANA_PORT": 3000}


@dataclass(frozen=True)
class ClusterSettings:
    """A cluster somebody asked for. Built by `from_settings`, which raises UserError for what cannot be."""

    nodes: int
    cpus: float  # cores per node
    memory_bytes: int  # per node
    project: str
    prometheus_port: int
    grafana_port: int
    images: dict[str, str]  # the settings that images.ensure takes

    @classmethod
    def from_settings(cls, settings: dict[str, str], host_cores: int, host_memory: int) -> "ClusterSettings":
        """`settings`: all values text. `host_memory` in bytes."""
        refuse_unknown(settings, SETTINGS)
        nodes = whole("NODES", settings.get("NODES", "4"), 1, MAX_NODES)
        cluster = cls(
            nodes=nodes,
            cpus=cores(settings.get("CPUS"), nodes, host_cores),
            memory_bytes=memory(settings.get("MEMORY"), nodes, host_memory),
            project=project(settings),
            prometheus_port=_port("PROMETHEUS_PORT", settings),
            grafana_port=_port("GRAFANA_PORT", settings),
            images={name: value for name, value in settings.items() if name in images.SETTINGS},
        )
        if cluster.prometheus_port == cluster.grafana_port:
            raise UserError(f"GRAFANA_PORT={cluster.grafana_port}: Prometheus has it; give two different ports")
        return cluster

    def node_names(self) -> list[str]:
        return [f"trainer-{rank}" for rank in range(self.nodes)]

    def variables(self, tags: Images) -> dict[str, str]:
        """What compose.yaml takes from its environment."""
        variables = {
            "NODES": str(self.nodes),
            "CPU_QUOTA": str(round(self.cpus * container_limits.PERIOD)),
            "MEMORY": str(self.memory_bytes),
            "SHM_SIZE": str(SHM_BYTES),
            "PROMETHEUS_PORT": str(self.prometheus_port),
            "GRAFANA_PORT": str(self.grafana_port),
            "TRAINER_IMAGE": tags.trainer,
            "PROMETHEUS_IMAGE": tags.prometheus,
        }
        if tags.grafana:
            variables["GRAFANA_IMAGE"] = tags.grafana
        return variables

    def stated(self) -> str:
        """One line: what each node gets."""
        each = f"{plural(self.cpus, 'core')} and {self.memory_bytes / 2**30:.2f} GiB each"
        return f"{plural(self.nodes, 'node')}, {each} (CPUS= and MEMORY= change it)"


def _port(name: str, settings: dict[str, str]) -> int:
    return whole(name, settings.get(name, str(DEFAULT_PORTS[name])), 1, 65535)
