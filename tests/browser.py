"""A headless Chromium that a test drives: it opens a page, asks it things, and hears what it complains of.

It is spoken to in the Chrome DevTools Protocol over a pipe (--remote-debugging-pipe): a JSON object a message, ended by
a zero byte, on its file descriptors 3 and 4.
"""

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe")


def program() -> str:
    """The browser's. The test is skipped where there is none, and fails where SYNCBED_REQUIRE_BROWSER=1."""
    browser_path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not browser_path:
        if os.environ.get("SYNCBED_REQUIRE_BROWSER") == "1":
            pytest.fail(f"SYNCBED_REQUIRE_BROWSER=1, and none of {', '.join(BROWSERS)} is installed", pytrace=False)
        pytest.skip(f"none of {', '.join(BROWSERS)} is installed")
    return browser_path


@contextmanager
def browser(folder: Path) -> Iterator["Browser"]:
    """A browser with a profile of its own in `folder`, for one page at a time."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    command = [program(), *FLAGS, f"--user-data-dir={folder / 'profile'}", "--window-size=1280,1000", "about:blank"]
    process = subprocess.Popen(
        ["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash", *command],  # dash knows one digit alone
        pass_fds=[theirs_in, theirs_out],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Browser(ours_in, ours_out)
    finally:
        os.close(ours_out)
        process.kill()
        process.wait()
        os.close(ours_in)


class Browser:
    """`complaints`: what the page's console showed as an error or a warning, and scripts that failed. `requests`: all
    addresses that pages asked for.
    """

    def __init__(self, reads: int, writes: int):
        self._reads, self._writes = reads, writes
        self._rest = b""
        self._number = 0
        self._target: str | None = None
        self._session: str | None = None
        self.complaints: list[str] = []
        self.requests: list[str] = []

    def open(self, url: str, width: int = 1280, dark: bool = False) -> None:
        """Show this page in a tab of its own, in place of the one before."""
        if self._target:
            self._ask("Target.closeTarget", targetId=self._target)
        self._session = None
        self._target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=self._target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")
        size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
        self._ask("Emulation.setDeviceMetricsOverride", **size)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._ask("Emulation.setEmulatedMedia", features=scheme)
        self._ask("Page.navigate", url=url)

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self._ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, expression: str, timeout: float = 60, holds: Callable[[Any], Any] = bool) -> Any:
        """The value of an expression, once it is as wanted."""
        until = time.monotonic() + timeout
        while not holds(value := self.ask(expression)):
            assert time.monotonic() < until, f"not within {timeout} s: {expression} is {value!r}"
            time.sleep(0.05)
        return value

    def picture(self, path: Path) -> None:
        """Write a PNG of the whole page."""
        answer = self._ask("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _ask(self, method: str, **parameters) -> dict:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session and not method.startswith("Target."):
            message["sessionId"] = self._session
        os.write(self._writes, json.dumps(message).encode() + b"\0")
        while True:
            message = self._read()
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]
            self._hear(message)

    def _read(self) -> dict:
        while b"\0" not in self._rest:
            data = os.read(self._reads, 1 << 16)
            assert data, "the browser has gone"
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _hear(self, message: dict) -> None:
        about = message.get("params", {})
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(about["request"]["url"])
            case "Runtime.exceptionThrown":
                self.complaints.append(about["exceptionDetails"]["text"])
            case "Log.entryAdded" if about["entry"]["level"] in ("error", "warning"):
                self.complaints.append(about["entry"]["text"])
            case "Runtime.consoleAPICalled" if about["type"] in ("error", "warning", "assert"):
                self.complaints.append(str(about["args"]))
