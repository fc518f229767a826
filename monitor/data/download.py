"""Fetching one file with a known checksum, giving up soon where there is no network."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import pooch
import requests
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from monitor.data.store import Unavailable

CONNECT_SECONDS, READ_SECONDS, ANSWER_SECONDS = 5, 20, 8
REASONS = {  # by the name of an error that requests or urllib3 raises; the first that fits
    "NameResolutionError": "its name does not resolve",
    "ProxyError": "the proxy refuses",
    "SSLError": "its certificate is not trusted",
    "NewConnectionError": "no connection",
    "ConnectTimeoutError": "no answer",
    "ReadTimeoutError": "no answer",
    "ProtocolError": "the connection broke",
}


def fetch(url: str, sha256: str, folder: Path, say) -> Path:
    """The file in `folder`, downloaded unless it is there already with this checksum. Shows progress on a terminal.

    Raises Unavailable within about ANSWER_SECONDS when the server cannot be reached, and when the download breaks off
    or is not the expected file. Only a whole and checked file ever has the file's name.
    """
    host, name = urlsplit(url).netloc, Path(urlsplit(url).path).name
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.iterdir():
        if leftover.name != name:  # of a download that was killed
            leftover.unlink()
    pooch.get_logger().setLevel("ERROR")  # what it would log, this module says itself
    try:
        if not (folder / name).exists():
            _ask(url, host)
            say(f"downloading {url}")
        with _bar(name) as bar:
            timeout = CONNECT_SECONDS, READ_SECONDS
            # pooch takes any bar with these methods, and passes its downloader on: its annotations say less.
            download = pooch.HTTPDownloader(cast(bool, bar), chunk_size=1 << 18, timeout=timeout)
            return Path(pooch.retrieve(url, sha256, name, folder, downloader=cast(Any, download)))
    except requests.RequestException as error:
        raise Unavailable(f"{host}: {_reason(error)}") from error
    except ValueError as error:  # what pooch raises for a checksum that differs
        raise Unavailable(f"{url}: not the expected file (its SHA-256 differs)") from error


def _ask(url: str, host: str) -> None:
    """Raises when the server does not answer at all. In a thread: looking up a name has no time limit of its own."""
    failures: list[requests.RequestException] = []

    def ask() -> None:
        try:
            requests.head(url, timeout=CONNECT_SECONDS, allow_redirects=True).close()
        except requests.RequestException as error:
            failures.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(ANSWER_SECONDS)
    if thread.is_alive():
        raise Unavailable(f"{host}: no answer")
    if failures:
        raise failures[0]


def _reason(error: BaseException) -> str:
    """What went wrong, in a few words."""
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"answered {error.response.status_code} {error.response.reason}".strip()
    causes: list[BaseException] = []
    candidates: list[Any] = [error]
    while candidates:  # the real cause is an argument, a `reason` or the context of what is raised
        cause = candidates.pop()
        if isinstance(cause, BaseException) and cause not in causes:
            causes.append(cause)
            candidates += [*cause.args, getattr(cause, "reason", None), cause.__cause__, cause.__context__]
    names = {type(cause).__name__ for cause in causes}
    return next((words for name, words in REASONS.items() if name in names), type(error).__name__)


class _Bar:
    """The progress bar that pooch drives: total is set once, update adds, reset and close end it."""

    def __init__(self, progress: Progress, name: str):
        self.progress, self.task = progress, progress.add_task(name, total=None)

    @property
    def total(self):
        return self.progress.tasks[0].total

    @total.setter
    def total(self, value: int):
        self.progress.update(self.task, total=value)

    def update(self, amount: int) -> None:
        self.progress.advance(self.task, amount)

    def reset(self) -> None:
        self.progress.reset(self.task, total=self.total)

    def close(self) -> None:
        self.progress.refresh()


@contextmanager
def _bar(name: str) -> Iterator[_Bar]:
    console = Console(stderr=True)
    columns = TextColumn(name), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        yield _Bar(progress, name)
