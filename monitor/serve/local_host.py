"""The server of models as a process of this machine, which goes on when the command has ended.

Its folder, syncbed-serve-<uid> among the temporary files, is locked by the server for as long as it lives: when it was
killed, the next `make serve`, `make serve-stop` or `make clean` removes what it left.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import requests

from monitor.checkout import ROOT
from monitor.engine.sdk import one_line
from monitor.errors import RunFailed, UserError
from monitor.runtime.ownership import STATE_PREFIX, own, ownerless
from monitor.serve import export
from node import ending
from trainer.files import new_file, remove_folder
from trainer.names import in_folder
from trainer.received import open_received

NEEDS = ("torch", "safetensors", "uvicorn", "httptools", "starlette", "python_multipart")
SERVING_PORT = 8080  # of predictions, where none is named; the two above it are management and metrics
_START_SECONDS, _STOP_SECONDS = 60, 15  # it ends within serving.server.DRAIN_SECONDS


class LocalHost:
    """This machine as a place for a server; one for each user."""

    name, words = "local", " RUNTIME=local"  # what names it beside `make serve-stop`

    def __init__(self):
        self._folder = in_folder(Path(tempfile.gettempdir()), f"{STATE_PREFIX}serve-{os.getuid()}")
        self._store = self._folder / "store"

    def port(self) -> int | None:
        """Where the server that is there answers."""
        return self._server()[1] if self._lives() else None

    def kept_port(self) -> None:
        """None: what is stopped is removed."""

    def start(self, port: int) -> None:
        """Start the server and wait until it answers. Raises UserError and RunFailed."""
        missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
        if missing:
            raise UserError(f"RUNTIME=local: {', '.join(missing)} not installed here; `make torch` does it")
        self._clear()
        log = self._folder / "log"
        with self._writing():
            self._folder.mkdir(mode=0o700)
            self._store.mkdir()
            with own(self._folder) as lock, new_file(log) as out:
                server = subprocess.Popen(
                    [sys.executable, "-m", "serving", "--store", str(self._store), "--port", str(port)],
                    env=os.environ | {"PYTHONPATH": str(ROOT)},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    pass_fds=[lock.fileno()],  # the server keeps the lock when this process has ended
                    start_new_session=True,
                )
        try:
            until = time.monotonic() + _START_SECONDS
            while not _answers(port):
                if server.poll() is not None or time.monotonic() > until:
                    raise RunFailed(f"the server did not start: {one_line(log.read_text(errors='replace'))}")
                time.sleep(0.05)
        except BaseException:  # Ctrl-C, too
            server.kill()
            server.wait()
            self._clear()
            raise

    def put(self, folder: Path, name: str) -> None:
        """Copy an artefact into the store, in the place of what an earlier `serve` left there."""
        part, target = in_folder(self._store, f".{name}"), in_folder(self._store, name)
        with self._writing():
            for leftover in (part, target):
                remove_folder(leftover, may_stay=True)
            part.mkdir()
            for path in export.artefact_files(folder):
                with open_received(path) as source, new_file(part / path.name) as copy:
                    shutil.copyfileobj(source, copy)
            part.rename(target)

    def stop(self) -> list[str]:
        """Let it answer what is in flight, then remove what it had. Returns what was removed."""
        removed = []
        if self._lives():
            server, _ = self._server()
            until = time.monotonic() + _STOP_SECONDS
            with suppress(psutil.NoSuchProcess):
                server.terminate()
            while self._lives():
                if time.monotonic() > until:
                    with suppress(psutil.NoSuchProcess):
                        server.kill()
                time.sleep(0.02)
            removed.append(f"process {server.pid}")
        return removed + self._clear()

    def _lives(self) -> bool:
        with suppress(OSError):
            if self._folder.is_symlink() or self._folder.stat().st_uid != os.getuid():
                raise UserError(f"{self._folder}: not this user's; remove it")
            return not ownerless(self._folder)
        return False

    def _server(self) -> tuple[psutil.Process, int]:
        """The server that lives, and its port, by its command line: a file is missing where `serve` was killed."""
        for process in ending.all_processes():
            with suppress(psutil.Error):
                words = process.cmdline()
                if words[1:5] == ["-m", "serving", "--store", str(self._store)]:
                    return process, int(words[6])
        raise RunFailed(f"{self._folder}: locked, but no server is there; is it starting just now?")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunFailed(f"{self._folder} cannot be written ({error.strerror or error})") from None

    def _clear(self) -> list[str]:
        """Remove what a server left that has ended."""
        if not self._folder.exists() or self._lives():
            return []
        remove_folder(self._folder)
        return [f"folder {self._folder}"]


def _answers(port: int) -> bool:
    with suppress(requests.RequestException):
        return ask(port, "GET", "/ping", timeout=5).ok
    return False


def ask(port: int, method: str, path: str, *, timeout: float, params: dict | None = None) -> requests.Response:
    """Ask a server on this machine, whatever proxy the environment names. `timeout`: seconds.

    Raises requests.RequestException.
    """
    with requests.Session() as session:
        session.trust_env = False
        return session.request(method, f"http://127.0.0.1:{port}{path}", params=params, timeout=timeout)
