"""Processes in nodes that fork ranks, so that a run's first step comes soon: see node/warm.py."""

from collections.abc import Mapping
from contextlib import suppress

from docker import DockerClient
from docker.models.containers import Container

from monitor.engine.inspection import NodeFacts
from monitor.engine.sdk import guard
from monitor.errors import UserError
from node import warm

HIDDEN_PYTHON = "hidden-python"  # of the node's image: the node's user cannot look into it
BYTES = 320 << 20  # that each one takes of the machine's memory, with a CUDA build of torch
SHARE = 0.25  # of the machine's memory that they may take together


def warm_up(client: DockerClient, nodes: Mapping[Container, NodeFacts]) -> None:
    """Start one in each node that has none, where memory allows it. Never raises: without them a run begins later.

    Returns at once. Importing torch takes seconds.
    """
    cold = [node for node, facts in nodes.items() if not facts["warm"] and _has_room(facts)]
    with suppress(UserError), guard():
        if cold and len(nodes) * BYTES <= SHARE * client.info()["MemTotal"]:
            for node in cold:
                node.exec_run(warm.warm_command(HIDDEN_PYTHON), detach=True)


def _has_room(facts: NodeFacts) -> bool:
    limit = facts["memory_limit_bytes"]
    return limit is None or limit >= warm.LEAST_MEMORY
