"""What is made and removed in a folder stays in it."""

import contextlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.files import new_file, remove_folder
from trainer.names import in_folder


def names(folder: Path) -> list[str]:
    return sorted(item.name for item in folder.iterdir())


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "file"
    file.write_text("old")
    return file


@pytest.mark.parametrize("kind", ["file", "link", "dangling link", "folder", "pipe"])
def test_a_new_file_is_written_over_nothing(path, tmp_path, kind):
    place = tmp_path / "new"
    match kind:
        case "file":
            place.write_text("old")
        case "folder":
            place.mkdir()
        case "pipe":
            os.mkfifo(place)
        case _:
            place.symlink_to(path if kind == "link" else "nowhere")
    with pytest.raises(FileExistsError):
        new_file(place)
    assert path.read_text() == "old" and not (tmp_path / "nowhere").exists()
    with new_file(tmp_path / "other") as file:
        file.write(b"x")
    assert (tmp_path / "other").read_bytes() == b"x"


def test_a_folder_is_removed_and_no_link_is_followed(path, tmp_path):
    folder, kept = tmp_path / "folder", tmp_path / "kept"
    for place in (folder / "deep", kept):
        place.mkdir(parents=True)
        (place / "file").touch()
    (folder / "link").symlink_to(kept)
    (folder / "to a file").symlink_to(path)
    remove_folder(folder)
    assert names(tmp_path) == ["file", "kept"] and names(kept) == ["file"]
    (tmp_path / "link").symlink_to(kept)
    for place in (tmp_path / "link", path, tmp_path / "none"):
        with pytest.raises(OSError):
            remove_folder(place)
        remove_folder(place, may_stay=True)
    assert names(tmp_path) == ["file", "kept", "link"] and names(kept) == ["file"]


@pytest.mark.parametrize("name", ["", ".", "..", "/", "/etc/passwd", "../x", "a/b", "a/", "a\0b", "../../x.toml"])
def test_a_name_that_is_put_together_stays_in_its_folder(tmp_path, name):
    with pytest.raises(ValueError, match=r"is no name of anything in a folder$"):
        in_folder(tmp_path, name)


@given(st.text())
def test_what_is_in_a_folder_is_there(name):
    folder = Path("/a/b")
    with contextlib.suppress(ValueError):
        path = in_folder(folder, name)
        assert path.parent == folder and path.name == name
