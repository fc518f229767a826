"""What is known of a run before it says anything: what its live page begins with."""

from dataclasses import dataclass
from pathlib import Path

from monitor.runtime.base import Runtime
from monitor.text import plural
from trainer.layout import seats
from trainer.spec import RunSpec

SHARED = "All nodes share this machine's loopback, so their network curves are one."


@dataclass(frozen=True)
class Facts:
    """One run. All of it can be JSON: the process that serves the page is handed it as such."""

    run: str
    """Its id."""

    folder: str

    began: float
    """Unix seconds of its start."""

    what: str
    """What is trained, on what, in a line."""

    nodes: list[str]
    """Their names, in order."""

    ranks: list[tuple[int, int, str]]
    """Of each: its number, its node's number, its role."""

    prometheus: str | None = None
    """The address of the Prometheus that scrapes its nodes. None: metrics.csv in its folder grows as it goes on."""

    note: str = ""
    """Why figures of nodes are missing, where that is known."""

    remark: str = ""
    """What a reader of the nodes' figures must know."""


def facts_of(folder: Path, spec: RunSpec, data: str, runtime: Runtime | None, note: str = "") -> Facts:
    """Of the run that goes on in this folder. `data`: what its data set is called. `runtime`: where it takes place;
    None: that cannot be reached. Raises OSError.
    """
    what = f"{spec.sync} {spec.model} on {data}, {plural(spec.nodes, 'node')}, batch {spec.batch}, {spec.precision}"
    return Facts(
        run=folder.name,
        folder=str(folder.resolve()),
        began=(folder / "spec.json").stat().st_mtime,  # written when the run begins, and never again
        what=what,
        nodes=[runtime.node_name(node) if runtime else f"node {node}" for node in range(spec.nodes)],
        ranks=[(seat.rank, seat.node, seat.role) for seat in seats(spec)],
        prometheus=runtime.prometheus() if runtime else None,
        note=note,
        remark=SHARED if runtime and runtime.capabilities.shares_machine else "",
    )
