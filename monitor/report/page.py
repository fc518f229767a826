"""A page: sections of text, tables and plots, written as one HTML file that needs nothing else, and as Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from monitor.report.plots import Plot, alone, svg
from monitor.results.table import Table, escape, paragraph, printed
from trainer.files import new_file, remove_folder, write_whole
from trainer.names import in_folder


@dataclass(frozen=True)
class Printed:
    """Lines as a program printed them."""

    lines: list[str]


Item = str | Printed | Table | Plot


@dataclass(frozen=True)
class Section:
    """A part of a page. Its items are shown in order; text is a paragraph."""

    heading: str
    items: Sequence[Item]


@dataclass(frozen=True)
class Page:
    title: str
    lead: list[str]  # sentences below the title
    sections: list[Section] = field(default_factory=list)

    def by_name(self, kind) -> dict[str, Any]:
        """The page's tables or plots by name. Raises ValueError for two of one name: they would share a file."""
        items: list[Any] = [item for section in self.sections for item in section.items if isinstance(item, kind)]
        names = [item.name for item in items]
        if len(set(names)) < len(names):
            raise ValueError(f"two of one name among {names}")
        return dict(zip(names, items, strict=True))


def write_page(folder: Path, name: str, page: Page) -> Path:
    """Write name.html, name.md, and in the folder name/ each table as CSV and plot as SVG. Returns the HTML's path.

    Files appear whole or not at all, the HTML last. Raises OSError.
    """
    drawn = {plot: svg(item) for plot, item in page.by_name(Plot).items()}
    parts = in_folder(folder, f".{name}.part")
    remove_folder(parts, may_stay=True)
    parts.mkdir(parents=True)
    try:
        for table in page.by_name(Table).values():
            _write(parts, f"{table.name}.csv", table.csv())
        for plot, text in drawn.items():
            _write(parts, f"{plot}.svg", alone(text))
        remove_folder(folder / name, may_stay=True)
        parts.rename(folder / name)
    finally:
        remove_folder(parts, may_stay=True)
    write_whole(in_folder(folder, f"{name}.md"), markdown(page, name))
    path = in_folder(folder, f"{name}.html")
    write_whole(path, html(page, drawn))
    return path


def _write(folder: Path, name: str, text: str) -> None:
    """A file of a folder that appears when all are written."""
    with new_file(in_folder(folder, name)) as file:
        file.write(text.encode())


def style() -> str:
    """The style of every page, which the live page of a run wears too."""
    return _template().partition("<style>")[2].partition("</style>")[0]


def html(page: Page, drawn: dict[str, str] | None = None) -> str:
    """The page as one HTML document: no script, nothing fetched."""
    from jinja2 import Environment
    from markupsafe import Markup

    drawn = drawn if drawn is not None else {name: svg(plot) for name, plot in page.by_name(Plot).items()}
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(_template())
    kinds = {str: "text", Printed: "printed", Table: "table"}
    return template.render(
        page=page,
        kind=lambda item: kinds.get(type(item), "plot"),
        drawing=lambda plot: Markup(drawn[plot.name]),
    )


def _template() -> str:
    return files("monitor.report").joinpath("page.html").read_text(encoding="utf-8")


def markdown(page: Page, name: str) -> str:
    """The page as Markdown; plots are the SVG files beside it."""
    parts = [f"# {escape(page.title)}", *map(paragraph, page.lead)]
    for section in page.sections:
        parts.append(f"## {escape(section.heading)}")
        for item in section.items:
            match item:
                case str():
                    parts.append(paragraph(item))
                case Printed():
                    parts.append(printed(item.lines))
                case Table():
                    parts += [f"**{escape(item.title)}**", item.markdown()]
                case _:
                    parts.append(f"![{escape(item.title)}]({name}/{item.name}.svg)")
    return "\n\n".join(parts) + "\n"
