"""Write every lock file again, with hashes: `make lock`.

Run it after a change of pyproject.toml, requirements/docs.in, images/trainer/requirements.in or
images/trainer/torch.txt.
`make lock` keeps the versions that still fit; `make lock UPGRADE=1` takes the newest that the ranges
allow. All files are cut from one resolution for Python 3.10 and newer, so they agree wherever two of
them meet in one environment. Those of the node lie in images/trainer, because the tag of the node
image is made from that folder.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from monitor import toml

ROOT = Path(__file__).resolve().parents[1]
NODE = "images/trainer"
TORCH = f"{NODE}/torch.txt"
OPTIONS = ("--universal", "--python-version=3.10", "--no-config", "--quiet", "--custom-compile-command=make lock")


@dataclass(frozen=True)
class Lock:
    """A lock file and what it is resolved from.

    sources: files to read, as uv takes them; requirements: lines in place of files; options: further words for uv.
    """

    path: str
    sources: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


def lock_files() -> list[Lock]:
    """Every lock file of the repository."""
    build = toml.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    without_torch = ("--no-emit-package", "torch", "--no-emit-package", "torchvision")
    return [
        Lock("requirements/build.txt", requirements=tuple(build)),
        Lock("requirements/monitor.txt", ("pyproject.toml",)),
        Lock("requirements/tensorboard.txt", ("pyproject.toml",), options=("--extra", "tensorboard")),
        Lock("requirements/docs.txt", ("requirements/docs.in",)),
        Lock("requirements/dev.txt", ("pyproject.toml",), options=("--extra", "dev")),
        Lock(f"{NODE}/requirements.txt", (f"{NODE}/requirements.in",)),
        Lock(f"{NODE}/torch-deps.txt", (TORCH,), options=without_torch),
        Lock(f"{NODE}/torch-pypi.txt", (TORCH,), options=("--no-deps",)),
        Lock(f"{NODE}/uv.txt", requirements=("uv",)),
    ]


def compile_lock(lock: Lock, *options: str) -> None:
    """Resolve one file in place. uv prefers the versions that the file already holds."""
    sources = lock.sources + (("-",) if lock.requirements else ())
    command = [sys.executable, "-m", "uv", "pip", "compile", *sources, *OPTIONS, *lock.options, *options]
    command += ["--output-file", lock.path]
    lines = "\n".join(lock.requirements)
    if subprocess.run(command, cwd=ROOT, input=lines, text=True, check=False).returncode:
        sys.exit(f"{lock.path}: not resolved, see above")


def main() -> None:
    locks = lock_files()
    together = ROOT / ".build/lock.txt"
    together.parent.mkdir(exist_ok=True)
    held = [(ROOT / lock.path).read_text() for lock in locks if (ROOT / lock.path).exists()]
    pins = sorted({pin for text in held for pin in re.findall(r"^[a-z0-9][^\\\n]*", text, re.MULTILINE)})
    together.write_text("" if os.environ.get("UPGRADE") == "1" else "\n".join(pins) + "\n")
    sources = tuple(dict.fromkeys(source for lock in locks for source in lock.sources))
    requirements = tuple(line for lock in locks for line in lock.requirements)
    compile_lock(Lock(str(together.relative_to(ROOT)), sources, requirements, ("--all-extras",)))
    for lock in locks:
        (ROOT / lock.path).write_text(together.read_text())
        compile_lock(lock, "--generate-hashes")
        print(lock.path)


if __name__ == "__main__":
    main()
