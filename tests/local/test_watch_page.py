"""The live page in a real browser, and beside a real run: it shows what comes, comes back, leaves nothing behind."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from dataclasses import asdict

import psutil
import pytest
from browser import browser
from orchestrator import ROOT, Orchestrator, wait_until
from ports import free_port
from watched import ZERO, Watched, fault, ready, row, step

from monitor.watch import door as door_module
from monitor.watch.door import door
from trainer import events

PLOTS = ["loss", "phases", "cpu", "memory", "received", "sent"]
STATE = "document.getElementById('state')?.textContent"
PROGRESS = "document.getElementById('progress')?.textContent"
MARKS = "[...document.querySelectorAll('[data-mark]')].map(mark => mark.dataset.mark)"
LINES = "[...document.querySelectorAll('#lines li')].map(line => line.textContent)"
LOOK = """(() => ({
  plots: [...document.querySelectorAll("figure[data-plot]")].map(figure => {
    const box = figure.querySelector("svg").getBoundingClientRect();
    const curves = figure.querySelectorAll("svg > path[data-series]").length;
    return { name: figure.dataset.plot, left: box.left, right: box.right, width: box.width, curves,
             words: [...figure.querySelectorAll("text")].map(text => text.textContent) };
  }),
  overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  ink: getComputedStyle(document.body).color, paper: getComputedStyle(document.body).backgroundColor,
}))()"""


@pytest.fixture(autouse=True)
def own_port(monkeypatch):
    """At the usual one somebody may watch a run."""
    monkeypatch.setattr(door_module, "PORT", free_port())


def pages(url: str) -> list[psutil.Process]:
    """The processes that serve the page, however they were started."""
    processes = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            if words[1:3] == ["-m", "monitor.watch"] and process.status() != psutil.STATUS_ZOMBIE:
                ports = {c.laddr.port for c in process.net_connections() if c.status == psutil.CONN_LISTEN}
                if int(url.rpartition(":")[2]) in ports:
                    processes.append(process)
        except psutil.Error:
            continue
    return processes


def refuses(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except OSError:
        return True
    return False


def steps(*numbers: int) -> list[events.Event]:
    return [step(rank, number, loss=4.0 - number / 10) for number in numbers for rank in (0, 1)]


def test_the_page_follows_the_run_comes_back_and_ends_with_it(tmp_path):
    watched = Watched(tmp_path / "runs")
    with browser(tmp_path) as page:
        with door(lambda: watched.facts) as url:
            assert pages(url) == [], "nothing is served until somebody comes"
            page.open(url)
            page.wait(f"{STATE} == 'The run is on.'")
            assert page.ask("document.title") == f"{watched.folder.name}: live"

            watched.say(ready(0, 40), ready(1, 40), *steps(1, 2, 3))
            watched.use(*(row(f"local-{node}", second) for second in (0, 1, 2) for node in (0, 1)))
            page.wait(f"{PROGRESS}.startsWith('step 3 of 40')")
            watched.say(*steps(4, 5), fault("freeze:1@step=5+2s", "begin", 5, ZERO + 2.75))
            assert page.wait(MARKS, holds=lambda marks: len(marks) == len(PLOTS)) == ["freeze:1"] * len(PLOTS)
            assert page.ask(LINES) == ["fault freeze:1@step=5+2s begins after step 5"]
            page.wait(f"{PROGRESS}.startsWith('step 5 of 40')")
            look = page.ask(LOOK)
            assert [plot["name"] for plot in look["plots"]] == PLOTS
            assert [plot["curves"] for plot in look["plots"]] == [2, 5, 2, 2, 2, 2]
            assert page.requests == [f"{url}/", f"{url}/events"], "nothing else is fetched"
            assert page.complaints == []

            (process,) = pages(url)
            process.kill()
            page.wait(f"{STATE} == 'There is no connection to the run; trying again.'")
            page.wait(f"{STATE} == 'The run is on.'")
            watched.say(*steps(6))
            page.wait(f"{PROGRESS}.startsWith('step 6 of 40')")
            assert page.ask(LINES) == ["fault freeze:1@step=5+2s begins after step 5"], "once"

            watched.end("failed", error={"kind": "killed", "message": "rank 1 was killed <b>"})
        assert (
            page.wait(STATE, holds=lambda text: text.startswith("The run has"))
            == "The run has failed: rank 1 was killed <b>"
        )
        report = watched.folder.resolve() / "report.html"
        assert page.ask(PROGRESS) == f"Its report is {report}, unless PAGES=0 left it out."
        page.wait("document.querySelector('[data-plot=loss] path[data-series]') !== null")
    assert pages(url) == [] and refuses(url)


@pytest.mark.parametrize(("width", "dark"), [(390, True), (1280, False)])
def test_the_page_fits(tmp_path, width, dark):
    watched = Watched(tmp_path / "runs")
    watched.say(ready(0, 40), ready(1, 40), *steps(1, 2, 3), fault("kill:1@2s", "begin", 3, ZERO + 2))
    watched.use(*(row(f"local-{node}", second) for second in (0, 1, 2) for node in (0, 1)))
    with door(lambda: watched.facts) as url, browser(tmp_path) as page:
        page.open(url, width, dark)
        page.wait(MARKS, holds=lambda marks: len(marks) == len(PLOTS))
        look = page.ask(LOOK)
    assert look["overflow"] == 0
    for plot in look["plots"]:
        assert plot["left"] >= 0 and plot["right"] <= width and plot["width"] > min(250, width / 2), plot
        assert len(plot["words"]) > 5 and "kill:1" in plot["words"], plot
    ink, paper = (sum(map(int, re.findall(r"\d+", look[what])[:3])) for what in ("ink", "paper"))
    assert (ink > paper) == dark


def events_of(url: str) -> list[tuple[str, dict | list]]:
    """All that a reader of the page is told, to the end of the run."""
    with urllib.request.urlopen(f"{url}/events", timeout=120) as stream:
        texts = stream.read().decode().strip().split("\n\n")
    messages = []
    for text in texts:
        fields = dict(line.split(": ", 1) for line in text.split("\n"))
        messages.append((fields["event"], json.loads(fields["data"])))
    return messages


def test_a_run_says_where_it_can_be_watched_and_make_watch_finds_it(tmp_path):
    settings = {"MODEL": "cnn3", "RUNTIME": "local", "NODES": 2, "STEPS": 12, "FAULT": "freeze:1@step=6+3s", "PAGES": 1}
    run = Orchestrator(tmp_path, **settings)
    run.wait_for("started")
    watch = subprocess.Popen(
        [sys.executable, "-m", "monitor.cli", "watch", "--json"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        where = json.loads(watch.stdout.readline())
        messages = events_of(where["url"])
        _, out = run.finish()
        _, errors = watch.communicate(timeout=60)
    finally:
        watch.kill()
    assert where["run"] == run.run.name
    items = [item for kind, content in messages if kind == "more" for item in content]
    assert [item[1] for item in items if item[0] == "step"] == list(range(1, 13))
    assert {item[1] for item in items if item[0] == "row"} == {0, 1}
    assert [item[2] for item in items if item[0] == "mark"] == ["freeze:1"]
    assert messages[-1][0] == "end" and messages[-1][1]["status"] == "finished"
    assert (watch.returncode, errors) == (
        0,
        f"run {run.run.name} has finished; its page is runs/{run.run.name}/report.html\n",
    )
    (url,) = re.findall(r"^live page:? +(\S+)$", out, re.M)
    assert refuses(url) and refuses(where["url"])
    assert pages(url) == []


OPEN = """
import json, sys, time
from monitor.watch.door import door
from monitor.watch.facts import Facts
with door(lambda: Facts(**json.loads(sys.argv[1]))) as url:
    print(url, flush=True)
    time.sleep(600)
"""


def test_the_page_of_a_run_ends_with_its_orchestrator(tmp_path):
    """Whatever ends that: the page's process hears it at once."""
    facts = json.dumps(asdict(Watched(tmp_path / "runs").facts))
    orchestrator = subprocess.Popen([sys.executable, "-c", OPEN, facts], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        url = orchestrator.stdout.readline().strip()
        with urllib.request.urlopen(f"{url}/events", timeout=60) as stream:
            assert stream.readline() == b"event: begin\n"
            (page,) = pages(url)
            orchestrator.kill()
            rest = stream.read().decode()
    finally:
        orchestrator.kill()
        orchestrator.communicate()
    assert "its orchestrator was killed" in rest
    wait_until(lambda: not page.is_running() or page.status() == psutil.STATUS_ZOMBIE)
    assert refuses(url)


def test_ctrl_c_ends_the_watching_and_not_the_run(tmp_path):
    watched = Watched(tmp_path / "runs")
    watch = subprocess.Popen(
        [sys.executable, "-m", "monitor.cli", "watch"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    line = watch.stdout.readline()
    url = re.fullmatch(
        rf"run {watched.folder.name}: (http://127\.0\.0\.1:\d+) \(Ctrl-C ends the page, not the run\)\n", line
    )[1]
    assert not refuses(url)
    watch.send_signal(signal.SIGINT)
    out, errors = watch.communicate(timeout=60)
    assert (watch.returncode, out, errors) == (0, "", "")
    assert refuses(url)
