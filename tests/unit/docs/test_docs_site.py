"""The site that `make docs` built: pages fetch nothing, and the search finds pages from disk, in a real browser."""

import os
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from browser import program
from documentation import ROOT

SITE = ROOT / "site"
LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "srcset", "object": "data"}


@pytest.fixture(scope="module")
def site() -> Path:
    if (SITE / "index.html").exists():
        return SITE
    if os.environ.get("SYNCBED_REQUIRE_SITE") == "1":
        pytest.fail("SYNCBED_REQUIRE_SITE=1, and `make docs` has not been run", pytrace=False)
    pytest.skip("`make docs` has not been run")


@pytest.fixture(scope="module")
def browser() -> str:
    return program()


class Loads(HTMLParser):
    """The addresses that a page has a browser load."""

    def __init__(self):
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if tag == "link" and values.get("rel") in ("next", "prev", "index", "search", "author", "copyright"):
            return
        if address := values.get(LOADS.get(tag, "")):
            self.addresses.append(address)


def pages(site: Path) -> list[Path]:
    """Those that a reader sees, without what the theme brings along."""
    return [page for page in site.rglob("*.html") if not page.relative_to(site).parts[0].startswith("_")]


def is_outside(address: str) -> bool:
    return re.match(r"([a-z]+:)?//", address) is not None


def test_no_page_style_or_script_loads_anything_from_outside(site):
    assert len(pages(site)) > 40
    for page in pages(site):
        parser = Loads()
        parser.feed(page.read_text())
        assert parser.addresses and not list(filter(is_outside, parser.addresses)), page
    for style in site.rglob("*.css"):
        urls = re.findall(r"(?:url\(|@import\s+)[\"']?([^\"')]+)", style.read_text())
        assert not list(filter(is_outside, urls)), style
    for script in site.rglob("*.js"):
        assert not re.search(r"https?://[\w.]*(unpkg|jsdelivr|cdn|googleapis)", script.read_text()), script


def test_what_a_page_loads_is_there(site):
    for page in pages(site):
        parser = Loads()
        parser.feed(page.read_text())
        for address in parser.addresses:
            assert (page.parent / re.split(r"[?#]", address)[0]).exists(), f"{page}: {address}"


def test_the_search_works_from_disk(site, browser, tmp_path):
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={tmp_path}"]
    address = (site / "search.html").as_uri() + "?q=error+feedback"
    command = [browser, *flags, "--virtual-time-budget=5000", "--dump-dom", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert 'href="reference/compression.html' in done.stdout, done.stdout[-2000:] + done.stderr[-2000:]
