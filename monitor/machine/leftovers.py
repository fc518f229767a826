"""`syncbed clean`: what crashed runs, interrupted commands and killed tests left on the engine and on this machine."""

import re
import sys
from contextlib import suppress
from datetime import datetime, timezone

from docker import DockerClient
from docker.models.containers import Container

from monitor.cluster.settings import SETTINGS
from monitor.console import tell_removed
from monitor.engine import images, inspection, sdk
from monitor.engine.containers import containers, remove_containers, remove_project
from monitor.engine.naming import PROJECT_LABEL, ROLE_LABEL, project
from monitor.errors import RunFailed, UserError, refuse_unknown
from monitor.runtime import ownership, wires
from node.disk import removal

_YOUNG_SECONDS = 120  # what is younger may belong to a cluster that is being started right now


def clean(settings: dict[str, str], args) -> int:
    """Remove what crashed runs and tests left: ranks nobody holds, half-dead clusters, carriers, old images, and the
    state of local nodes. Without an engine only that, unless PROJECT= names a cluster.
    """
    refuse_unknown(settings, SETTINGS)
    only = project(settings) if "PROJECT" in settings else None
    removed = ownership.sweep() if only is None else []
    try:
        client = sdk.connect()
    except UserError as error:
        if only:
            raise
        tell_removed(removed, args.json, "nothing was left behind on this machine")
        print(f"clusters were not looked for: {error}", file=sys.stderr)
        return 0
    with sdk.guard():
        removed += _clean_clusters(client, only)
        if only is None:
            removed += [f"image {tag}" for tag in images.remove_old(client)]
    tell_removed(removed, args.json, "nothing was left behind")
    return 0


def _clean_clusters(client: DockerClient, only: str | None) -> list[str]:
    """Carriers, what runs left in clusters that live, and clusters that do not. `only`: of this project."""
    removed = []
    everything = client.containers.list(all=True, ignore_removed=True, filters={"label": PROJECT_LABEL})
    alive = {c.labels[PROJECT_LABEL] for c in everything if c.labels.get(ROLE_LABEL) == "node" and _lives(c)}
    for container in everything:
        in_scope = only in (None, container.labels[PROJECT_LABEL])
        # Without a role: it carried data into a volume, and its maker died before removing it.
        if in_scope and ROLE_LABEL not in container.labels and not _young(container.attrs["Created"]):
            removed += remove_containers([container])
    for name in sorted(alive):
        if only in (None, name):
            removed += _tidy(client, name)
    for name in sorted(_projects(client) - alive):
        if only in (None, name):
            removed += remove_project(client, name)
    return removed


def _tidy(client: DockerClient, project: str) -> list[str]:
    """What runs left in the nodes of a cluster. Of the nodes' own nothing is touched while a run has them."""
    removed: list[str] = []
    shaped: dict[Container, bool] = {}
    runs: list[str | None] = []
    nodes = [c for c in containers(client, project) if c.labels.get(ROLE_LABEL) == "node" and c.status == "running"]
    for container in nodes:
        with suppress(RunFailed):  # `check` ends ranks that no launcher holds any more, and says which
            facts = inspection.node_facts(container)
            removed += [f"process {pid} in {container.name}" for pid in facts["leftovers"]]
            shaped[container] = facts["shaped"]
            runs.append(facts["run"])
    if not shaped or any(runs):  # a run may have but some of them; what is in the volume may be its own
        return removed
    return removed + wires.take_back(client, shaped, project, nodes[0], "clean") + _remove_outputs(next(iter(shaped)))


def _remove_outputs(node: Container) -> list[str]:
    """What ranks wrote into the cluster's volume and nobody fetched: their orchestrator was killed."""
    old = ["-mindepth", "1", "-maxdepth", "1", "-cmin", f"+{_YOUNG_SECONDS // 60}"]
    code, out = node.exec_run(["find", "/runs", *old, "-print", "-exec", *removal("{}"), ";"])
    if code != 0 or not isinstance(out, bytes):
        return []
    return [f"folder {line} in {node.name}" for line in out.decode().splitlines()]


def _lives(container: Container) -> bool:
    return container.status in ("running", "restarting", "paused") or _young(container.attrs["Created"])


def _young(created: str) -> bool:
    """Docker's time stamp is of the last moments: 2026-01-31T23:59:59.123456789Z, or +02:00 in place of the Z."""
    moment = datetime.fromisoformat(re.sub(r"\.[0-9]+", "", created).replace("Z", "+00:00"))
    return (datetime.now(timezone.utc) - moment).total_seconds() < _YOUNG_SECONDS


def _projects(client: DockerClient) -> set[str]:
    """Every project that left something, but for networks and volumes that were created just now."""
    listed = client.containers.list(all=True, ignore_removed=True, filters={"label": PROJECT_LABEL})
    names = {c.labels[PROJECT_LABEL] for c in listed if ROLE_LABEL in c.labels}
    for network in client.networks.list(filters={"label": PROJECT_LABEL}):
        if not _young(network.attrs["Created"]):
            names.add(network.attrs["Labels"][PROJECT_LABEL])
    for volume in client.volumes.list(filters={"label": PROJECT_LABEL}):
        if not _young(volume.attrs["CreatedAt"]):
            names.add(volume.attrs["Labels"][PROJECT_LABEL])
    return names
