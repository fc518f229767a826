"""The pages in a real browser: every plot is there, nothing is fetched, nothing overflows, on a phone and on a desk.

Headless Chromium, from the system's packages. The page is put into a frame of the wanted width (its window has a least
one), and a script beside it tells what it finds.
"""

import json
import re
import subprocess
from pathlib import Path

import pytest
from browser import program
from report_cases import write_run

from monitor.report.command import write
from monitor.report.load import load
from monitor.report.plots import Plot
from monitor.report.run_page import run_page

LOOK = """
<!doctype html><meta charset="utf-8"><body><script>
const errors = [];
const frame = document.createElement("iframe");
frame.style = "width: WIDTHpx; height: 800px; border: 0";
frame.onload = () => {
  const page = frame.contentDocument, view = frame.contentWindow;
  const plots = [...page.querySelectorAll("figure[data-plot]")].map(figure => {
    const box = figure.querySelector("svg").getBoundingClientRect();
    const texts = [...figure.querySelectorAll("svg text")].map(text => text.getBoundingClientRect());
    return { name: figure.dataset.plot, width: box.width, height: box.height, left: box.left, right: box.right,
             texts: texts.length, smallest: Math.min(...texts.map(text => text.height)) };
  });
  const told = { plots, overflow: page.documentElement.scrollWidth - page.documentElement.clientWidth,
    fetched: view.performance.getEntriesByType("resource").map(entry => entry.name),
    ink: view.getComputedStyle(page.body).color, paper: view.getComputedStyle(page.body).backgroundColor,
    tables: page.querySelectorAll("table").length };
  document.body.innerHTML = "<pre id=told></pre>";
  document.getElementById("told").textContent = JSON.stringify(told);
};
frame.srcdoc = PAGE;
document.body.append(frame);
</script>
"""


@pytest.fixture(scope="module")
def browser() -> str:
    return program()


def look(browser: str, page: Path, folder: Path, width: int, dark: bool = False) -> tuple[dict, str]:
    """What the script tells of the page at this width, and what the browser logged."""
    text = json.dumps(page.read_text()).replace("</", "<\\/")
    (folder / "look.html").write_text(LOOK.replace("WIDTH", str(width)).replace("PAGE", text))
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--enable-logging=stderr", "--v=0"]
    flags += [f"--user-data-dir={folder / 'profile'}", "--window-size=1400,900", "--virtual-time-budget=5000"]
    flags += ["--blink-settings=preferredColorScheme=0"] if dark else []
    command = [browser, *flags, "--dump-dom", (folder / "look.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    told = re.search(r'<pre id="told">(.*?)</pre>', done.stdout, re.S)
    assert told, done.stdout[-500:] + done.stderr[-2000:]
    return json.loads(told[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")), done.stderr


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = write_run(tmp_path_factory.mktemp("report") / "runs" / "one", nodes=4, steps=40)
    write(folder)
    return load(folder)


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_a_page_is_whole_and_fits(browser, run, tmp_path, width, dark):
    told, log = look(browser, run.folder / "report.html", tmp_path, width, dark)
    page = run_page(run)
    assert [plot["name"] for plot in told["plots"]] == list(page.by_name(Plot))
    for plot in told["plots"]:
        assert plot["width"] > min(250, width / 2) and plot["height"] > 100, plot
        assert plot["left"] >= 0 and plot["right"] <= width, plot
        assert plot["texts"] > 5 and plot["smallest"] > 6, plot  # px: small, but read on a phone
    assert told["overflow"] == 0
    assert told["fetched"] == []
    assert "CONSOLE" not in log
    ink, paper = (sum(map(int, re.findall(r"\d+", told[what])[:3])) for what in ("ink", "paper"))
    assert (ink > paper) == dark
