"""Files into and out of containers by Docker's archive calls: no folder is mounted, so remote engines work as well."""

import io
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from docker.models.containers import Container

from monitor.errors import UserError

NODE_UID = 10001  # of the node's user and group, see images/trainer/Dockerfile and compose.yaml


@contextmanager
def bundle(members: Mapping[str, Path | bytes | None]) -> Iterator[IO[bytes]]:
    """A tar file for Container.put_archive: by its name in the container, a file, its content, or None for a folder.

    Everyone may read the files; the node's user may write to the folders.
    """
    with tempfile.TemporaryFile() as file:
        with tarfile.open(fileobj=file, mode="w") as tar:
            for name, content in members.items():
                match content:
                    case None:
                        tar.addfile(_folder(name))
                    case bytes():
                        member = _readable(tarfile.TarInfo(name))
                        member.size = len(content)
                        tar.addfile(member, io.BytesIO(content))
                    case _:
                        tar.add(content, name, filter=_readable)
        file.seek(0)
        yield file


def fetch(container: Container, path: str, target: Path, most: int) -> None:
    """Copy a file of the container to `target`, or the files of a folder below it.

    Only plain files and folders are written. `most`: bytes of the archive; a sparse file of any size costs the
    container nothing. Raises UserError for more, OSError, and what Docker's SDK raises.
    """
    with tempfile.TemporaryFile() as file:
        chunks, _ = container.get_archive(path)
        for chunk in chunks:
            if file.tell() + len(chunk) > most:
                raise UserError(f"{path} is larger than {most >> 20} MiB")
            file.write(chunk)
        file.seek(0)
        with tarfile.open(fileobj=file) as tar:
            _unpack(tar, target)


def _unpack(tar: tarfile.TarFile, target: Path) -> None:
    for member in tar:
        _, *parts = PurePosixPath(member.name).parts  # the first is what was asked for, which becomes `target`
        source = tar.extractfile(member) if member.isfile() and ".." not in parts else None
        if source is not None:
            path = target.joinpath(*parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            with source, path.open("wb") as file:
                shutil.copyfileobj(source, file)


def _folder(name: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.mode, member.uid, member.gid = tarfile.DIRTYPE, 0o755, NODE_UID, NODE_UID
    return member


def _readable(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """The node's user is not the host's: what matters is that everyone may read."""
    member.mode, member.uid, member.gid, member.uname, member.gname = 0o644, 0, 0, "", ""
    return member
