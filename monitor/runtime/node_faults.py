"""Faults of a cluster's nodes: less CPU, another link, a cut, a restart. Each is read back when it is brought about."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from docker import DockerClient

from monitor.conditions.faults import SETTING, Fault
from monitor.conditions.links import Link
from monitor.engine import container_limits, sdk
from monitor.errors import UserError
from monitor.runtime import wires
from node import limits
from node.limits import Limits


class NodeFaults:
    """Of one run. `nodes`: its containers in order; `given`, `links`: what the run holds them to, no links: empty.

    `touched`: names of containers whose network is not as it was; whoever tidies up looks there.
    """

    def __init__(
        self,
        client: DockerClient,
        project: str,
        nodes: Sequence,
        given: Sequence[Limits],
        links: Sequence[Link],
        touched: set[str],
    ):
        self._client, self._project, self._nodes, self._given = client, project, nodes, given
        self._touched = touched
        self._own = list(links) or [None] * len(nodes)
        self._links: list[Link | None] = list(self._own)  # as they are now
        self._groups: Sequence[Sequence[int]] = ()  # that do not reach each other
        self._cut: list[list[str]] = [[] for _ in nodes]  # addresses that each does not reach

    def refuse(self, faults: Sequence[Fault]) -> None:
        """Raise UserError for faults that these nodes, or their engine's kernel, cannot have."""
        for fault in faults:
            cpus = self._given[fault.target]["cpus"] if fault.kind == "slow" else None
            if cpus is not None and fault.cpus >= cpus:
                raise UserError(f"{SETTING}={fault}: the node has {cpus:g} cores; cpus below that would do")
        wanted = [fault for fault in faults if fault.kind == "link"]
        cuts = [fault for fault in faults if fault.kind == "partition"]
        if wanted or cuts:
            there = wires.kinds(self._client, self._nodes[0].image.id, self._project)
            for fault in wanted:
                wires.refuse_unknown_kinds([fault.link], there, f"{SETTING}={fault}")
            if cuts and not there["blackhole"]:
                text = "a node's network cannot be cut here (no blackhole routes); freeze and kill would do"
                raise UserError(f"{SETTING}={cuts[0]}: {text}")

    def strike(self, fault: Fault) -> None:
        """Raises UserError."""
        node = self._nodes[fault.target]
        match fault.kind:
            case "slow":
                self._hold(node, self._given[fault.target] | {"cpus": fault.cpus})
            case "link":
                own = self._own[fault.target]
                self._links[fault.target] = replace(fault.link, congestion=own and own.congestion)
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
                self._hold(self._nodes[fault.target], self._given[fault.target])
            case "link":
                self._links[fault.target] = self._own[fault.target]
                self._shape(fault.target)
            case "partition":
                self._part(())

    def _hold(self, node, wanted: Limits) -> None:
        with sdk.guard():
            node.reload()
            container_limits.put(node, wanted)
            if problem := limits.wrong(container_limits.now(node), wanted):
                raise UserError(f"node {node.name}: {problem}")

    def mend(self, shaped: Sequence[bool]) -> None:
        """Shape again the links of nodes that were away: they came back without. `shaped`: what each says of itself.

        Raises UserError.
        """
        for number, there in enumerate(shaped):
            if not there:
                self._join(number)

    def _join(self, number: int) -> None:
        """The node's network is a new one, with nothing of what shaped the old, and its address may be another."""
        self._cut[number] = []
        link = self._links[number]
        if number not in self._part(self._groups) and link and link.shapes:
            self._shape(number)

    def _part(self, groups: Sequence[Sequence[int]]) -> list[int]:
        """Let the groups not reach each other, and all nodes but these each other; no groups: all reach all.

        Returns the nodes for which that was a change.
        """
        self._groups = groups
        side = {node: i for i, group in enumerate(groups) for node in group}
        before = self._cut
        with sdk.guard():
            where = [_address(node) for node in self._nodes] if groups else []
        self._cut = [
            [where[other] for other in side if node in side and side[other] != side[node]]
            for node in range(len(self._nodes))
        ]
        changed = [node for node, (old, new) in enumerate(zip(before, self._cut, strict=True)) if old != new]
        with ThreadPoolExecutor(max(1, len(changed))) as pool:
            list(pool.map(self._shape, changed))
        return changed

    def _shape(self, node: int) -> None:
        self._touched.add(self._nodes[node].name)
        wires.shape(self._client, self._nodes[node], self._project, self._links[node], self._cut[node])


def _address(container) -> str:
    """In the cluster's network, the only one it is in."""
    container.reload()
    (network,) = container.attrs["NetworkSettings"]["Networks"].values()
    return network["IPAddress"]
