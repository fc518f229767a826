"""The server of models as a process of this machine, which goes on when the command has ended.

Its folder, syncbed-serve-<uid> among the temporary files, is locked by the server for as long as it lives: when it was
killed, the next `make serve`, `make serve-stop` or `make clean` removes what it left.
"""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import requests

from monitor.engine import ROOT, one_line
from monitor.errors import RunFailed, UserError
from monitor.runtime.local import STATE_PREFIX, own, ownerless

NEEDS = ("torch", "safetensors", "uvicorn", "httptools", "starlette", "python_multipart")
SERVING_PORT = 8080  # of predictions, where none is named; the two above it are management and metrics
_START_SECONDS, _STOP_SECONDS = 60, 10


class LocalHost:
    """This machine as a place for a server; one for each user."""

    name = "local"

    def __init__(self):
        self._folder = Path(tempfile.gettempdir()) / f"{STATE_PREFIX}serve-{os.getuid()}"

    def port(self) -> int | None:
        """Where the server that is there answers."""
        return self._said()["port"] if self._lives() else None

    def start(self, port: int) -> None:
        """Start the server and wait until it answers. Raises UserError and RunFailed."""
        lacking = [name for name in NEEDS if importlib.util.find_spec(name) is None]
        if lacking:
            raise UserError(f"RUNTIME=local: {', '.join(lacking)} not installed here; `make torch` does it")
        self._clear()
        store, log = self._folder / "store", self._folder / "log"
        self._folder.mkdir(mode=0o700)
        store.mkdir()
        with own(self._folder) as lock, log.open("w") as out:
            server = subprocess.Popen(
                [sys.executable, "-m", "serving", "--store", str(store), "--port", str(port)],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                pass_fds=[lock.fileno()],  # the server keeps the lock when this process has ended
                start_new_session=True,
            )
        (self._folder / "server.json").write_text(json.dumps({"pid": server.pid, "port": port}))
        until = time.monotonic() + _START_SECONDS
        while not _answers(port):
            if server.poll() is not None or time.monotonic() > until:
                server.kill()
                server.wait()
                said = one_line(log.read_text(errors="replace"))
                self._clear()
                raise RunFailed(f"the server did not start: {said}")
            time.sleep(0.05)

    def put(self, folder: Path, name: str) -> None:
        """Copy an artefact into the store."""
        part = self._folder / "store" / f".{name}"
        shutil.copytree(folder, part, dirs_exist_ok=True)
        part.rename(self._folder / "store" / name)

    def stop(self) -> list[str]:
        """Let it answer what is in flight, then remove what it had. Returns what was removed."""
        removed = []
        if self._lives():
            pid = self._said()["pid"]
            os.kill(pid, signal.SIGTERM)
            until = time.monotonic() + _STOP_SECONDS
            while self._lives():
                if time.monotonic() > until:
                    os.kill(pid, signal.SIGKILL)
                time.sleep(0.02)
            removed.append(f"process {pid}")
        return removed + self._clear()

    def _lives(self) -> bool:
        with suppress(OSError):
            if self._folder.is_symlink() or self._folder.stat().st_uid != os.getuid():
                raise UserError(f"{self._folder}: not this user's; remove it")
            return not ownerless(self._folder)
        return False

    def _said(self) -> dict:
        """What the server that lives was started with."""
        try:
            return json.loads((self._folder / "server.json").read_text())
        except (OSError, ValueError) as error:
            raise RunFailed(f"{self._folder}/server.json cannot be read ({error}); is it starting just now?") from None

    def _clear(self) -> list[str]:
        """Remove what a server left that has ended."""
        if not self._folder.exists() or self._lives():
            return []
        shutil.rmtree(self._folder)
        return [f"folder {self._folder}"]


def _answers(port: int) -> bool:
    with suppress(requests.RequestException):
        return requests.get(f"http://127.0.0.1:{port}/ping", timeout=5).ok
    return False
