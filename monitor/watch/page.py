"""The live page: one document with its style and its script in it, which fetches nothing but the run's events."""

import base64
import hashlib
import json
from importlib.resources import files
from string import Template

from monitor.report import plots
from monitor.report.page import style
from trainer.events import PHASES


class Page:
    """The page as text, and the content security policy that it is sent with."""

    def __init__(self):
        looks = {"colours": plots.COLOURS, "dashes": plots.DASHES, "phases": phase_names()}
        script = f"const looks = {json.dumps(looks)};\n" + _part("page.js")
        css = style() + _part("page.css")
        self.text = Template(_part("page.html")).substitute(style=css, script=script)
        sources = "; ".join(f"{kind}-src '{_digest(text)}'" for kind, text in (("script", script), ("style", css)))
        self.policy = (
            f"default-src 'none'; {sources}; connect-src 'self'; img-src data:; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )


def phase_names() -> list[str]:
    """The phases of a step as reports call them."""
    return [plots.PHASE_NAMES.get(phase, phase) for phase in PHASES]


def _part(name: str) -> str:
    return files("monitor.watch").joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
