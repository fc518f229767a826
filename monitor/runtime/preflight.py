"""Checks of a cluster's nodes before a run starts on them. Each names the one thing to mend."""

from collections.abc import Mapping, Sequence

from docker.models.containers import Container

from monitor.engine import container_limits, naming
from monitor.engine.images import code_hash
from monitor.engine.inspection import NodeFacts
from monitor.errors import Busy, UserError
from node import limits
from node.disk import LEAST_FREE_BYTES, MIB

LEAST_SHM_BYTES = 64 << 20


def check_count(nodes: int, present: int, project: str) -> None:
    """Raise UserError when the cluster has too few nodes."""
    if nodes > present:
        larger = f"make cluster-up NODES={nodes}{naming.words(project)}"
        raise UserError(f"NODES={nodes}: the cluster has {present}; `{larger}` makes it larger")


def check_running(containers: Mapping[str, Container], names: Sequence[str], project: str) -> None:
    """Raise UserError for a node that is missing or not running."""
    words = naming.words(project)
    for name in names:
        container = containers.get(name)
        if container is None or container.status != "running":
            state = container.status if container else "missing"
            mends = f"`make cluster-up{words}` mends it, `make logs{words}` shows why"
            raise UserError(f"node {name} is {state}; {mends}")


def check_node(name: str, container: Container, facts: NodeFacts, names: Sequence[str], project: str) -> None:
    """Raise UserError with what keeps this node from taking part, Busy when a run holds it.

    `names`: all nodes of the run, which must reach each other by name.
    """
    words = naming.words(project)
    again = f"`make cluster-down cluster-up{words}` starts the cluster afresh"
    if facts["run"]:
        raise Busy(facts["run"])
    if facts["code"] != code_hash():
        raise UserError(
            f"the cluster runs an older image (code {facts['code'][:12] or 'unknown'}, this folder has "
            f"{code_hash()[:12]}); `make cluster-up{words}` rebuilds it in seconds"
        )
    if any(address.startswith("127.") for address in facts["addresses"]):
        raise UserError(f"node {name}: its own name resolves to a loopback address {facts['addresses']}; {again}")
    if peers := unresolved(facts, names):
        raise UserError(f"node {name} cannot resolve {', '.join(peers)}; {again}")
    if facts["shm_bytes"] < LEAST_SHM_BYTES:
        raise UserError(f"node {name}: /dev/shm has {facts['shm_bytes']} bytes, 64 MiB are needed; {again}")
    free = facts["free_bytes"]
    if free is not None and free < LEAST_FREE_BYTES:
        raise UserError(
            f"the engine's disk has {free // MIB} MiB left, {LEAST_FREE_BYTES // MIB} are the least; "
            f"`make clean{words}` removes what runs have left, `docker system df` shows what else is there"
        )
    inside: limits.Limits = {"cpus": facts["cpu_limit_cores"], "memory_bytes": facts["memory_limit_bytes"]}
    if problem := limits.wrong(inside, container_limits.now(container)):
        raise UserError(f"node {name}: {problem}; {again}")


def why_not_ready(name: str, facts: NodeFacts, names: Sequence[str]) -> str | None:
    """Why a node that answers cannot take part in a restart yet; None when it can."""
    if facts["run"]:
        return f"node {name} is still held by what was lost"
    peers = unresolved(facts, names)
    return f"node {name} cannot resolve {', '.join(peers)}" if peers else None


def unresolved(facts: NodeFacts, names: Sequence[str]) -> list[str]:
    """Those of these nodes whose names this one cannot resolve."""
    return [name for name in names if not facts["peers"].get(name)]
