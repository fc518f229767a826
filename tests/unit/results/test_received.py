"""What was received is read as plain files of bounded size, and none of its names leads elsewhere."""

import json
import os
import socket
from dataclasses import asdict
from functools import partial
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orchestrator import write_cifar
from report_cases import ended, write_document, write_run

from monitor import cli
from monitor.data import catalogue
from monitor.errors import UserError
from monitor.report.load import load
from monitor.results import remove, store
from monitor.run import resume
from trainer import received
from trainer.checkpoint_folder import Complete, DamagedError, complete_ones, read, sha256, verify
from trainer.names import is_checkpoint_file, is_run
from trainer.spec import RunSpec

READERS = [
    lambda path: received.read_received(path, 10),
    received.load_json,
    lambda path: list(received.received_lines(path)),
]
KINDS = ["link to a device", "link to a file", "link to nothing", "pipe", "socket", "folder"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # short paths: a socket's is at most 108 bytes
    return tmp_path


def put(path, kind):
    """Something at `path` that is no plain file. Returns what it is called."""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(os.path.relpath(path))
    elif kind == "folder":
        path.mkdir()
    else:
        (path.parent.parent / "other").write_text("{}")
        path.symlink_to({"device": "/dev/zero", "file": "../other", "nothing": "nowhere"}[kind.split()[-1]])
    return "a symbolic link" if kind.startswith("link") else f"a {kind}"


@pytest.mark.parametrize("kind", KINDS[:-1])
def test_only_a_plain_file_is_read(here, kind):
    (here / "run").mkdir()
    what = put(here / "run" / "file", kind)
    for call in READERS:
        with pytest.raises(received.ReceivedError, match=f"^file is {what}; only a plain file is read$"):
            call(here / "run" / "file")


def test_a_file_that_is_too_large_is_not_read(here):
    (here / "file").touch()
    os.truncate(here / "file", 1 << 40)
    for call in READERS:
        with pytest.raises(received.ReceivedError, match=r"^file is larger than [0-9]+ bytes$"):
            call(here / "file")
    (here / "file").write_bytes(b"0123456789")
    assert received.read_received(here / "file", 10) == b"0123456789"


@pytest.mark.parametrize(
    "text",
    ["[" * 200_000, "[" * 65 + "]" * 65, '{"a":' * 500 + "1" + "}" * 500, "NaN", "[-Infinity]", "1e999", "9" * 30,
     '{"a": ' + "1" * 5000 + "}", "", "{", "\udcff"],
)  # fmt: skip
def test_a_document_that_is_none_of_ours_is_a_value_error(here, text):
    (here / "file").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=r"."):
        received.load_json(here / "file")


@given(st.recursive(st.none() | st.booleans() | st.integers(-(10**17), 10**17) | st.text(), st.lists, max_leaves=9))
def test_a_document_of_ours_is_read_as_json_reads_it(tmp_path_factory, value):
    path = tmp_path_factory.getbasetemp() / "document"
    path.write_text(json.dumps(value))
    assert received.load_json(path) == value


def test_a_line_that_is_too_long_is_passed_over(here):
    (here / "file").write_bytes(b"one\n" + b"x" * 25 + b"\ntwo\r\n\n" + b"y" * 9 + b"\nlast")
    assert list(received.received_lines(here / "file", most_line=10)) == ["one", "two", "", "y" * 9, "last"]


@given(st.text(max_size=30))
def test_a_name_of_a_run_is_one_plain_part_of_a_path(name):
    if is_run(name):
        assert "/" not in name and name not in ("", ".", "..") and name.isprintable()
    assert not is_checkpoint_file(name)


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "/abs", "a\n", "-x", "a" * 201, None, 3, ["a"], "ä"])
def test_what_is_no_name_of_a_run(name):
    assert not is_run(name)


@pytest.mark.parametrize("kind", KINDS)
def test_one_bad_run_takes_nothing_from_the_list(here, capsys, kind):
    write_run(here / "runs" / "20260301-good")
    write_document(here / "runs" / "bad", ended("bad"))
    put(here / "runs" / "bad" / "result.json", kind)
    assert cli.main(["runs"]) == 0
    out, err = capsys.readouterr()
    assert "20260301-good" in out and "unreadable" in out
    assert "run bad: result.json" in " ".join(err.split())


@pytest.mark.parametrize(
    "text",
    ["[" * 200_000, '{"schema": 2, "id": ' + "[" * 900 + "]" * 900 + "}", '{"schema": ' + "9" * 4000 + "}", "null"],
)
def test_one_odd_document_takes_nothing_from_the_list(here, capsys, text):
    write_run(here / "runs" / "20260301-good")
    (here / "runs" / "bad").mkdir()
    (here / "runs" / "bad" / "result.json").write_text(text)
    assert cli.main(["runs"]) == 0
    assert "20260301-good" in capsys.readouterr().out


@pytest.mark.parametrize("part", ["events.jsonl", "metrics.csv", "report.md.part", ".lock", "checkpoints", "report"])
def test_a_run_whose_parts_are_links_is_refused_by_name_and_nothing_is_written(here, part):
    folder = write_run(here / "runs" / "evil")
    (here / "home").mkdir()
    (folder / part).unlink(missing_ok=True)
    (folder / part).symlink_to(here / "home")
    before = set(folder.iterdir())
    for command in ("report", "show", "export"):
        assert cli.main([command, "evil"]) == 2
    with pytest.raises(UserError, match=rf"^run evil: {part} is a symbolic link; only a plain file is read$"):
        load(folder)
    assert set(folder.iterdir()) == before and not list((here / "home").iterdir())


@pytest.mark.parametrize(
    "to", ["../precious/thesis", "{here}/precious/thesis", "..", ".", "inner/../../precious/thesis", "link"]
)
def test_latest_is_not_followed_out_of_the_runs_folder(here, to):
    runs, thesis = here / "runs", here / "precious" / "thesis"
    for folder in (runs / "inner", thesis):
        folder.mkdir(parents=True)
    for path in (thesis / "result.json", thesis / "chapter1.tex", here / "spec.json", runs / "spec.json"):
        path.touch()
    (runs / "link").symlink_to(thesis)
    (runs / "latest").symlink_to(to.format(here=here))
    with pytest.raises(
        UserError, match=r"^run latest: .*latest points to .*, which is no run beside it; remove the link$"
    ):
        remove.command({"RUN": "latest"}, SimpleNamespace())
    assert {path.name for path in thesis.iterdir()} == {"result.json", "chapter1.tex"}
    assert (runs / "inner").is_dir() and (here / "spec.json").exists()
    for command in ("show", "report", "export"):
        assert cli.main([command, "latest"]) == 2


def test_a_runs_id_is_its_folders_name_whatever_its_result_says(here):
    write_run(here / "runs" / "plain", id="../../victim")
    assert store.load("plain", here / "runs").id == "plain"
    assert load(here / "runs" / "plain").folder.name == "plain"
    (here / "runs" / "latest").symlink_to("plain")
    assert store.load("latest", here / "runs").id == "plain"


def checkpoint(run, **changes):
    folder = run / "checkpoints" / "step-000040"
    folder.mkdir(parents=True)
    (folder / "model.pt").write_bytes(b"weights")
    files = {"model.pt": {"bytes": 7, "sha256": sha256(folder / "model.pt")}}
    complete = asdict(Complete(40, 1, 2, asdict(RunSpec()), {}, files)) | changes
    (folder / "complete.json").write_text(json.dumps(complete))
    return folder


GOOD = {"bytes": 0, "sha256": "0" * 64}


@pytest.mark.parametrize(
    "changes",
    [{"files": {name: GOOD}} for name in ("/dev/zero", "../x", "rank-01.pt", "rank--1.pt", "model.pt\n", "")]
    + [{"files": {"model.pt": file}} for file in (None, {}, GOOD | {"sha256": "../"}, GOOD | {"bytes": 1 << 60})]
    + [{"files": []}, {"step": "40"}, {"step": -1}, {"world_size": True}, {"spec": 3}, {"facts": None}],
)  # fmt: skip
def test_complete_json_names_files_of_a_checkpoint_alone(here, changes):
    folder = checkpoint(here / "runs" / "r", **changes)
    with pytest.raises(DamagedError, match=r"complete.json: cannot be read"):
        verify(folder)
    write_document(here / "runs" / "r", ended("r"))
    with pytest.raises(UserError, match=r"^RESUME=r: "):
        resume.find("r", here / "runs")


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoints_files_are_plain(here, kind):
    folder = checkpoint(here / "runs" / "r")
    put(folder / "model.pt", kind)
    with pytest.raises(DamagedError, match=r"model.pt"):
        verify(folder)


def test_a_folder_of_checkpoints_that_is_a_link_is_not_followed(here):
    folder = checkpoint(here / "runs" / "r")
    assert read(folder).step == 40 and complete_ones(folder.parent) == [folder]
    (here / "linked").symlink_to(folder.parent)
    assert complete_ones(here / "linked") == []
    (folder.parent / "step-000050").symlink_to(folder)
    assert complete_ones(folder.parent) == [folder]


@pytest.mark.parametrize("what", ["file", "device", "pipe", "nothing"])
def test_the_users_own_data_may_be_links_to_plain_files(tmp_path, what):
    """Caches of data sets are made of links. One to a device or a pipe is read no more than that itself."""
    folder = write_cifar(tmp_path / "blobs")
    linked = tmp_path / "cifar"
    linked.mkdir()
    for path in folder.iterdir():
        (linked / path.name).symlink_to(path)
    if what != "file":
        batch = linked / "data_batch_1"
        batch.unlink()
        os.mkfifo(tmp_path / "pipe")
        batch.symlink_to({"device": "/dev/zero", "pipe": tmp_path / "pipe", "nothing": "nowhere"}[what])
    get = partial(catalogue.prepare, "cifar10", seed=1, data_dir=linked, cache=tmp_path / "cache", say=lambda _: None)
    if what == "file":
        assert get().manifest["train_samples"] == 64
        return
    with pytest.raises(UserError, match="data_batch_1"):
        get()
