"""The artefact: made of a checkpoint without executing code, complete in itself, refused when damaged."""

import json
import os
import re
import tarfile
from dataclasses import asdict

import numpy as np
import pytest
import torch
from PIL import Image
from report_cases import begun, ended, write_document

from monitor.checkout import ROOT
from monitor.engine import archives
from monitor.errors import UserError
from monitor.serve import export as command
from serving import artefact, export
from serving.artefact import ABOUT, WEIGHTS, About, ArtefactError
from trainer.checkpoint import files as checkpoint
from trainer.data.batches import normalise
from trainer.models.build import build
from trainer.spec import RunSpec
from trainer.wire.alone import AloneWire

SPEC = RunSpec(sync="single", nodes=1, model="cnn3", data="synthetic")
INPUTS = {
    "data": "synthetic",
    "shape": [3, 32, 32],
    "classes": [f"class{i}" for i in range(10)],
    "mean": [0.4, 0.5, 0.6],
    "std": [0.2, 0.25, 0.3],
}
FACTS = {"run": "r-1", "metrics": {"test_accuracy": 0.5, "test_loss": 1.5}, "syncbed": "0"}


def run_folder(runs, steps=40, spec=SPEC, inputs=INPUTS, spoil=None):
    """A run with one checkpoint; returns its model, as evaluation has it."""
    module = build(spec, 10)
    state = module.state_dict()
    if spoil:
        state[spoil] = state[spoil] * float("inf")
    home = runs / "r-1"
    checkpoint.save(home / "checkpoints", AloneWire(), spec, steps, 1, {}, state, inputs, {})
    write_document(home, ended("r-1", steps=steps, test_accuracy=0.5, test_loss=1.5))
    return module.eval()


def exported(runs, **facts):
    """The same as the command, in this process."""
    (model,) = runs.glob("r-1/checkpoints/*/model.pt")
    (runs / "r-1/export").mkdir(exist_ok=True)
    export.export(model, runs / "r-1/export", FACTS | facts)
    return runs / "r-1/export"


def test_an_export_predicts_what_the_model_does_and_says_all_about_itself(tmp_path):
    module = run_folder(tmp_path)
    folder = command.export("r-1", tmp_path)  # by a process of its own, as a user has it
    assert {path.name for path in folder.iterdir()} == {ABOUT, WEIGHTS}
    assert [path.name for path in tmp_path.glob("r-1/.export*")] == []
    predictor = artefact.load(folder)
    about = predictor.about
    assert about == About(
        model="cnn3", **INPUTS, spec=asdict(SPEC), metrics=FACTS["metrics"], run="r-1", step=40,
        syncbed=about.syncbed, sha256=about.sha256,
    )  # fmt: skip
    images = np.random.default_rng(0).integers(0, 256, (5, 3, 32, 32), np.uint8)
    found = predictor(images)
    with torch.inference_mode():
        logits = module(normalise(images, INPUTS["mean"], INPUTS["std"]))
    assert found.shape == (5, 2, 10) and found.dtype == np.float32
    assert np.array_equal(found[:, 0], logits.numpy())
    assert np.allclose(found[:, 1].sum(1), 1)
    assert np.allclose(predictor(images.astype(np.float32)), found, atol=1e-6), "pixels as floats are the same pixels"


def test_bf16_runs_are_served_in_bf16(tmp_path):
    spec = RunSpec(sync="single", nodes=1, model="cnn3", data="synthetic", precision="bf16")
    module = run_folder(tmp_path, spec=spec)
    images = np.random.default_rng(0).integers(0, 256, (5, 3, 32, 32), np.uint8)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        logits = module(normalise(images, INPUTS["mean"], INPUTS["std"])).float()
    assert np.array_equal(artefact.load(exported(tmp_path))(images)[:, 0], logits.numpy())


def test_a_second_export_takes_the_place_of_the_first(tmp_path):
    run_folder(tmp_path)
    assert command.present("r-1", tmp_path) is None
    first = exported(tmp_path)
    assert command.present("r-1", tmp_path) == first
    run_folder(tmp_path, steps=80)
    assert command.present("r-1", tmp_path) is None, "there is a later checkpoint"
    assert command.export("r-1", tmp_path) == first and artefact.read(first).step == 80


@pytest.mark.parametrize("name", [ABOUT, WEIGHTS])
@pytest.mark.parametrize("content", [None, b"", b"[]", b"{}", b'{"step": 40}'])
def test_a_damaged_export_is_no_export(tmp_path, name, content):
    """So that `make serve` exports again."""
    run_folder(tmp_path)
    path = exported(tmp_path) / name
    path.unlink() if content is None else path.write_bytes(content)
    assert command.present("r-1", tmp_path) is None


def test_a_diverged_model_is_refused_in_one_line_and_leaves_the_old_export(tmp_path):
    run_folder(tmp_path)
    kept = exported(tmp_path)
    run_folder(tmp_path, spoil=next(iter(build(SPEC, 10).state_dict())))
    with pytest.raises(UserError, match="is not finite: training diverged") as refused:
        command.export("r-1", tmp_path)
    assert "\n" not in str(refused.value)
    assert artefact.read(tmp_path / "r-1/export") == artefact.read(kept)


def test_a_run_without_a_checkpoint_is_refused(tmp_path):
    run_folder(tmp_path)
    for file in tmp_path.glob("r-1/checkpoints/*/complete.json"):
        file.unlink()
    with pytest.raises(UserError, match=r"^RUN=r-1: it has no complete checkpoint to export; train again \(a sweep"):
        command.export("r-1", tmp_path)


@pytest.mark.parametrize(
    ("status", "told"),
    [("running", "export yet; EVERY=n writes one each n steps"), ("failed", "export, as it failed before")],
)
def test_one_that_has_none_yet_says_why_and_which_run_has(tmp_path, status, told):
    run_folder(tmp_path)
    write_document(tmp_path / "r-2", begun("r-2", status, orchestrator_pid=os.getpid()))
    with pytest.raises(UserError, match=f"^RUN=r-2: it has no complete checkpoint to {told}; RUN=r-1 has one$"):
        command.export("r-2", tmp_path)


def test_who_may_read_one_file_of_it_may_read_the_other(made):
    modes = {(made / name).stat().st_mode for name in (WEIGHTS, ABOUT)}
    assert len(modes) == 1


@pytest.fixture
def made(tmp_path):
    run_folder(tmp_path)
    return exported(tmp_path)


def damage(name):
    def change(folder):
        path = folder / name
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    return change


def edit(**fields):
    def change(folder):
        (folder / ABOUT).write_text(json.dumps(json.loads((folder / ABOUT).read_text()) | fields))

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda folder: (folder / ABOUT).unlink(), "no exported model"),
        (lambda folder: (folder / ABOUT).write_text("{"), "cannot be read"),
        (edit(schema=99), "schema 99, this syncbed reads 1"),
        (edit(model="os:system"), "model os:system of .* is not known here"),
        (edit(extra=1), "cannot be read"),
        (edit(classes=["a"]), "cannot be loaded"),
        (edit(mean=[0.5]), "mean and std are not one for each channel"),
        (edit(std=[0.5] * 4), "mean and std are not one for each channel"),
        (edit(shape=[3, 2]), "of .3, 2. is not known here"),
        (damage(WEIGHTS), "damaged"),
        (lambda folder: (folder / WEIGHTS).unlink(), "cannot be loaded"),
    ],
)
def test_a_damaged_artefact_is_refused_in_one_line(made, change, says):
    change(made)
    with pytest.raises(ArtefactError, match=says) as refused:
        artefact.load(made)
    assert "\n" not in str(refused.value)


def test_the_bundle_for_a_container_has_the_model_and_the_facts(tmp_path):
    (tmp_path / "model.pt").write_bytes(b"weights")
    with archives.bundle(command._inputs(tmp_path / "model.pt", "{}")) as bundle, tarfile.open(fileobj=bundle) as tar:
        assert tar.extractfile("work/model.pt").read() == b"weights"
        assert tar.extractfile("work/facts.json").read() == b"{}"
        assert tar.getmember("work/export").uid == 10001, "the container's user writes there"


def test_an_older_checkpoint_says_what_would_do(tmp_path):
    torch.save({"spec": asdict(SPEC), "step": 1, "model": {}}, tmp_path / "model.pt")
    with pytest.raises(ArtefactError, match="train again, or RESUME it"):
        export.export(tmp_path / "model.pt", tmp_path, FACTS)


@pytest.mark.parametrize("model", ["vgg11", "cnn3"])
def test_the_readmes_ten_lines_of_plain_pytorch_predict_the_same(tmp_path, monkeypatch, capsys, model):
    text = (ROOT / "README.md").read_text()
    (lines,) = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "load_file" in block]
    assert len(list(filter(None, lines.splitlines()))) <= 10
    run_folder(tmp_path / "runs", spec=RunSpec(sync="single", nodes=1, model=model, data="synthetic"))
    folder = exported(tmp_path / "runs")
    (tmp_path / "runs/latest").symlink_to("r-1")
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "kitten.png")
    monkeypatch.chdir(tmp_path)
    said = {}
    exec(lines.replace("kitten.jpg", "kitten.png"), said)  # PNG: the pixels stay what they are
    found = artefact.load(folder)(pixels.transpose(2, 0, 1)[None])
    assert np.allclose(said["model"](said["pixels"]).detach().numpy(), found[:, 0], atol=1e-5)
    assert capsys.readouterr().out.strip() == INPUTS["classes"][found[0, 0].argmax()]
