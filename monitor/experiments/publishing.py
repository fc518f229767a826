"""What a set of runs ends with: the comparison on screen or as JSON, and its page."""

import json
from dataclasses import replace

from rich.console import Console

from monitor.experiments import sweep
from monitor.experiments.comparison import records, tables
from monitor.experiments.grouping import Group, cell_groups
from monitor.report.page import Page, write_page
from monitor.results.terminal import in_terminal


def show(groups: list[Group], say: Console, goal: float | None = None) -> None:
    """Print the comparison as tables."""
    notes = []
    for heading, table in tables(groups, goal).items():
        rich_table = in_terminal(replace(table, headings=[heading, *table.headings[1:]]))
        rich_table.columns[0].overflow = "fold"
        say.print(rich_table)
        notes += table.notes
    for note in notes:
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


def publish(job: sweep.Sweep, page: Page, say: Console) -> None:
    """Write the sweep's page and say where it is, or why there is none."""
    try:
        say.print(f"report: {write_page(job.folder, 'report', page)}", highlight=False)
    except OSError as error:
        say.print(f"warning: no report was written: {error.strerror or error}", style="yellow", highlight=False)
