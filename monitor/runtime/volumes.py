"""Files between this machine and the volumes of a cluster: no folder is mounted, so remote engines work as well."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from docker import DockerClient
from docker.models.containers import Container

from monitor.engine import archives, naming, sdk
from monitor.errors import RunFailed
from node.disk import removal


def carry(client: DockerClient, image: str, project: str, volume: str, members: Mapping[str, Path | None]) -> None:
    """Copy files into the volume, by their names there; None makes a folder of the node's user. Raises RunFailed.

    A container of the image that is never started carries the volume while Docker unpacks into it: services may see it
    read-only.
    """
    with sdk.guard(), archives.bundle(members) as bundle:
        carrier = client.containers.create(
            image,
            labels={naming.PROJECT_LABEL: project},
            volumes={f"{project}_{volume}": {"bind": f"/{volume}", "mode": "rw"}},
        )
        try:
            if not carrier.put_archive(f"/{volume}", bundle):
                raise RunFailed(f"{next(iter(members))} could not be copied into the cluster's volume {volume}")
        finally:
            carrier.remove(force=True)


def bring(node: Container, source: str, target: Path, most: int) -> None:
    """Move a folder of the node to `target`, which is whole or not there. `most`: bytes of it.

    Raises UserError and OSError.
    """
    part = target.with_name(f".{target.name}.part")
    try:
        with sdk.guard():
            archives.fetch(node, source, part, most)
            part.replace(target)
            node.exec_run(removal(source))  # the volume need not hold it as well
    finally:
        shutil.rmtree(part, ignore_errors=True)
