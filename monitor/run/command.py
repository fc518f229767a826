"""`syncbed run`: train once, show what came of it, write its page."""

import json
from pathlib import Path

from rich.console import Console

from monitor import console
from monitor.clock import CLOCK
from monitor.errors import BAD_INPUT, FAILED, UserError
from monitor.interrupt import Stop
from monitor.results import show
from monitor.run.request import run


def command(settings: dict[str, str], args) -> int:
    """CLI `run`. 0: finished; 1: the run failed. Raises UserError or SpecError (exit 2) before anything was started."""
    began = CLOCK.begin()
    stop = Stop().listen()
    say = console.console(stderr=args.json)
    runs = Path(settings.get("RUNS_DIR", "runs"))
    pages = settings.get("PAGES", "1")
    if pages not in ("0", "1"):
        raise UserError(f"PAGES={pages}: 0 or 1")
    result = run({name: value for name, value in settings.items() if name != "PAGES"}, say, began, stop)
    stop.done()
    if args.json:
        print(json.dumps(result.document(), indent=1))
    else:
        show.show(result, say, warnings=False)  # which were told as they came
    say.print(f"result: {runs / result.id / 'result.json'}", highlight=False)
    if pages == "1":
        write_pages(runs / result.id, say)
    if result.error is None:
        return 0
    return BAD_INPUT if result.error.kind == "input" else FAILED


def write_pages(folder: Path, say: Console) -> None:
    """Write the run's report and say where it is, or why there is none: the result stands without it."""
    from monitor.report.command import write  # it loads what plots need

    try:
        say.print(f"report: {write(folder)}", highlight=False)
    except Exception as error:
        say.print(f"warning: no report was written: {error}", style="yellow", highlight=False)
