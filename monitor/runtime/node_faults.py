"""Faults of a cluster's nodes: less CPU, another link, a cut, a restart. Each is read back when it is brought about."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from docker import DockerClient
from docker.models.containers import Container

from monitor.conditions.faults import SETTING, Fault
from monitor.conditions.links import Link
from monitor.engine import container_limits, sdk
from monitor.errors import UserError
from monitor.runtime import wires
from node.limits import Limits, wrong


class NodeFaults:
    """Of one run. `nodes`: its containers in order; `limits`, `links`: what the run holds them to, no links: empty.

    `touched`: names of containers whose network is not as it was; whoever tidies up looks there.
    """

    def __init__(
        self,
        client: DockerClient,
        project: str,
        nodes: Sequence[Container],
        limits: Sequence[Limits],
        links: Sequence[Link],
        touched: set[str],
    ):
        self._client, self._project, self._nodes, self._limits = client, project, nodes, limits
        self._touched = touched
        self._usual_links: list[Link | None] = list(links) or [None] * len(nodes)
        self._links = list(self._usual_links)  # as they are now
        self._groups: Sequence[Sequence[int]] = ()  # that do not reach each other
        self._cut: list[list[str]] = [[] for _ in nodes]  # addresses that each does not reach

    def refuse(self, faults: Sequence[Fault]) -> None:
        """Raise UserError for faults that these nodes, or their engine's kernel, cannot have."""
        for fault in faults:
            cpus = self._limits[fault.target]["cpus"] if fault.kind == "slow" else None
            if cpus is not None and fault.cpus >= cpus:
                raise UserError(f"{SETTING}={fault}: the node has {cpus:g} cores; cpus below that would do")
        links = [fault for fault in faults if fault.kind == "link"]
        cuts = [fault for fault in faults if fault.kind == "partition"]
        if links or cuts:
            kinds = wires.kinds(self._client, wires.image_of(self._nodes[0]), self._project)
            for fault in links:
                wires.refuse_unknown_kinds([fault.link], kinds, f"{SETTING}={fault}")
            if cuts and not kinds["blackhole"]:
                text = "a node's network cannot be cut here (no blackhole routes); freeze and kill would do"
                raise UserError(f"{SETTING}={cuts[0]}: {text}")

    def strike(self, fault: Fault) -> None:
        """Raises UserError."""
        node = self._nodes[fault.target]
        match fault.kind:
            case "slow":
                self._hold(node, Limits(cpus=fault.cpus, memory_bytes=self._limits[fault.target]["memory_bytes"]))
            case "link":
                usual = self._usual_links[fault.target]
                self._links[fault.target] = replace(fault.link, congestion=usual.congestion if usual else None)
                self._shape(fault.target)
            case "partition":
                self._part(fault.groups)
            case "restart":
                with sdk.guard():
                    node.restart(timeout=0)
                self._join(fault.target)

    def relieve(self, fault: Fault) -> None:
        """Raises UserError."""
        match fault.kind:
            case "slow":
                self._hold(self._nodes[fault.target], self._limits[fault.target])
            case "link":
                self._links[fault.target] = self._usual_links[fault.target]
                self._shape(fault.target)
            case "partition":
                self._part(())

    def _hold(self, node: Container, limits: Limits) -> None:
        with sdk.guard():
            node.reload()
            container_limits.put(node, limits)
            if problem := wrong(container_limits.now(node), limits):
                raise UserError(f"node {node.name}: {problem}")

    def mend(self, shaped: Sequence[bool]) -> None:
        """Shape again the links of nodes that were away: they came back without. `shaped`: what each says of itself.

        Raises UserError.
        """
        for node, is_shaped in enumerate(shaped):
            if not is_shaped:
                self._join(node)

    def _join(self, node: int) -> None:
        """The node's network is a new one, with nothing of what shaped the old, and its address may be another."""
        self._cut[node] = []
        link = self._links[node]
        if node not in self._part(self._groups) and link and link.shapes:
            self._shape(node)

    def _part(self, groups: Sequence[Sequence[int]]) -> list[int]:
        """Let the groups not reach each other, and all nodes but these each other; no groups: all reach all.

        Returns the nodes for which that was a change.
        """
        self._groups = groups
        group_of = {node: number for number, group in enumerate(groups) for node in group}
        before = self._cut
        with sdk.guard():
            addresses = [_address(node) for node in self._nodes] if groups else []
        self._cut = [
            [addresses[other] for other in group_of if node in group_of and group_of[other] != group_of[node]]
            for node in range(len(self._nodes))
        ]
        changed = [node for node, (old, new) in enumerate(zip(before, self._cut, strict=True)) if old != new]
        with ThreadPoolExecutor(max(1, len(changed))) as pool:
            list(pool.map(self._shape, changed))
        return changed

    def _shape(self, node: int) -> None:
        self._touched.add(str(self._nodes[node].name))
        wires.shape(self._client, self._nodes[node], self._project, self._links[node], self._cut[node])


def _address(container: Container) -> str:
    """In the cluster's network, the only one it is in."""
    container.reload()
    (network,) = container.attrs["NetworkSettings"]["Networks"].values()
    return network["IPAddress"]
