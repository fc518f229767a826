"""`rm` removes runs, and nothing else."""

import os
from types import SimpleNamespace

import pytest
from report_cases import begun, ended, write_document

from monitor.errors import UserError
from monitor.results.remove import command


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, status in (("2026-a", "finished"), ("2026-b", "failed"), ("2026-c", "running")):
        folder = tmp_path / "runs" / name
        document = ended(name, schema=1, status=status) if status == "finished" else begun(name, status, schema=1)
        write_document(folder, document | {"orchestrator_pid": os.getpid()})
    (tmp_path / "runs" / "notes").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "result.json").write_text("{}")
    (tmp_path / "runs" / "link").symlink_to("../outside")
    (tmp_path / "runs" / "latest").symlink_to("2026-b")
    return tmp_path / "runs"


def remove(**settings) -> int:
    return command(settings, SimpleNamespace(json=False))


def left(runs) -> set[str]:
    return {path.name for path in runs.iterdir()}


def test_several_at_once_and_latest_follows(runs):
    assert remove(RUN="latest, 2026-b") == 0
    assert left(runs) == {"2026-a", "2026-c", "notes", "link", "latest"}
    assert (runs / "latest").readlink().name == "2026-c"


def test_an_unreadable_run_may_go(runs):
    (runs / "2026-a" / "result.json").write_text("{")
    remove(RUN="2026-a")
    assert not (runs / "2026-a").exists()
    assert (runs / "latest").readlink().name == "2026-b"


def test_a_run_whose_result_is_gone_may_go(runs):
    (runs / "2026-a" / "result.json").rename(runs / "2026-a" / "spec.json")
    remove(RUN="2026-a")
    assert not (runs / "2026-a").exists()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "RUN=: which runs?"),
        ("2026-a nobody", "RUN=nobody: no run of that id in runs (newest: 2026-c"),
        ("2026-a 2026-c", "RUN=2026-c: it is running"),
        ("notes", "RUN=notes: no run"),
        ("../outside", "RUN=../outside: no run"),
        ("..", "RUN=..: no run"),
        (".", "RUN=.: no run"),
        ("link", "RUN=link: no run"),
        ("x" * 300, "RUN=xxx"),
        ("x" * 5000, "RUN=xxx"),
        ("-rf", "RUN=-rf: no run"),
    ],
)
def test_what_is_no_finished_run_is_refused_and_all_stays(runs, name, says):
    before = left(runs)
    with pytest.raises(UserError) as error:
        remove(RUN=name)
    assert str(error.value).startswith(says)
    assert left(runs) == before
    assert (runs.parent / "outside" / "result.json").exists()


def test_the_last_one_takes_latest_with_it(runs):
    for name in ("2026-c", "link", "notes"):
        path = runs / name
        path.unlink() if path.is_symlink() else os.system(f"rm -r {path}")
    remove(RUN="2026-a 2026-b")
    assert left(runs) == set()
