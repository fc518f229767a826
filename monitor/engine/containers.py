"""The containers, networks and volumes of a cluster: listed, found by port, removed."""

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from docker import DockerClient
from docker.errors import APIError, NotFound
from docker.models.containers import Container

from monitor.engine.naming import PROJECT_LABEL, ROLE_LABEL
from monitor.ports import check_port

SERVICE_LABEL = "com.docker.compose.service"


def containers(client: DockerClient, name: str) -> list[Container]:
    """The project's services, running or not, nodes first and in rank order."""
    present = client.containers.list(all=True, ignore_removed=True, filters={"label": f"{PROJECT_LABEL}={name}"})
    services = [c for c in present if ROLE_LABEL in c.labels]

    def order(container: Container) -> tuple[int, int]:
        service, _, rank = container.labels.get(SERVICE_LABEL, container.name).rpartition("-")
        return (0, int(rank)) if service == "trainer" else (1, 0)

    return sorted(services, key=order)


def urls(client: DockerClient, name: str) -> dict[str, str]:
    """Where Grafana, Prometheus and the server of models answer, for those that run."""
    addresses = {}
    for container in containers(client, name):
        for _, bindings in sorted(container.ports.items(), reverse=True):  # of several ports the lowest
            for binding in bindings or ():
                addresses[container.labels[SERVICE_LABEL]] = f"http://{binding['HostIp']}:{binding['HostPort']}"
    return dict(sorted(addresses.items()))


def remove_project(client: DockerClient, name: str) -> list[str]:
    """Remove all that carries the project's label, however far its start had come. Returns what was removed."""
    label = f"{PROJECT_LABEL}={name}"
    removed = remove_containers(client.containers.list(all=True, ignore_removed=True, filters={"label": label}))
    for network in client.networks.list(filters={"label": label}):
        with suppress(NotFound):
            network.remove()
            removed.append(f"network {network.name}")
    for volume in client.volumes.list(filters={"label": label}):
        with suppress(NotFound):
            volume.remove()
            removed.append(f"volume {volume.name}")
    return removed


def remove_containers(listed: list[Container]) -> list[str]:
    """Kill and remove containers with their anonymous volumes, all at once. Returns what was removed."""

    def remove(container: Container) -> str | None:
        try:
            container.remove(force=True, v=True)
        except NotFound:
            return None
        except APIError as error:
            if error.status_code != 409:  # someone else is removing it already
                raise
        return f"container {container.name}"

    with ThreadPoolExecutor(16) as pool:
        return sorted(filter(None, pool.map(remove, listed)))


def check_host_port(client: DockerClient, name: str, setting: str, port: int) -> None:
    """Raises UserError when anything but this cluster has the port."""
    if os.environ.get("DOCKER_HOST", "unix").split(":")[0] not in ("unix", "npipe"):
        return  # the port is another machine's: its engine will say so
    holder = next((c for c in client.containers.list(ignore_removed=True) if port in _published(c)), None)
    if holder is None:
        check_port(setting, port)
    elif holder.labels.get(PROJECT_LABEL) != name:
        check_port(setting, port, holder=f"container {holder.name}")


def _published(container: Container) -> list[int]:
    return [int(b["HostPort"]) for bindings in container.ports.values() for b in bindings or () if b["HostPort"]]
