"""What a node says of itself, from inside."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypedDict

from docker.models.containers import Container

from monitor.engine.naming import DEFAULT_PROJECT, PROJECT_LABEL, words
from monitor.engine.sdk import guard, one_line
from monitor.errors import RunFailed

CHECK = ["python", "-m", "node.launcher", "check"]
ATTEMPTS = 5  # Docker 20.10 has been seen to lose all output of a command that went well


class NodeFacts(TypedDict):
    """What node/facts.py prints inside a node, as JSON."""

    hostname: str
    addresses: list[str]  # of its own name
    peers: dict[str, list[str]]  # addresses of every node, by name; empty where it cannot resolve the name
    rank: int
    world_size: int
    cpu_limit_cores: float | None
    memory_limit_bytes: int | None
    shm_bytes: int  # of /dev/shm
    free_bytes: int | None  # left on the engine's disk, where the volume of runs is
    code: str  # hash of the code in its image
    data: list[str]  # folders of data that are prepared there
    free_port: int
    shaped: bool  # whether what it sends is shaped, or cut off
    run: str | None  # the run that holds it
    leftovers: list[int]  # processes that nobody held, which it has ended


def node_facts(container: Container) -> NodeFacts:
    """What `node.launcher check` prints inside a node. Raises RunFailed when the node cannot say it."""
    code: int | None = None
    out: bytes | None = None
    err: bytes | None = None
    with guard():
        for _ in range(ATTEMPTS):
            answer: Any = container.exec_run(CHECK, demux=True)  # of bytes, which the SDK's types do not say
            code, (out, err) = answer
            if out or code:
                break
    try:
        return json.loads(out or b"")
    except ValueError:
        reason = one_line((err or out or b"").decode(errors="replace"))
        mends = f"make cluster-up{words(container.labels.get(PROJECT_LABEL, DEFAULT_PROJECT))} mends it"
        raise RunFailed(f"{container.name} does not answer: {reason} (exit code {code}); {mends}") from None


def facts_of_nodes(nodes: Sequence[Container]) -> list[NodeFacts]:
    """The facts of several nodes, asked all at once, in their order. Raises RunFailed."""
    with ThreadPoolExecutor(len(nodes)) as pool:
        return list(pool.map(node_facts, nodes))
