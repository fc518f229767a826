"""What each runtime can do: asked before a run starts, and of a result once it has ended.

Code that depends on where a run takes place asks for one of these capabilities, never for the
name of a runtime. A new runtime is a module of monitor/runtime/, a row of RUNTIMES, and its start in
monitor/runtime/choice.py.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Capabilities:
    """What the nodes of a runtime are, and what can be asked of them."""

    name: str
    """As RUNTIME= takes it."""

    nodes: str
    """What its nodes are, as messages put it."""

    lacks_limits: str = ""
    """Why its nodes have no limits and links of their own, as a clause. Empty: they have."""

    faults_of_nodes: bool = False
    """Whether FAULT= can strike whole nodes, and not only ranks."""

    has_prometheus: bool = False
    """Whether a Prometheus scrapes its nodes, and keeps their series after the run."""

    is_cluster: bool = False
    """Whether its nodes stand in a cluster that is up before a run, under the name that PROJECT= takes."""

    shares_machine: bool = False
    """Whether its nodes share this machine's cores and its loopback."""

    grows_with: str | None = None
    """The goal of make that adds nodes. None: it takes as many nodes as a run asks for."""

    @property
    def has_limits(self) -> bool:
        """Whether its nodes have limits and links of their own."""
        return not self.lacks_limits


RUNTIMES = {
    "docker": Capabilities(
        "docker",
        "containers of a cluster",
        faults_of_nodes=True,
        has_prometheus=True,
        is_cluster=True,
        grows_with="cluster-up",
    ),
    "local": Capabilities(
        "local",
        "local processes",
        lacks_limits="processes of this machine have no limits and links of their own",
        shares_machine=True,
    ),
}


def of(runtime: str) -> Capabilities:
    """The capabilities of a runtime by its name, as results have it. An unknown one can do nothing."""
    unknown = f"nodes of RUNTIME={runtime}"
    return RUNTIMES.get(runtime, Capabilities(runtime, unknown, lacks_limits=f"{unknown} are not known here"))


def runtimes_with(able: Callable[[Capabilities], bool]) -> str:
    """The runtimes that are able, as a message suggests them: RUNTIME=docker."""
    return " or ".join(f"RUNTIME={name}" for name, runtime in RUNTIMES.items() if able(runtime))
