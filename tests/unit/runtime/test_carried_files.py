"""What goes into a cluster's volumes: the files that are listed, whatever else lies beside them."""

import json
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from monitor.data.store import ARRAYS
from monitor.errors import UserError
from monitor.runtime.base import Job
from monitor.runtime.docker import DockerRuntime
from trainer.checkpoint_folder import Complete, sha256
from trainer.spec import RunSpec


@pytest.fixture
def carried(monkeypatch):
    """The names that were carried, by volume."""
    volumes: dict[str, list[str]] = {}
    monkeypatch.setattr(DockerRuntime, "_carry", lambda _, volume, members: volumes.update({volume: list(members)}))
    return volumes


@pytest.fixture
def checkpoint(tmp_path):
    folder = tmp_path / "step-000040"
    folder.mkdir()
    for name in ("model.pt", "rank-0.pt"):
        (folder / name).write_bytes(b"weights")
    files = {name: {"bytes": 7, "sha256": sha256(folder / name)} for name in ("model.pt", "rank-0.pt")}
    (folder / "complete.json").write_text(json.dumps(asdict(Complete(40, 1, 1, asdict(RunSpec()), {}, files))))
    return folder


JOB = Job("r", RunSpec(), "key", SimpleNamespace())


@pytest.mark.parametrize("name", ["extra", "rank-1.pt", ".hidden", "complete.json.old"])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_of_a_checkpoint_its_own_files_are_carried(checkpoint, carried, name, kind):
    """One of any size costs its sender nothing; a folder may hold links."""
    (checkpoint / name).touch() if kind == "file" else (checkpoint / name / "deep").mkdir(parents=True)
    DockerRuntime(None, "p", {}).push_checkpoint(JOB, checkpoint)
    names = ["r", "r/resume", *(f"r/resume/{name}" for name in ("model.pt", "rank-0.pt", "complete.json"))]
    assert carried == {"runs": names}, "complete.json last: without it there is no checkpoint"


@pytest.mark.parametrize("name", ["complete.json", "model.pt"])
def test_a_checkpoint_that_became_a_link_meanwhile_is_not_carried(checkpoint, carried, name):
    (checkpoint / name).rename(checkpoint.parent / "moved")
    (checkpoint / name).symlink_to("../moved")
    with pytest.raises(UserError, match=f"{name} is a symbolic link"):
        DockerRuntime(None, "p", {}).push_checkpoint(JOB, checkpoint)
    assert carried == {}


@pytest.mark.parametrize("name", ["extra", "validation.npy", ".lock"])
def test_of_prepared_data_its_own_files_are_carried(tmp_path, carried, name):
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / name).symlink_to("/dev/zero")
    DockerRuntime(None, "p", {}).push_data(folder)
    assert carried == {"data": [*(f"tiny/{array}.npy" for array in ARRAYS), "tiny/manifest.json"]}
