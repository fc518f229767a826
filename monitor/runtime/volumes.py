"""Files of this machine into a volume of the cluster: no folder is mounted, so remote engines work as well."""

import tarfile
import tempfile
from pathlib import Path

from docker import DockerClient

from monitor.engine import naming, sdk
from monitor.errors import RunFailed

NODE_UID = 10001  # of the node's user, see images/trainer/Dockerfile


def carry(client: DockerClient, image: str, project: str, volume: str, members: dict[str, Path | None]) -> None:
    """Copy files into the volume, by their names there; None makes a folder of the node's user. Raises RunFailed.

    A container of the image that is never started carries the volume while Docker unpacks into it: services may see it
    read-only.
    """
    with sdk.guard(), tempfile.TemporaryFile() as bundle:
        with tarfile.open(fileobj=bundle, mode="w") as tar:
            for name, path in members.items():
                if path is None:
                    tar.addfile(_of_the_node(name))
                else:
                    tar.add(path, name, filter=_world_readable)
        bundle.seek(0)
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


def _of_the_node(name: str) -> tarfile.TarInfo:
    """A folder that the node's user may write to and remove."""
    member = tarfile.TarInfo(name)
    member.type, member.mode, member.uid, member.gid = tarfile.DIRTYPE, 0o755, NODE_UID, NODE_UID
    return member


def _world_readable(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """The node's user is not the host's: what matters is that everyone may read."""
    member.mode, member.uid, member.gid, member.uname, member.gname = 0o644, 0, 0, "", ""
    return member
