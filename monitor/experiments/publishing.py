"""What a set of runs ends with: the comparison on screen or as JSON, and its page."""

import json

from rich.console import Console
from rich.table import Table
from rich.text import Text

from monitor.experiments import sweep
from monitor.experiments.comparison import columns, footnotes, records, rows, shown
from monitor.experiments.grouping import Group, cell_groups
from monitor.results import table as tables


def show(groups: list[Group], say: Console, goal: float | None = None) -> None:
    """Print the comparison as a table."""
    found = rows(groups, goal)
    for heading, part in columns(goal).items():
        table = Table(box=None, header_style="bold", pad_edge=False)
        table.add_column(heading, overflow="fold")
        for column in part:
            table.add_column(column.heading, justify="right")
        for row in found:
            table.add_row(Text(row["label"]), *(tables.text(shown(row[c.name], c), c.places) for c in part))
        say.print(table)
    for note in footnotes(found):
        say.print(note, style="dim", highlight=False)


def report_sweep(job: sweep.Sweep, say: Console, as_json: bool = False) -> None:
    """What a sweep ends with: the comparison of its cells, on screen and as a page."""
    from monitor.experiments.pages.sweep_page import sweep_page

    groups = cell_groups(job)
    publish(job, sweep_page(job, groups), say)
    if as_json:
        print(json.dumps(records(groups), indent=1))
    else:
        show(groups, say)


def publish(job: sweep.Sweep, page, say: Console) -> None:
    """Write the sweep's page and say where it is, or why there is none."""
    from monitor.report.page import write_page

    try:
        say.print(f"report: {write_page(job.folder, 'report', page)}", highlight=False)
    except OSError as error:
        say.print(f"warning: no report was written: {error.strerror or error}", style="yellow", highlight=False)
