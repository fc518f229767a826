"""A table in a terminal."""

from rich.table import Table as RichTable
from rich.text import Text

from monitor.results.table import Places, Table, Value, text
from monitor.text import one_line

MOST_LETTERS = 400  # of a cell


def in_terminal(table: Table, left_columns: int = 1, letters: int | None = None, bold_end: bool = False) -> RichTable:
    """The table as rich prints it.

    `left_columns`: how many are set to the left; the others hold numbers. `letters`: of each
    heading after the first that are shown. `bold_end`: the last row sums up the others.
    """
    rich_table = RichTable(box=None, header_style="bold", pad_edge=False)
    places = table.places or [None] * len(table.headings)
    for i, heading in enumerate(table.headings):
        shown = one_line(heading, MOST_LETTERS)[: letters if i else None]
        rich_table.add_column(shown, justify="left" if i < left_columns else "right")
    for number, row in enumerate(table.rows, 1):
        style = "bold" if bold_end and number == len(table.rows) else None
        rich_table.add_row(*(Text(_cell(v, p)) for v, p in zip(row, places, strict=True)), style=style)
    return rich_table


def _cell(value: Value, places: Places) -> str:
    """A value as it is shown, on one line. Counts stand without commas: a terminal is read by programs, too."""
    return str(value) if isinstance(value, int) and places is None else one_line(text(value, places), MOST_LETTERS)
