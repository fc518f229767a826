"""Files between this machine and the volumes of a cluster: no folder is mounted, so remote engines work as well."""

import shutil
import tarfile
import tempfile
from pathlib import Path, PurePosixPath

from docker import DockerClient
from docker.models.containers import Container

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


def bring(node: Container, source: str, target: Path) -> None:
    """Move a folder of the node to `target`, which is whole or not there. Raises UserError and OSError."""
    part = target.with_name(f".{target.name}.part")
    try:
        with sdk.guard(), tempfile.TemporaryFile() as bundle:
            chunks, _ = node.get_archive(source)
            for chunk in chunks:
                bundle.write(chunk)
            bundle.seek(0)
            with tarfile.open(fileobj=bundle) as tar:
                _unpack(tar, part)
            part.replace(target)
            node.exec_run(["rm", "-rf", source])  # the volume need not hold it as well
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _unpack(tar: tarfile.TarFile, target: Path) -> None:
    """Write the files of an archived folder below `target`; of anything but plain files and folders, nothing."""
    for member in tar:
        _, *parts = PurePosixPath(member.name).parts
        content = tar.extractfile(member) if member.isfile() else None
        if content and ".." not in parts:
            path = target.joinpath(*parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                shutil.copyfileobj(content, file)
