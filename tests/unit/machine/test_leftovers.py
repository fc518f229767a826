"""What `clean` says of what ranks left: they chose the names."""

import subprocess
from types import SimpleNamespace

import pytest

from monitor.machine import leftovers


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"20260301-run", "20260301-run"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"a\nfolder other in trainer-9", "a folder other in trainer-9"),
        (b"a\rb\x85c\xc2\x85d", "a b\ufffdc d"),
        (b"-rf", "-rf"),
    ],
)
def test_a_folder_of_any_name_is_one_line(tmp_path, name, shown):
    """The node's own command is run here, on a folder of this test."""
    folder = bytes(tmp_path) + b"/" + name
    subprocess.run([b"mkdir", b"--", folder], check=True)

    def exec_run(command):
        here = [str(tmp_path) if word == "/runs" else word for word in command if word not in ("-cmin", "+2")]
        done = subprocess.run(here, capture_output=True)
        return done.returncode, done.stdout

    assert leftovers._remove_outputs(SimpleNamespace(name="trainer-0", exec_run=exec_run)) == [
        f"folder {tmp_path}/{shown} in trainer-0"
    ]
    assert not list(tmp_path.iterdir())
