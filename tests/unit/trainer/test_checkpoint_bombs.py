"""A small checkpoint that was received stays small: it is refused before it takes memory or time."""

import copy
import json
import pickle
import zipfile

import pytest
import torch
from test_checkpoint import FACTS, save

from serving import export
from serving.artefact import ArtefactError
from trainer.checkpoint import files as checkpoint
from trainer.checkpoint_folder import COMPLETE, sha256
from trainer.data.prepared import InputError
from trainer.wire.alone import AloneWire


def nested(depth):
    """Some bytes in a pickle, 10 ** depth values for who walks over them."""
    value = 0
    for _ in range(depth):
        value = [value] * 10
    return value


def content(**changes) -> dict:
    spec = {"model": "logistic", "data": "mnist", "nodes": 1, "batch": 4}
    inputs = {"data": "mnist", "shape": [1, 28, 28], "classes": ["a", "b"], "mean": [0.5], "std": [0.2]}
    model = {"1.weight": torch.zeros(2, 784), "1.bias": torch.zeros(2)}
    return {"schema": 2, "spec": spec, "step": 5, "epoch": 1, "model": model, "inputs": inputs} | changes


def parts_of(path, change):
    """Write the archive anew with its parts changed: `change` gets names and bytes, and returns them with a method."""
    with zipfile.ZipFile(path) as archive:
        parts = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data, method in change(parts):
            archive.writestr(name, data, method)


def overlapping(path, times):
    """The same bytes as many tensors: the directory of the archive names them again and again."""
    torch.save({str(n): torch.zeros(1024) for n in range(times)}, path)
    with zipfile.ZipFile(path) as archive:
        infos = archive.infolist()
        parts = {info.filename: archive.read(info) for info in infos}
    (first, *others) = [name for name in parts if "/data/" in name]
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in parts.items():
            if name not in others:
                archive.writestr(name, data)
        for name in others:
            again = copy.copy(archive.getinfo(first))
            again.filename = again.orig_filename = name
            archive.filelist.append(again)
            archive.NameToInfo[name] = again


def compressed(parts):
    return [(name, data, zipfile.ZIP_DEFLATED) for name, data in parts.items()]


@pytest.mark.parametrize("times", [2, 50, 1000])
def test_parts_that_overlap_are_refused(tmp_path, times):
    path = tmp_path / "model.pt"
    overlapping(path, times)
    assert len(torch.load(path, weights_only=True)) == times, "torch itself reads them"
    with pytest.raises(ValueError, match=r"parts are compressed or overlap"):
        checkpoint.read(path)


def test_compressed_parts_are_refused(tmp_path):
    torch.save(content(), tmp_path / "model.pt")
    parts_of(tmp_path / "model.pt", compressed)
    with pytest.raises(ValueError, match=r"parts are compressed or overlap"):
        checkpoint.read(tmp_path / "model.pt")


@pytest.mark.parametrize(
    "value",
    [nested(28), nested(5), (nested(28),), {"a": nested(28)}, [0] * 100_001, dict.fromkeys(range(50_001))],
    ids=["list", "shallow", "tuple", "dict", "long", "names"],
)
@pytest.mark.parametrize("where", ["spec", "step", "model", "inputs", "other"])
def test_values_without_end_are_refused_wherever_they_are(tmp_path, value, where):
    state = content()
    state[where] = state[where] | {"x": value} if isinstance(state.get(where), dict) else value
    torch.save(state, tmp_path / "model.pt")
    with pytest.raises(ValueError, match=r"has more than 100000 values"):
        checkpoint.read(tmp_path / "model.pt")
    with pytest.raises(ArtefactError, match=r"^this checkpoint cannot be exported \(.*\); train again$"):
        export.export(tmp_path / "model.pt", tmp_path, {"run": "r", "metrics": {}, "syncbed": "1"})


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(1).expand(1 << 40),
        torch.zeros(1).expand(1 << 20, 1 << 20),
        torch.zeros(4).unfold(0, 2, 1),
        torch.as_strided(torch.zeros(3), (1 << 30,), (0,)),
        torch.eye(3).to_sparse(),
    ],
    ids=["expanded", "square", "windows", "strided", "sparse"],
)
@pytest.mark.filterwarnings("ignore:Validating sparse tensor")
def test_a_tensor_is_no_larger_than_what_is_stored_of_it(tmp_path, tensor):
    """Who copies it, as a compressor does with its state, would need a terabyte."""
    torch.save({"own": {"sync/kept": tensor}, "elsewhere": []}, tmp_path / "rank-0.pt")
    with pytest.raises(ValueError, match=r"larger than what is stored"):
        checkpoint.read(tmp_path / "rank-0.pt")


def test_views_of_a_larger_tensor_and_any_order_of_memory_are_read(tmp_path):
    values = {
        "part": torch.arange(6.0)[2:4],
        "turned": torch.ones(2, 3).T,
        "none": torch.zeros(0),
        "scalar": torch.ones(()),
    }
    values["last"] = torch.ones(1, 2, 3, 4).to(memory_format=torch.channels_last)
    torch.save(values, tmp_path / "f")
    assert {name: value.tolist() for name, value in checkpoint.read(tmp_path / "f").items()} == {
        name: value.tolist() for name, value in values.items()
    }


class Evil:
    def __reduce__(self):
        return print, ("owned",)


@pytest.mark.parametrize(
    "how", ["pickle", "old format", "code", "list", "text", "zip of nothing", "cut", "protocol 99"]
)
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_any_other_file_is_a_value_error_in_one_line(tmp_path, capsys, how):
    path = tmp_path / "model.pt"
    match how:
        case "pickle":
            path.write_bytes(pickle.dumps(content()["spec"]))
        case "old format":
            torch.save(content(), path, _use_new_zipfile_serialization=False)
        case "code":
            torch.save(content() | {"x": Evil()}, path)
        case "list":
            torch.save([1], path)
        case "text":
            path.write_text("text")
        case "zip of nothing":
            zipfile.ZipFile(path, "w").close()
        case "cut":
            torch.save(content(), path)
            path.write_bytes(path.read_bytes()[:-30])
        case "protocol 99":
            torch.save(content(), path)
            parts_of(path, lambda parts: [(n, b"\x80\x63." if n.endswith(".pkl") else d, 0) for n, d in parts.items()])
    with pytest.raises(ValueError, match=r"^[^\n]*model\.pt: [^\n]+$"):
        checkpoint.read(path)
    assert "owned" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        ("spec", {"lr": [1] * 50_000}),
        ("spec", {"model": "x" * 100_000}),
        ("spec", {"nonsense": 1}),
        ("spec", {"batch": 0}),
        ("inputs", {"data": "x" * 100_000}),
        ("inputs", {"data": 3}),
        ("inputs", {"mean": [float("nan")]}),
        ("inputs", {"std": [0.0]}),
        ("inputs", {"std": [float("inf")]}),
        ("inputs", {"shape": [1.0, 28.0, 28.0]}),
        ("inputs", {"run": "../x"}),
        ("model", {"1.bias": torch.zeros(2, dtype=torch.float64)}),
        ("model", {"1.bias": torch.zeros(2, dtype=torch.complex64)}),
    ],
)
def test_a_checkpoint_that_says_anything_else_is_not_exported(tmp_path, part, changes):
    state = content()
    torch.save(state | {part: state[part] | changes}, tmp_path / "model.pt")
    with pytest.raises(ArtefactError, match=r"^this checkpoint cannot be exported[^\n]*; train again$") as error:
        export.export(tmp_path / "model.pt", tmp_path, {"run": "r", "metrics": {}, "syncbed": "1"})
    assert len(str(error.value)) < 600
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


@pytest.mark.parametrize("step", [-1, 1.5, True, "5", None])
def test_a_step_is_a_number(tmp_path, step):
    torch.save(content(step=step), tmp_path / "model.pt")
    with pytest.raises(ArtefactError):
        export.export(tmp_path / "model.pt", tmp_path, {"run": "r", "metrics": {}, "syncbed": "1"})


@pytest.mark.parametrize("key", ["own", "elsewhere"])
@pytest.mark.parametrize("value", [None, 3, [["x"]], ["no such name"], {"x": nested(28)}])
def test_a_rank_that_resumes_says_in_one_line_what_is_wrong(tmp_path, key, value):
    name, _ = save(tmp_path)
    path = tmp_path / name / "rank-0.pt"
    torch.save(checkpoint.read(path) | {key: value}, path)
    complete = json.loads((path.parent / COMPLETE).read_text())
    complete["files"]["rank-0.pt"] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
    (path.parent / COMPLETE).write_text(json.dumps(complete))
    with pytest.raises(InputError, match=r"^RESUME: [^\n]+$"):
        checkpoint.load(path.parent, AloneWire(), FACTS)
