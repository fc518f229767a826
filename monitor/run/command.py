"""`syncbed run`: train once, show what came of it, write its page."""

import json
from pathlib import Path

from rich.console import Console

from monitor import console as consoles
from monitor.clock import CLOCK
from monitor.errors import BAD_INPUT, FAILED
from monitor.interrupt import Stop
from monitor.results import show
from monitor.run.launch import run
from monitor.run.request import Request


def command(settings: dict[str, str], args) -> int:
    """CLI `run`. 0: finished; 1: the run failed. Raises UserError or SpecError (exit 2) before anything was started."""
    began = CLOCK.begin()
    stop = Stop().listen()
    console = consoles.console(stderr=args.json)
    request = Request.of(settings)
    result = run(request, console, began, stop)
    stop.done()
    if args.json:
        print(json.dumps(result.document(), indent=1))
    else:
        show.show(result, console, warnings=False)  # they were shown as they came
    folder = request.runs / result.id
    console.print(f"result: {folder / 'result.json'}", highlight=False)
    if request.pages:
        write_pages(folder, console)
    if result.error is None:
        return 0
    return BAD_INPUT if result.error.kind == "input" else FAILED


def write_pages(folder: Path, console: Console) -> None:
    """Write the run's report and say where it is, or why there is none: the result stands without it."""
    from monitor.report.command import write  # it loads what plots need

    try:
        console.print(f"report: {write(folder)}", highlight=False)
    except Exception as error:  # whatever drawing raises: the run has its result, and its exit code
        console.print(f"warning: no report was written: {error}", style="yellow", highlight=False)
