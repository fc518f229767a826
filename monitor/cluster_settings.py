"""The words of `syncbed up`: what they mean, and whether this machine can do it."""

import re
import socket
from dataclasses import dataclass

from monitor import images, limits
from monitor.engine import DEFAULT_PROJECT
from monitor.errors import UserError, refuse_unknown
from trainer.spec import MAX_NODES

SHM_BYTES = 256 * 2**20  # /dev/shm of a node
_SHARE = 0.8  # of the host's memory, over all nodes; the rest is for Prometheus, Grafana and the host
_LEAST_MEMORY = 512 * 2**20  # torch alone takes 300 MiB
_UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30}
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
LOG_SETTINGS = {**SETTINGS, "NODE": "one service, such as trainer-2", "FOLLOW": "1: go on until Ctrl-C"}
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
        made = cls(
            nodes=nodes,
            cpus=cores(settings.get("CPUS"), nodes, host_cores),
            memory_bytes=memory(settings.get("MEMORY"), nodes, host_memory),
            project=project(settings),
            prometheus_port=whole(
                "PROMETHEUS_PORT", settings.get("PROMETHEUS_PORT", str(DEFAULT_PORTS["PROMETHEUS_PORT"])), 1, 65535
            ),
            grafana_port=whole(
                "GRAFANA_PORT", settings.get("GRAFANA_PORT", str(DEFAULT_PORTS["GRAFANA_PORT"])), 1, 65535
            ),
            images={name: value for name, value in settings.items() if name in images.SETTINGS},
        )
        if made.prometheus_port == made.grafana_port:
            raise UserError(f"GRAFANA_PORT={made.grafana_port}: Prometheus has it; give two different ports")
        return made

    def node_names(self) -> list[str]:
        return [f"trainer-{rank}" for rank in range(self.nodes)]

    def variables(self, made: images.Images) -> dict[str, str]:
        """What compose.yaml takes from its environment."""
        return {
            "NODES": str(self.nodes),
            "CPU_QUOTA": str(round(self.cpus * limits.PERIOD)),
            "MEMORY": str(self.memory_bytes),
            "SHM_SIZE": str(SHM_BYTES),
            "PROMETHEUS_PORT": str(self.prometheus_port),
            "GRAFANA_PORT": str(self.grafana_port),
            "TRAINER_IMAGE": made.trainer,
            "PROMETHEUS_IMAGE": made.prometheus,
            **({"GRAFANA_IMAGE": made.grafana} if made.grafana else {}),
        }

    def stated(self) -> str:
        """One line: what each node gets."""
        each = f"{self.cpus:g} core{'s' if self.cpus != 1 else ''} and {self.memory_bytes / 2**30:.2f} GiB each"
        return f"{self.nodes} node{'s' if self.nodes > 1 else ''}, {each} (CPUS= and MEMORY= change it)"


def project(settings: dict[str, str]) -> str:
    """The cluster's name. Raises UserError for what Compose would not take."""
    name = settings.get("PROJECT", DEFAULT_PROJECT)
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,39}", name):
        raise UserError(
            f"PROJECT={name}: lower-case letters, digits, - and _, starting with a letter or digit, at most 40"
        )
    return name


def check_port(setting: str, port: int, holder: str = "another program", address: str = "127.0.0.1") -> None:
    """Raises UserError when something listens on this port already; `holder` says what, if known."""
    if not _free(port, address):
        near = next((p for p in range(port + 1, min(port + 200, 65536)) if _free(p, address)), None)
        raise UserError(f"{setting}={port}: taken by {holder}" + (f"; {setting}={near} is free" if near else ""))


def _free(port: int, address: str) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except PermissionError:
            return True  # a port below 1024: only the engine may take it
        except OSError:
            return False
        return True


def whole(name: str, text: str, low: int, high: int) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or not low <= int(text) <= high:
        raise UserError(f"{name}={text}: a whole number from {low} to {high}")
    return int(text)


def cores(text: str | None, nodes: int, host: int) -> float:
    """CPUS= of a node, by default an equal share of the host's. Raises UserError."""
    if text is None:
        return int(1000 * host / nodes) / 1000  # down: the shares together are never more than the host
    wanted = f"CPUS={text}: cores per node, a number from 0.05 to the host's {host}"
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?|\.[0-9]+", text) or not 0.05 <= float(text) <= host:
        raise UserError(wanted)
    return round(float(text), 3)


def memory(text: str | None, nodes: int, host: int) -> int:
    """MEMORY= of a node in bytes, by default an equal share of most of the host's. Raises UserError."""
    least, most = _LEAST_MEMORY // 2**20, host // 2**20
    if text is None:
        share = int(host * _SHARE / nodes) // 2**20
        if share < least:
            fit = max(1, share * nodes // least)
            raise UserError(f"NODES={nodes}: {share} MiB of memory a node, {least} are needed; NODES={fit} would fit")
        return share * 2**20
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]+)?)([bkmg]?)(?:i?b)?", text.strip().lower())
    size = int(float(match[1]) * _UNITS[match[2]]) if match else 0
    if not _LEAST_MEMORY <= size <= host:
        raise UserError(f"MEMORY={text}: memory per node from {least}m to the host's {most}m, such as 2g or 1500m")
    return size // 4096 * 4096  # the kernel counts pages
