"""A table of a page: plain values, rendered as Markdown, CSV and (by the page's template) HTML."""

import csv
import io
import re
from dataclasses import dataclass, field
from typing import Final, Literal

from monitor.results.text import number, share
from monitor.statistics.estimate import Estimate

Value = str | float | int | Estimate | None
PER_CENT: Final = "%"
# How a cell begins that a spreadsheet runs: signs of any width, after letters that it passes over.
FORMULA = re.compile(r"[\t\r\n\x00]|[\s\x00-\x1f\x7f-\x9f\xad\u200b-\u200f\u2060-\u2064\ufeff]*[=+\-@＝＋－＠]")
NUMBER = re.compile(r"-|[+-]?[0-9][0-9.,e+-]*%?")  # as text of ours has them; a dash is what is not known
LEADING = re.compile(r"\A([0-9]{0,9})([#+=.)-])")
LINK = re.compile(r":(?=//)|\bwww\.", re.IGNORECASE)  # what becomes a link by itself
UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
Places = (
    int | Literal["%"] | None
)  # how a column is shown: its decimals, PER_CENT for a share of one, None for text and counts


@dataclass(frozen=True)
class Table:
    """`name`: of its file. `headings` hold units. `places`: of each column."""

    name: str
    title: str
    headings: list[str]
    rows: list[list[Value]]
    places: list[Places] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self):
        assert all(len(row) == len(self.headings) for row in self.rows), self.name

    @property
    def numeric(self) -> list[bool]:
        """Which columns hold numbers, with an interval or without; they are set to the right."""
        columns = ([v for v in column if v is not None] for column in self._columns())
        return [bool(values) and not any(isinstance(v, str) for v in values) for values in columns]

    def _columns(self) -> list[tuple[Value, ...]]:
        return list(zip(*self.rows, strict=True)) if self.rows else [()] * len(self.headings)

    def texts(self) -> list[list[str]]:
        """The rows as they are shown; a dash is a value that is not known."""
        places = self.places or [None] * len(self.headings)
        return [[text(v, p) for v, p in zip(row, places, strict=True)] for row in self.rows]

    def csv(self) -> str:
        """Values in full, RFC 4180; an empty field is a value that is not known. An interval is two columns more."""
        columns = []
        for heading, values in zip(self.headings, self._columns(), strict=True):
            parts = [(heading, [v.value if isinstance(v, Estimate) else cell(v) for v in values])]
            if any(isinstance(v, Estimate) for v in values):
                for end in ("low", "high"):
                    parts.append((f"{heading} {end}", [getattr(v, end, None) for v in values]))
            columns += parts
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([cell(heading) for heading, _ in columns])
        writer.writerows(zip(*(["" if v is None else v for v in values] for _, values in columns), strict=True))
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
    for sign in "\\&|<>*_`[]~$":
        flat = flat.replace(sign, {"&": "&amp;", "<": "&lt;", ">": "&gt;"}.get(sign, "\\" + sign))
    return LINK.sub(lambda link: link[0].replace(":", "\\:").replace(".", "\\."), flat)


def paragraph(text: str) -> str:
    """Text in Markdown as a paragraph: nothing at its beginning makes it a heading, a list or a rule."""
    return LEADING.sub(r"\1\\\2", escape(text))


def cell(value: Value) -> Value:
    """A value for a CSV field: text that a spreadsheet would take for a formula gets an apostrophe before it."""
    if not isinstance(value, str):
        return value
    value = value.replace("\r", "\n")  # which the writer quotes: a bare \r would begin another row
    is_formula = FORMULA.match(value) and not NUMBER.fullmatch(value)
    return f"'{value}" if is_formula else value


def printed(lines: list[str]) -> str:
    """Lines as a Markdown code block between fences that are longer than any in them."""
    flat = [UNPRINTABLE.sub("\ufffd", " ".join(line.splitlines())) for line in lines]
    longest = max((len(run) for line in flat for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([fence, *flat, fence])


def spread(value: Estimate, places: int) -> str:
    """A figure and, where there is one, its interval: 1.23 [1.20, 1.27]."""
    span = f" [{number(value.low, places)}, {number(value.high, places)}]" if value.known else ""
    return number(value.value, places) + span


def text(value: Value, places: Places) -> str:
    """A value as it is shown; a dash is one that is not known."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if places == PER_CENT:
        return share(value.value if isinstance(value, Estimate) else value)
    if isinstance(value, Estimate):
        return spread(value, places or 0)
    if places is None:
        return f"{value:,}"
    return number(value, places)
