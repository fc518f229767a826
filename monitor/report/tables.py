"""A table of a page: plain values, rendered as Markdown, CSV and (by the page's template) HTML."""

import csv
import io
import re
from dataclasses import dataclass, field

from monitor.summary import number

Value = str | float | int | None
NUMBER = re.compile(r"[\d.,]+( \[[\d., -]+\])?")


@dataclass(frozen=True)
class Table:
    """`name`: of its file. `headings` hold units. `places`: decimals of each column; None for text and counts."""

    name: str
    title: str
    headings: list[str]
    rows: list[list[Value]]
    places: list[int | None] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self):
        assert all(len(row) == len(self.headings) for row in self.rows), self.name

    @property
    def numeric(self) -> list[bool]:
        """Which columns hold numbers, with an interval or without; they are set to the right."""
        columns = zip(*self.rows, strict=True) if self.rows else [()] * len(self.headings)
        known = ([v for v in column if v is not None] for column in columns)
        return [bool(own) and all(not isinstance(v, str) or NUMBER.fullmatch(v) for v in own) for own in known]

    def texts(self) -> list[list[str]]:
        """The rows as they are shown; a dash is a value that is not known."""
        places = self.places or [None] * len(self.headings)
        return [[_shown(v, p) for v, p in zip(row, places, strict=True)] for row in self.rows]

    def csv(self) -> str:
        """Values in full, RFC 4180; an empty field is a value that is not known."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.headings)
        writer.writerows(["" if v is None else v for v in row] for row in self.rows)
        return out.getvalue()

    def markdown(self) -> str:
        """A table as GitHub shows it, numbers to the right, with its notes below."""
        rules = ["---:" if right else "---" for right in self.numeric]
        lines = [self.headings, rules, *self.texts()]
        body = "\n".join("| " + " | ".join(map(escape, line)) + " |" for line in lines)
        return body + "".join(f"\n\n{escape(note)}" for note in self.notes)


def escape(text: str) -> str:
    """Text in Markdown as it is: nothing in it is a cell's end, a tag or markup."""
    flat = " ".join(text.split())
    for sign in "\\|<>*_`[]":
        flat = flat.replace(sign, {"<": "&lt;", ">": "&gt;"}.get(sign, "\\" + sign))
    return flat


def _shown(value: Value, places: int | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if places is None:
        return f"{value:,}"
    return number(value, places)
