"""Written whole or not at all, loaded without executing code, refused when damaged."""

import errno
import json
import math

import pytest
import torch

from trainer import checkpoint_folder as folders
from trainer import files
from trainer.checkpoint import files as checkpoint
from trainer.checkpoint.files import CheckpointError
from trainer.checkpoint.state import digest
from trainer.data.prepared import InputError
from trainer.spec import RunSpec
from trainer.wire.alone import AloneWire

SPEC = RunSpec(sync="single", nodes=1)
FACTS = {"train labels": "50 abc"}
INPUTS = {"data": "tiny", "shape": [1, 2, 2], "classes": ["a", "b"], "mean": [0.5], "std": [0.25]}


def trained() -> tuple[dict, dict]:
    """A model's state for model.pt, and a rank's whole state."""
    model = torch.nn.Linear(300, 300).state_dict()
    others = {"optimizer/0/momentum_buffer": torch.randn(300, 300), "sync/outer": 3, "random": torch.ones(9)}
    return model, {f"model/{name}": value for name, value in model.items()} | others


def save(folder, step=40, content=None):
    model, state = content or trained()
    return checkpoint.save(folder, AloneWire(), SPEC, step, 3, state, model, INPUTS, FACTS)


def test_what_is_saved_is_loaded_without_executing_code(tmp_path):
    model, state = trained()
    name, size = save(tmp_path, content=(model, state))
    folder = tmp_path / name
    assert {p.name for p in folder.iterdir()} == {"model.pt", "rank-0.pt", "complete.json"}
    assert size == sum(p.stat().st_size for p in folder.iterdir())
    served = torch.load(folder / "model.pt", weights_only=True)
    assert (served["schema"], served["step"], served["epoch"]) == (2, 40, 3)
    assert RunSpec(**served["spec"]) == SPEC
    assert served["inputs"] == INPUTS
    assert torch.equal(served["model"]["weight"], model["weight"])
    complete, loaded = checkpoint.load(folder, AloneWire(), FACTS)
    assert (complete.step, complete.world_size, complete.spec["sync"]) == (40, 1, "single")
    assert loaded.keys() == state.keys()
    assert all(digest(loaded[name]) == digest(value) for name, value in state.items())


def test_the_model_is_written_once(tmp_path):
    model, state = trained()
    name, _ = save(tmp_path, content=(model, state))
    own = torch.load(tmp_path / name / "rank-0.pt", weights_only=True)
    assert set(own["own"]) == {"optimizer/0/momentum_buffer", "sync/outer", "random"}
    state["model/bias"] = state["model/bias"] + 1  # this rank's differs from what is served
    save(tmp_path, 41, (model, state))
    _, loaded = checkpoint.load(tmp_path / "step-000041", AloneWire(), FACTS)
    assert torch.equal(loaded["model/bias"], model["bias"] + 1)


def test_a_view_is_written_without_what_it_is_a_view_of(tmp_path):
    model, state = trained()
    flat = torch.zeros(10**6)
    state["sync/part"] = flat[:10]
    save(tmp_path, content=(model, state))
    assert (tmp_path / "step-000040/rank-0.pt").stat().st_size < 10**6


def test_digests_tell_every_bit_and_no_memory_format():
    image = torch.randn(2, 3, 4, 5)
    assert digest(image) == digest(image.contiguous(memory_format=torch.channels_last))
    values = [image, image.bfloat16(), image.flatten(), torch.zeros(2), -torch.zeros(2), torch.tensor(0.0), 0.0, None]
    assert len({digest(value) for value in values}) == len(values)
    assert digest(torch.tensor([math.nan])) == digest(torch.tensor([math.nan]))


def test_a_folder_without_its_last_file_does_not_count(tmp_path):
    for step in (2, 4, 1_000_000):
        save(tmp_path, step)
    assert [p.name for p in folders.complete_ones(tmp_path)] == ["step-000002", "step-000004", "step-1000000"]
    (tmp_path / "step-1000000/complete.json").unlink()
    assert [p.name for p in folders.complete_ones(tmp_path)] == ["step-000002", "step-000004"]
    with pytest.raises(InputError, match=r"^RESUME: .*step-1000000: no complete checkpoint, it has no complete.json$"):
        checkpoint.load(tmp_path / "step-1000000", AloneWire(), FACTS)


@pytest.mark.parametrize("name", ["model.pt", "rank-0.pt", "complete.json"])
@pytest.mark.parametrize("harm", ["flipped", "cut", "gone"])
def test_any_damage_is_found_and_named(tmp_path, name, harm):
    save(tmp_path)
    path = tmp_path / "step-000040" / name
    content = path.read_bytes()
    if harm == "gone":
        path.unlink()
    else:
        path.write_bytes(content[:-50] if harm == "cut" else bytes([content[0] ^ 1]) + content[1:])
    with pytest.raises(InputError) as caught:
        checkpoint.load(tmp_path / "step-000040", AloneWire(), FACTS)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_another_job_or_number_of_ranks_is_refused(tmp_path):
    save(tmp_path)
    with pytest.raises(InputError, match=r"RESUME: train labels are 50 xyz, in .*step-000040 they were 50 abc"):
        checkpoint.load(tmp_path / "step-000040", AloneWire(), {"train labels": "50 xyz"})
    path = tmp_path / "step-000040/complete.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"world_size": 4}))
    with pytest.raises(InputError, match=r"is of 4 ranks, this run has 1"):
        checkpoint.load(tmp_path / "step-000040", AloneWire(), FACTS)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": 3}))
    with pytest.raises(InputError, match=r"schema 3, this syncbed reads 2"):
        checkpoint.load(tmp_path / "step-000040", AloneWire(), FACTS)


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
    save(tmp_path, 1)
    create = files.new_file
    monkeypatch.setattr(files, "new_file", lambda part: FullDisk(create(part), room))
    with pytest.raises(CheckpointError, match=r"^checkpoint .*step-000002/model.pt: no space left on device$"):
        save(tmp_path, 2)
    monkeypatch.undo()
    assert list((tmp_path / "step-000002").iterdir()) == []
    assert [p.name for p in folders.complete_ones(tmp_path)] == ["step-000001"]
    folders.verify(tmp_path / "step-000001")


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"checkpoint .*: (file exists|not a directory)"):
        save(tmp_path / "file")
