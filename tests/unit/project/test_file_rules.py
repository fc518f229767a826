"""Files are written by one writer, trainer/files.py. What else writes or removes is listed here, each with its reason.

The list can only shrink: a use that is not in it fails, and so does an entry that nothing uses any more.
"""

import ast
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = ("trainer", "node", "monitor", "serving")
WRITER = "trainer/files.py"
OPENERS = {"open", "fdopen"}
MODULES = {"os", "io", "gzip", "bz2", "lzma", "tarfile", "zipfile", "codecs"}
# Each follows links, or takes along whatever a folder holds.
FORBIDDEN = {"write_text", "write_bytes", "copytree", "rmtree", "copy2", "copyfile", "extractall"}
NEW_FOLDER = "into a folder that this process has just made under a name of its own"
OWN_PART = "removes its own unfinished folder"
IN_MEMORY = "no file of a folder: "
ALLOWED: dict[str, tuple[dict[str, int], str]] = {
    "trainer/__main__.py": ({"fdopen": 1}, IN_MEMORY + "a copy of standard output"),
    "node/lock.py": ({"rmtree": 1}, "figures of an earlier run in the node's own tmpfs"),
    "monitor/dashboards/render.py": ({"write_text": 1}, "the dashboards of a checkout, by its developer"),
    "monitor/dashboards/snapshot.py": (
        {"open": 1},
        "a compressed stream into a run's folder; the writer should take it",
    ),
    "monitor/data/mnist.py": ({"rmtree": 1}, "downloads of its own in the cache"),
    "monitor/data/svhn.py": ({"rmtree": 1}, "downloads of its own in the cache"),
    "monitor/data/store.py": ({"rmtree": 3, "write_text": 1, "open": 1}, NEW_FOLDER + "; the cache is this user's"),
    "monitor/engine/archives.py": ({"open": 2}, "a tar in memory; a member whose name and kind have been checked"),
    "monitor/engine/images.py": ({"open": 1, "write_bytes": 1}, "logs and the CA bundle in .build of the checkout"),
    "monitor/experiments/carry_out.py": ({"rmtree": 1}, "checkpoints of a run that this sweep has just made"),
    "monitor/report/page.py": ({"rmtree": 3, "write_text": 2}, "tables and plots: " + NEW_FOLDER + ", then renamed"),
    "monitor/results/remove.py": ({"rmtree": 1}, "`make rm`: removing is what was asked for"),
    "monitor/run/checkpoints.py": ({"rmtree": 1}, "older checkpoints of the run that is on"),
    "monitor/run/recorder.py": ({"rmtree": 3, "write_text": 1, "open": 1}, "the run's own folder, new with it"),
    "monitor/runtime/ownership.py": ({"rmtree": 1}, "a local run's state in /tmp, after its owner was looked at"),
    "monitor/runtime/volumes.py": ({"rmtree": 1}, OWN_PART),
    "monitor/serve/local_host.py": ({"rmtree": 2, "open": 2}, "the server's own folder, of mode 0700"),
}


def writes(call: ast.Call) -> str | None:
    """The name of what this call writes or removes files with, None for any other call."""
    function = call.func
    if isinstance(function, ast.Name):
        name, is_method = function.id, False
    elif isinstance(function, ast.Attribute):
        name, is_method = function.attr, not (isinstance(function.value, ast.Name) and function.value.id in MODULES)
    else:
        return None
    if name in FORBIDDEN:
        return name
    return name if name in OPENERS and opens_for_writing(call, is_method) else None


def opens_for_writing(call: ast.Call, is_method: bool) -> bool:
    """Path.open takes the mode first, open() and those of modules second. A mode that is no literal counts."""
    function = ast.unparse(call.func)
    if function == "os.open":
        words = ast.unparse(call)
        return "os.devnull" not in words and ("O_WRONLY" in words or "O_RDWR" in words)
    modes = [word.value for word in call.keywords if word.arg == "mode"] or call.args[0 if is_method else 1 :][:1]
    if not modes:
        return False
    mode = modes[0]
    if not isinstance(mode, ast.Constant):
        return not is_method
    return isinstance(mode.value, str) and any(letter in mode.value for letter in "wax+")


def uses(source: str) -> Counter[str]:
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return Counter(name for call in calls if (name := writes(call)))


def sources() -> list[str]:
    files = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return [name for path in files if (name := path.relative_to(ROOT).as_posix()) != WRITER]


def test_only_the_writer_and_what_is_listed_write_files():
    wrong = []
    for name in sources():
        allowed = ALLOWED.get(name, ({}, ""))[0]
        for call, count in uses((ROOT / name).read_text()).items():
            if count > allowed.get(call, 0):
                wrong.append(f"{name}: {count} times {call}, {allowed.get(call, 0)} listed: take trainer/files.py")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", ALLOWED)
def test_no_entry_outlives_its_use(name):
    path = ROOT / name
    found = uses(path.read_text()) if path.exists() else Counter()
    assert ALLOWED[name][0] == dict(found), f"{name} has {dict(found)} now: shorten its entry"
    assert ALLOWED[name][1], "a reason"


@pytest.mark.parametrize(
    ("source", "call"),
    [
        ("open(path, 'w')", "open"),
        ("open(path, mode='ab')", "open"),
        ("open(path, mode)", "open"),
        ("path.open('wb')", "open"),
        ("(folder / 'x').open('r+')", "open"),
        ("io.open(path, 'x')", "open"),
        ("gzip.open(path, 'wt')", "open"),
        ("os.open(path, os.O_WRONLY | os.O_CREAT)", "open"),
        ("os.fdopen(number, 'w')", "fdopen"),
        ("(folder / 'x').write_text('')", "write_text"),
        ("path.write_bytes(b'')", "write_bytes"),
        ("shutil.copytree(a, b)", "copytree"),
        ("from shutil import rmtree\nrmtree(a)", "rmtree"),
        ("archive.extractall(a)", "extractall"),
    ],
)
def test_each_way_to_write_is_seen(source, call):
    assert uses(source) == {call: 1}


@pytest.mark.parametrize(
    "source",
    [
        "open(path)",
        "open(path, 'rb')",
        "path.open(encoding='utf-8')",
        "os.open(path, os.O_RDONLY)",
        "os.open(os.devnull, os.O_WRONLY)",
        "opener.open(request, timeout=5)",
        "text.replace('a', 'b')",
        "write_whole(path, 'x')",
    ],
)
def test_reading_and_the_writer_are_not(source):
    assert not uses(source)
