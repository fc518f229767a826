"""A model that was received: its names stay in the store, its files are two, its size is its model's."""

import json
import os
from types import SimpleNamespace

import pytest
import torch
from report_cases import ended, write_document
from test_serving_export import INPUTS, SPEC, exported, run_folder

from monitor import cli
from monitor.errors import UserError
from monitor.serve import command, export, local_host
from serving import artefact
from serving.artefact import ABOUT, WEIGHTS, ArtefactError
from trainer.checkpoint_folder import sha256


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The artefact of runs/r-1."""
    monkeypatch.chdir(tmp_path)
    run_folder(tmp_path / "runs")
    return exported(tmp_path / "runs")


@pytest.fixture
def put(monkeypatch, tmp_path):
    """What `serve` puts into a server that is there, and where."""
    puts = []
    place = SimpleNamespace(port=lambda: 8080, put=lambda *which: puts.append(which), words="", name="local")
    monkeypatch.setattr(command, "hosts", lambda settings: [place])
    monkeypatch.setattr(command.management, "served", lambda port: set())
    monkeypatch.setattr(command.management, "register", lambda *more: "1.0")
    return puts


def change(folder, **changes):
    about = json.loads((folder / ABOUT).read_text()) | changes
    (folder / ABOUT).write_text(json.dumps(about))


def test_an_artefact_of_ours_is_served(folder, put):
    assert cli.main(["serve", "r-1"]) == 0
    ((which, url),) = put
    assert which.name == "export" and url.startswith("r-1-")


@pytest.mark.parametrize(
    "changes",
    [{"run": name} for name in ("/tmp/victim", "../victim", "..", "", "a/b", "a\0", 3, None, ["r"])]
    + [{"sha256": "../../x"}, {"sha256": "A" * 64}, {"model": "../vgg"}, {"model": "a\nb"}],
)
def test_a_name_that_leads_out_of_the_store_is_refused_before_anything_is_written(folder, put, changes):
    change(folder, **changes)
    with pytest.raises(UserError, match=r"^RUN=r-1: export/model.json: "):
        export.present("r-1", folder.parents[1])
    assert cli.main(["serve", "r-1"]) == 2 and not put
    with pytest.raises(ArtefactError):
        artefact.read(folder)


@pytest.mark.parametrize("name", [ABOUT, WEIGHTS])
@pytest.mark.parametrize("kind", ["device", "file", "pipe"])
def test_files_of_an_artefact_are_plain(folder, put, name, kind):
    (folder / name).rename(folder.parent / "moved")
    if kind == "pipe":
        os.mkfifo(folder / name)
    else:
        (folder / name).symlink_to("/dev/zero" if kind == "device" else "../moved")
    assert cli.main(["serve", "r-1"]) == 2 and not put
    with pytest.raises(ArtefactError):
        artefact.load(folder)


def test_nothing_else_of_the_folder_goes_into_the_store(folder, monkeypatch, tmp_path):
    monkeypatch.setattr(local_host.tempfile, "gettempdir", lambda: str(tmp_path))
    here = local_host.LocalHost()
    here._store.mkdir(parents=True)
    (folder / "extra").symlink_to("/dev/zero")
    (folder / "evil.desktop").touch()
    (folder / "deep").mkdir()
    here.put(folder, "r-1-0")
    assert {path.name for path in (here._store / "r-1-0").iterdir()} == {ABOUT, WEIGHTS}


def test_weights_are_as_large_as_their_model(folder, put):
    os.truncate(folder / WEIGHTS, 1 << 40)
    assert cli.main(["serve", "r-1"]) == 2 and not put
    with pytest.raises(ArtefactError, match=r"this model's weights have at most"):
        artefact.load(folder)


@pytest.mark.parametrize(
    "classes", [[""] * 500_000, [""] * 1001, [], "abc", None, [1], ["x" * 201], {"a": 1}], ids=lambda v: str(v)[:9]
)
def test_classes_are_bounded_before_a_model_is_built(folder, classes):
    change(folder, classes=classes)
    with pytest.raises(ArtefactError, match=r"cannot be read"):
        artefact.load(folder)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda state: state.popitem(),
        lambda state: state.update(more=torch.zeros(3)),
        lambda state: state.update(dict.fromkeys(state, torch.zeros(1))),
        lambda state: state.update(dict.fromkeys(state, "text")),
    ],
)
def test_weights_of_another_model_are_not_exported(folder, spoil):
    about = artefact.read(folder)
    state = artefact.load(folder)._module.state_dict()
    spoil(state)
    (folder / ABOUT).unlink()
    with pytest.raises(ArtefactError, match=r"^this checkpoint cannot be exported: .*; train again$"):
        artefact.write(folder, state, about)
    assert not (folder / ABOUT).exists()


def test_the_runs_name_is_its_folders(tmp_path, folder):
    write_document(folder.parent, ended("../../victim", steps=40))
    again = export.export("r-1", tmp_path / "runs")
    assert again == folder and artefact.read(folder).run == "r-1"
    assert artefact.read(folder).sha256 == sha256(folder / WEIGHTS) and INPUTS["data"] == SPEC.data
