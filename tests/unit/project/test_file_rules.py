"""Files are written and folders removed in one place, trainer/files.py; names are checked in one, trainer/names.py.

What writes, copies or removes otherwise, and what makes a path of text that is put together, is listed here, each with
its reason. The lists can only shrink: a use that is not in them fails, and so does an entry that nothing uses any more.
Paths in a node, which Docker's calls take, are no paths of this machine.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = ("trainer", "node", "monitor", "serving")
WRITER = "trainer/files.py"
OPENERS = {"open", "fdopen"}  # a method takes the mode first, a function second
ARCHIVES = {"GzipFile", "BZ2File", "LZMAFile", "ZipFile", "TarFile", "FileIO"}
MODULES = {"os", "io", "gzip", "bz2", "lzma", "tarfile", "zipfile", "codecs", "shutil"}
# Each follows links, takes along whatever a folder holds, or makes something that a reader does not expect.
FORBIDDEN = {"write_text", "write_bytes", "touch", "symlink_to", "hardlink_to", "copytree", "rmtree", "copy2"}
FORBIDDEN |= {"copyfile", "copymode", "copystat", "extractall", "unpack_archive", "make_archive", "removedirs", "mknod"}
OF_MODULES = {"shutil": {"copy", "move"}, "os": {"symlink", "link", "mkfifo", "truncate", "makedirs"}}
IN_MEMORY = "no file of a folder: "
ALLOWED: dict[str, tuple[dict[str, int], str]] = {
    "trainer/__main__.py": ({"fdopen": 1}, IN_MEMORY + "a copy of standard output"),
    "node/warm.py": ({"open": 1}, "a switch of the kernel for this process, in /proc/self"),
    "monitor/engine/archives.py": ({"open": 1}, "a member of an archive, whose name and kind have been checked"),
}
PATHS = {"Path", "PurePath", "PosixPath", "open", "joinpath", "with_name", "with_stem", "with_suffix", "glob", "rglob"}
NUMBER = "a whole number is all that is put in"
BUILT: dict[str, tuple[int, str]] = {
    "monitor/machine/doctor.py": (1, "the kernel's own name of its release"),
    "monitor/results/machine.py": (1, "of a process in /proc: " + NUMBER),
    "monitor/runtime/ownership.py": (1, "a pattern with a constant of ours"),
    "node/leftovers.py": (1, "a pattern with a constant of ours"),
    "trainer/wire/interface.py": (1, "a counter below /sys, one of two constants"),
}


def uses(source: str) -> Counter[str]:
    """What this source writes, copies or removes files with, by name."""
    return Counter(_uses(ast.parse(source)))


def _uses(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name) if name in FORBIDDEN:
                yield name  # called or handed on
            case ast.Attribute(value=ast.Name(id=module), attr=name) if name in OF_MODULES.get(module, ()):
                yield name
            case ast.ImportFrom(module=module, names=names) if module in MODULES:
                yield from (alias.name for alias in names if _is_writer(module, alias.name))
            case ast.Import(names=names):
                yield from (alias.name for alias in names if alias.name in MODULES and alias.asname)
            case ast.Call() if (name := _called(node)) and _opens_for_writing(node, name):
                yield name


def _is_writer(module: str, name: str) -> bool:
    """Whether a function that is imported by its name would not be seen as one of its module."""
    return name in FORBIDDEN | OPENERS or name in OF_MODULES.get(module, ())


def _called(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _opens_for_writing(call: ast.Call, name: str) -> bool:
    """A mode that is no literal counts, where it can be one."""
    if name not in OPENERS | ARCHIVES or any(word.arg == "fileobj" for word in call.keywords):
        return False
    function = ast.unparse(call.func)
    if function == "os.open":
        words = ast.unparse(call)
        return "os.devnull" not in words and ("O_WRONLY" in words or "O_RDWR" in words)
    is_method = "." in function and function.split(".")[0] not in MODULES
    modes = [word.value for word in call.keywords if word.arg == "mode"]
    modes = modes or call.args[0 if is_method and name == "open" else 1 :][:1]
    if not modes:
        return False
    mode = modes[0]
    if not isinstance(mode, ast.Constant):
        return not is_method
    return isinstance(mode.value, str) and any(letter in mode.value for letter in "wax+")


def built_paths(source: str) -> int:
    """How many paths are made of text that is put together: nobody has looked at the parts."""
    count = 0
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.BinOp(op=ast.Div(), left=left, right=right):
                count += _is_built(right) or _is_built(left)
            case ast.Call(args=[first, *_]) if _called(node) in PATHS or _is_of_os(node.func):
                count += _is_built(first)
            case ast.Attribute(attr="join") if ast.unparse(node).endswith("path.join"):
                count += 1
    return count


def _is_of_os(function: ast.expr) -> bool:
    return ast.unparse(function).startswith(("os.", "shutil."))


def _is_built(text: ast.expr) -> bool:
    match text:
        case ast.JoinedStr(values=values):
            return any(isinstance(value, ast.FormattedValue) for value in values)
        case ast.BinOp(op=ast.Add() | ast.Mod(), left=left, right=right):
            return any(_is_text(part) or _is_built(part) for part in (left, right))
        case ast.Call(func=ast.Attribute(value=value, attr="format" | "join")):
            return _is_text(value)
    return False


def _is_text(part: ast.expr) -> bool:
    is_str = isinstance(part, ast.Call) and _called(part) in ("str", "fspath")
    return is_str or (isinstance(part, ast.Constant) and isinstance(part.value, str))


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


def test_names_that_are_put_together_are_checked():
    wrong = []
    for name in sources():
        allowed = BUILT.get(name, (0, ""))[0]
        if (count := built_paths((ROOT / name).read_text())) > allowed:
            wrong.append(f"{name}: {count} paths of built text, {allowed} listed: take in_folder() of trainer/names.py")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", ALLOWED)
def test_no_entry_outlives_its_use(name):
    path = ROOT / name
    found = uses(path.read_text()) if path.exists() else Counter()
    assert ALLOWED[name][0] == dict(found), f"{name} has {dict(found)} now: shorten its entry"
    assert ALLOWED[name][1], "a reason"


@pytest.mark.parametrize("name", BUILT)
def test_no_built_path_outlives_its_use(name):
    path = ROOT / name
    assert BUILT[name][0] == (built_paths(path.read_text()) if path.exists() else 0) and BUILT[name][1]


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
        ("tarfile.open(path, 'w:gz')", "open"),
        ("zipfile.ZipFile(path, 'w')", "ZipFile"),
        ("gzip.GzipFile(path, mode='wb')", "GzipFile"),
        ("io.FileIO(path, 'w')", "FileIO"),
        ("os.open(path, os.O_WRONLY | os.O_CREAT)", "open"),
        ("os.fdopen(number, 'w')", "fdopen"),
        ("(folder / 'x').write_text('')", "write_text"),
        ("path.write_bytes(b'')", "write_bytes"),
        ("path.touch()", "touch"),
        ("link.symlink_to(target)", "symlink_to"),
        ("os.symlink(a, b)", "symlink"),
        ("shutil.copytree(a, b)", "copytree"),
        ("shutil.copy(a, b)", "copy"),
        ("shutil.move(a, b)", "move"),
        ("shutil.rmtree(a)", "rmtree"),
        ("remove = shutil.rmtree", "rmtree"),
        ("pool.submit(shutil.rmtree, a)", "rmtree"),
        ("from shutil import rmtree as remove\nremove(a)", "rmtree"),
        ("from shutil import move as put\nput(a, b)", "move"),
        ("from os import open as begin\nbegin(a, flags)", "open"),
        ("import shutil as s\ns.move(a, b)", "shutil"),
        ("archive.extractall(a)", "extractall"),
        ("shutil.unpack_archive(a)", "unpack_archive"),
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
        "tarfile.open(fileobj=file, mode='w')",
        "gzip.GzipFile(fileobj=file, mode='wb')",
        "zipfile.ZipFile(file)",
        "text.replace('a', 'b')",
        "values.copy()",
        "shutil.copyfileobj(source, target)",
        "shutil.which('docker')",
        "write_whole(path, 'x')",
        "remove_folder(path)",
    ],
)
def test_reading_and_the_writer_are_not(source):
    assert not uses(source)


@pytest.mark.parametrize(
    "source",
    [
        "Path(f'{folder}/{name}')",
        "folder / f'{name}.csv'",
        "folder / (name + '.csv')",
        "folder / ('%s.csv' % name)",
        "folder / '{}.csv'.format(name)",
        "folder / '/'.join(parts)",
        "Path(str(folder) + name)",
        "open(folder + '/x')",
        "os.path.join(folder, name)",
        "os.lstat(f'{folder}/x')",
        "folder.joinpath(f'{name}.csv')",
        "path.with_name(f'{name}.part')",
        "folder.glob(f'{name}-*')",
        "f'{folder}' / 'x'",
    ],
)
def test_each_way_to_build_a_path_is_seen(source):
    assert built_paths(source) == 1


@pytest.mark.parametrize(
    "source",
    [
        "folder / name",
        "folder / 'a' / 'b.csv'",
        "Path('/proc/self/status')",
        "in_folder(folder, f'{name}.csv')",
        "Path(__file__).parents[1]",
        "total / count",
        "(total + 1) / count",
        "100 * value / f(x)",
        "say(f'{folder}/{name}')",
        "path.with_name('x')",
        "', '.join(parts)",
    ],
)
def test_plain_parts_and_the_checked_name_are_not(source):
    assert not built_paths(source)
