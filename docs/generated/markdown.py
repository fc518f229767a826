"""Parts of a Markdown page."""

import re
import textwrap
from collections.abc import Callable, Iterable, Mapping

HEAD = "<!-- Made from the code by `python -m docs.generated`. Do not edit. -->"


def page(title: str, *parts: str) -> str:
    """A whole page; empty parts are left out. Prose is wrapped, lists and tables are not."""
    return "\n\n".join([f"# {title}", HEAD, *map(wrapped, filter(None, parts))]) + "\n"


def wrapped(part: str) -> str:
    """A paragraph in lines of 100 characters, with links in one piece; anything else as it is."""
    if "\n" in part or part.startswith(("#", "|", "- ")):
        return part
    return textwrap.fill(part, 100, break_long_words=False, break_on_hyphens=False)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table. A | in a cell is escaped."""
    names = list(head)
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def settings_table(settings: Mapping[str, str], users: Callable[[str], str] = lambda name: "") -> str:
    """The settings of a command, each with its default where its text names one.

    `users`: the strategies that take one, where not all do.
    """
    rows = []
    for name, text in settings.items():
        meaning, _, default = text.partition("; default: ")
        if of := users(name):
            meaning += f". For {of}"
        rows.append([f"`{name}`", f"`{default}`" if re.fullmatch(r"[\w.-]+", default) else default, meaning])
    return table(["setting", "default", "meaning"], rows)


def anchor(title: str) -> str:
    """The anchor of a heading, as GitHub and MyST make it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def link(place: str) -> str:
    """A link to the file of a "module:attribute"."""
    path = place.split(":")[0].replace(".", "/") + ".py"
    return f"[{path}](../../{path})"
