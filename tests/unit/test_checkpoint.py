"""Written whole or not at all."""

import errno
from pathlib import Path

import pytest
import torch

from trainer import checkpoint
from trainer.checkpoint import CheckpointError
from trainer.spec import RunSpec

SPEC = RunSpec(sync="single", nodes=1)


def trained():
    model = torch.nn.Linear(300, 300)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 300)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_what_is_saved_is_loaded_without_executing_code(tmp_path):
    model, optimizer = trained()
    path, size, seconds = checkpoint.save(tmp_path / "checkpoints", SPEC, 40, 3, model, optimizer)
    assert path == tmp_path / "checkpoints/step-000040.pt"
    assert path.stat().st_size == size > 300 * 300 * 4
    assert seconds > 0
    state = checkpoint.load(path)
    assert (state["schema"], state["step"], state["epoch"]) == (1, 40, 3)
    assert RunSpec(**state["spec"]) == SPEC
    assert torch.equal(state["model"]["weight"], model.weight)
    momentum = state["optimizer"]["state"][0]["momentum_buffer"]
    assert torch.equal(momentum, optimizer.state_dict()["state"][0]["momentum_buffer"])
    assert torch.equal(state["rng"], torch.get_rng_state())
    assert [p.name for p in path.parent.iterdir()] == ["step-000040.pt"]


class FullDisk:
    """A file on a disk with room for so many bytes."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def write(self, data):
        self.room -= len(data)
        if self.room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.file.write(data)

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()


@pytest.mark.parametrize("room", [0, 1000, 100_000])
def test_a_full_disk_is_one_line_and_leaves_the_earlier_checkpoint_whole(tmp_path, monkeypatch, room):
    model, optimizer = trained()
    path, *_ = checkpoint.save(tmp_path, SPEC, 1, 1, model, optimizer)
    before = path.read_bytes()
    opened = Path.open
    monkeypatch.setattr(Path, "open", lambda self, *a, **k: FullDisk(opened(self, *a, **k), room))
    with pytest.raises(CheckpointError, match=r"^checkpoint .*step-000001.pt: no space left on device$"):
        checkpoint.save(tmp_path, SPEC, 1, 1, model, optimizer)
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["step-000001.pt"]
    assert path.read_bytes() == before


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"checkpoint .*: file exists"):
        checkpoint.save(tmp_path / "file", SPEC, 1, 1, *trained())
