"""The door of a run's live page: an address that answers while the run goes on, and costs nothing until it is used.

    with door(facts) as address:     # http://127.0.0.1:7007
        ...                          # the run

The run itself only listens. When a browser comes, a process of its own takes over the listening socket and serves the
page (__main__.py). It ends with the run, with its orchestrator however that ends, and when nobody has looked for a
while; a browser that comes then finds the next one.
"""

import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict

from monitor.checkout import ROOT
from monitor.watch.facts import Facts
from monitor.watch.server import PORT, address, listen

MOST_FAILURES = 3  # of the page's process: then nobody is met any more
END_SECONDS = 5.0  # in which it tells its readers that the run is over, and ends


@contextmanager
def door(facts: Callable[[], Facts]) -> Iterator[str | None]:
    """The address of the page while the block goes on; None where no port can be had. `facts` is called when somebody
    comes, by another thread.
    """
    listener = _listener()
    if listener is None:
        yield None
        return
    doorman = _Doorman(listener, facts)
    try:
        yield address(listener)
    finally:
        doorman.close()


def _listener() -> socket.socket | None:
    """At the usual port, else at any free one."""
    for port in (PORT, 0):
        with suppress(OSError):
            return listen(port)
    return None


class _Doorman:
    """A thread that waits for somebody to come, starts the page's process, and waits for that to end."""

    def __init__(self, listener: socket.socket, facts: Callable[[], Facts]):
        self._listener, self._facts = listener, facts
        self._lock = threading.Lock()
        self._closed = False
        self._page: subprocess.Popen | None = None
        self._wake, self._sleep = os.pipe()
        self._thread = threading.Thread(target=self._wait, daemon=True, name="door of the live page")
        self._thread.start()

    def _wait(self) -> None:
        failures = 0
        while failures < MOST_FAILURES and not self._closed:
            try:
                select.select([self._listener, self._wake], [], [])
                failures += self._serve()
            except Exception:  # the engine or the system failed: a page is no reason to disturb a run
                failures += 1
        self._listener.close()

    def _serve(self) -> bool:
        """Have the page served, until its process ends. Returns whether that failed."""
        if self._closed:
            return False
        facts = self._facts()
        with self._lock:
            if self._closed:
                return False
            self._page = _start(self._listener, facts)
        return self._page.wait() != 0

    def close(self) -> None:
        """The run is over: the page's process tells its readers, and ends."""
        with self._lock:
            self._closed = True
        os.write(self._sleep, b".")
        if self._page and self._page.stdin:
            with suppress(OSError):
                self._page.stdin.close()
            try:
                self._page.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self._page.kill()
        self._thread.join(END_SECONDS)  # it may wait for the engine
        if not self._thread.is_alive():
            os.close(self._wake)
            os.close(self._sleep)


def _start(listener: socket.socket, facts: Facts) -> subprocess.Popen:
    """The process that serves the page. Its standard input: the facts in one line; its end is the run's."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    page = subprocess.Popen(
        [sys.executable, "-m", "monitor.watch", str(listener.fileno())],
        env=os.environ | {"PYTHONPATH": path},
        pass_fds=[listener.fileno()],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is the orchestrator's to handle
    )
    assert page.stdin is not None
    page.stdin.write(json.dumps(asdict(facts)).encode() + b"\n")
    page.stdin.flush()
    return page
