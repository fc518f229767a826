"""What the live page costs a run: step time while a reader is told everything, against while nobody looks.

    .venv/bin/python benchmarks/watch_cost.py              # about 12 minutes; nothing else may run
    .venv/bin/python benchmarks/watch_cost.py --browser    # the reader is a headless Chromium, which draws as well

The two take turns of 10 s within one local run, every second pair the other way round, so that drift hits both alike. A
turn of the first kind opens the address that the run printed and takes all that it is told. In a turn of the second
kind nobody is connected: the page's process waits. So the ratio holds reading the run's files, making a story of them
and sending it; with --browser drawing too. What it does not hold is measured by itself: the CPU time that the page's
process takes to start, once a run and only where somebody looks.

The ratio is that of mean step times, from step to step. It is taken pair by pair, and its 95 % interval is over the
pairs. Steps that a turn's first second or its end falls into do not count. Goal: at most 1.01.
"""

import argparse
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import fmean

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parents[1] / "tests"))

from benchmarks.common import ROOT, publish
from benchmarks.turns import pairs, take_turns
from monitor.report.load import load
from monitor.statistics.estimate import ratio

GOAL = 1.01
TURN_SECONDS, SETTLE_SECONDS = 10.0, 1.0
SETTINGS = ("RUNTIME=local", "SYNC=ddp", "MODEL=vgg11", "DATA=synthetic", "BATCH=64")


class Run:
    """One `syncbed run`, and the address that it prints."""

    def __init__(self, runs: Path, words: list[str]):
        command = [sys.executable, "-m", "monitor.cli", "run", *SETTINGS, f"RUNS_DIR={runs}", *words]
        self._runs = runs
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert self._process.stdout is not None
        lines = iter(self._process.stdout.readline, "")
        self.url = next((m[1] for line in lines if (m := re.match(r"live page:? +(\S+)", line))), "")
        if not self.url:
            sys.exit("the run printed no address of a live page")

    def wait_for_steps(self) -> None:
        """Until the first step is done."""
        while self._process.poll() is None:
            if any('"event": "step"' in path.read_text() for path in self._runs.glob("*/events.jsonl")):
                return
            time.sleep(0.2)

    def finish(self) -> Path:
        """Its folder, once it has ended. Exits with its last line when it failed."""
        out, _ = self._process.communicate()
        if self._process.returncode:
            sys.exit(f"the run failed: {out.strip()[-500:]}")
        return self._runs / (self._runs / "latest").readlink()


class Reader:
    """Somebody who has the page open, and takes what he is told."""

    def __init__(self, url: str):
        host, _, port = url.removeprefix("http://").partition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.sendall(f"GET /events HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        self.answered = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with suppress(OSError):
            while self._socket.recv(1 << 16):
                self.answered.set()

    def close(self) -> None:
        """Leave."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # the thread reads meanwhile
        self._thread.join()
        self._socket.close()


class Looks:
    """Gives turns: true opens the page, false closes it. `cpu`: seconds that the page's process took within `seconds`
    of being looked at; `start_cpu`: what its start took.
    """

    def __init__(self, url: str, page):
        self._url, self._page = url, page
        self._reader: Reader | None = None
        self._since: tuple[float, float] | None = None  # seconds, and CPU seconds, of the turn that is on
        self.cpu = self.seconds = 0.0
        first = Reader(self._url)  # for whom the page's process is started
        first.answered.wait(60)
        self.start_cpu = self._used()
        first.close()

    def _used(self) -> float:
        """CPU seconds of the page's process so far."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.cmdline()[1:3] == ["-m", "monitor.watch"]:
                    times = process.cpu_times()
                    return times.user + times.system
        return 0.0

    def give(self, looks: bool) -> None:
        """Open the page, or close it."""
        if looks:
            self._since = time.monotonic(), self._used()
            if self._page:
                self._page.open(self._url)
            else:
                with suppress(OSError):  # the run is over, and its report is being written
                    self._reader = Reader(self._url)
            return
        if self._since and (cpu := self._used()) > self._since[1]:
            self.seconds += time.monotonic() - self._since[0]
            self.cpu += cpu - self._since[1]
        if self._page:
            self._page.open("about:blank")
        elif self._reader:
            self._reader.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what the live page costs a run.")
    parser.add_argument("--steps", type=int, default=1000, help="steps of the run (default: 1000)")
    parser.add_argument("--browser", action="store_true", help="look with a headless Chromium, which draws")
    parser.add_argument("words", nargs="*", metavar="NAME=value", help="further settings of the run")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        run = Run(Path(folder) / "runs", [*args.words, f"STEPS={args.steps}"])
        page = None
        if args.browser:
            from browser import browser

            page = stack.enter_context(browser(Path(folder)))
        run.wait_for_steps()
        looks = Looks(run.url, page)
        with ThreadPoolExecutor(1) as pool:
            ending: Future = pool.submit(run.finish)
            turns = take_turns(ending, TURN_SECONDS, looks.give)
        recorded = load(ending.result())
    times = [step.time for step in recorded.steps[0]]
    both = list(pairs(turns, times, times, SETTLE_SECONDS))
    if len(both) < 2:
        sys.exit(f"{len(both)} pairs of turns have steps; more steps (--steps) make more")
    estimate = ratio([looked / alone for looked, alone in both], [1.0] * len(both))  # pair by pair
    figures = {
        "looked_at_to_not": round(estimate.value, 4),
        "interval": [round(estimate.low, 4), round(estimate.high, 4)],
        "by_pair": [round(looked / alone, 4) for looked, alone in both],
        "step_seconds_looked_at": round(fmean(looked for looked, _ in both), 4),
        "page_share_of_the_machines_cpu": round(looks.cpu / looks.seconds / (os.cpu_count() or 1), 4),
        "page_start_cpu_seconds": round(looks.start_cpu, 2),
        "goal": GOAL,
    }
    publish("watch_cost_browser" if args.browser else "watch_cost", figures, recorded.result.spec.values())


if __name__ == "__main__":
    main()
