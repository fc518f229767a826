"""Bundles for Docker's archive calls."""

import io
import tarfile

import pytest

from monitor.engine import archives
from monitor.errors import UserError

MOST = 1 << 20


class FarContainer:
    """One whose archives are these members: content, None for a folder, or the target of a link."""

    def __init__(self, **members):
        self.members = members

    def get_archive(self, path):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w") as tar:
            for name, content in self.members.items():
                member = tarfile.TarInfo(name)
                if content is None:
                    member.type = tarfile.DIRTYPE
                elif isinstance(content, str):
                    member.type, member.linkname = tarfile.SYMTYPE, content
                else:
                    member.size = len(content)
                tar.addfile(member, io.BytesIO(content) if isinstance(content, bytes) else None)
        whole = file.getvalue()
        return iter([whole[:700], whole[700:]]), {"name": path}


def test_everyone_may_read_the_files_of_a_bundle_and_the_node_s_user_write_to_its_folders(tmp_path):
    (tmp_path / "secret").write_bytes(b"weights")
    (tmp_path / "secret").chmod(0o600)
    given = {"out": None, "model": tmp_path / "secret", "facts": b"{}"}
    with archives.bundle(given) as bundle, tarfile.open(fileobj=bundle) as tar:
        members = {member.name: member for member in tar}
        contents = {name: tar.extractfile(name).read() for name in ("model", "facts")}
    assert contents == {"model": b"weights", "facts": b"{}"}
    assert list(members) == list(given), "in the order that was given: the last one marks the end"
    out = members["out"]
    assert out.isdir() and (out.uid, out.gid, out.mode) == (archives.NODE_UID, archives.NODE_UID, 0o755)
    for name in ("model", "facts"):
        member = members[name]
        assert (member.uid, member.gid, member.mode, member.uname) == (0, 0, 0o644, "")


def test_a_file_and_a_folder_come_out_under_another_name(tmp_path):
    archives.fetch(FarContainer(**{"model.pt": b"x" * 2000}), "/runs/model.pt", tmp_path / "mine.pt", MOST)
    assert (tmp_path / "mine.pt").read_bytes() == b"x" * 2000
    archives.fetch(
        FarContainer(**{"step": None, "step/a": b"1", "step/b/c": b"2"}), "/runs/step", tmp_path / "mine", MOST
    )
    assert (tmp_path / "mine/a").read_bytes() + (tmp_path / "mine/b/c").read_bytes() == b"12"


def test_no_more_is_taken_than_was_agreed(tmp_path):
    """A rank can make a file of any length at no cost: its zeros would fill this machine's disk."""
    far = FarContainer(**{"step": None, "step/a": bytes(100_000)})
    with pytest.raises(UserError, match=r"^/runs/step is larger than 0 MiB$"):
        archives.fetch(far, "/runs/step", tmp_path / "mine", 100_000)
    assert not list(tmp_path.iterdir())


def test_nothing_is_written_outside_the_target_and_no_link(tmp_path):
    target = tmp_path / "inner" / "mine"
    far = FarContainer(**{"step/../../out": b"1", "step/link": "/etc/passwd", "/etc/abs": b"2", "step/a": b"3"})
    archives.fetch(far, "/runs/step", target, MOST)
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")) == [
        "inner",
        "inner/mine",
        "inner/mine/a",
        "inner/mine/etc",
        "inner/mine/etc/abs",
    ]
