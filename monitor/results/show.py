"""A result as a person reads it in a terminal. Also the commands `runs` and `show`."""

import json
import os
from pathlib import Path

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from monitor.console import console
from monitor.errors import UserError, refuse_unknown
from monitor.results import sentences, store, tables, words
from monitor.results.parts import Seconds
from monitor.results.result import Result
from monitor.results.terminal import in_terminal
from monitor.results.text import count, mean, number, share
from monitor.text import one_line, plural

SETTINGS = {"RUNS_DIR": "folder of results; default: runs"}
HEADINGS = ["run", "status", "runtime", "sync", "model", "data", "nodes", "batch", "precision", "s/step", "accuracy"]
HEADINGS += ["with"]
UNREADABLE = "unreadable"
MOST_COLUMNS, MOST_LETTERS, CELL_LETTERS = 100_000, 2000, 400  # of a line when nothing is wrapped, of one, of a cell
STATUS_COLOURS = {"finished": "green", "failed": "red", "running": "yellow"}
STEP_NOTE = "first step left out of the step means; sync is the part that backward did not hide; CPU is the node's"


def list_command(settings: dict[str, str], args) -> int:
    """CLI `runs`: every run, newest first."""
    folders = store.folders(runs_folder(settings))
    if args.json:
        print(json.dumps([_listed_document(folder) for folder in folders], indent=1))
        return 0
    rows, problems = [], []
    for folder in folders:
        try:
            rows.append([_cell(folder.name), *_cells(store.load(folder.name, folder.parent))])
        except UserError as error:
            rows.append([_cell(folder.name), *_unreadable_cells()])
            problems.append(one_line(str(error), MOST_LETTERS))
    say = console()
    say.print(_run_table(rows, say) if rows else "no runs yet: `make run SYNC=ddp` makes the first")
    for problem in problems:
        console(stderr=True).print(f"warning: {problem}", style="yellow", highlight=False)
    return 0


def _run_table(rows: list[list[Text]], console: Console) -> Table:
    """The table of runs, a row each.

    Rich takes a millisecond to lay out a row. Where no cell has to be wrapped, all lines of a column are laid out as
    one cell, which looks the same.
    """
    table = _table_of([[Text("\n").join(column) for column in zip(*rows, strict=True)]])
    width = Measurement.get(console, console.options.update(width=MOST_COLUMNS), table).maximum
    return table if width <= console.width else _table_of(rows)


def _table_of(rows: list[list[Text]]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in HEADINGS:
        table.add_column(heading, no_wrap=heading == "run", min_width=30 if heading == "run" else None)
    for row in rows:
        table.add_row(*row)
    return table


def _listed_document(folder: Path) -> dict:
    """A run's document for programs; of one that cannot be read, the reason."""
    try:
        return document(folder.name, folder.parent) | {"id": folder.name}
    except UserError as error:
        return {"id": folder.name, "status": UNREADABLE, "error": {"message": str(error)}}


def document(run: str, runs: Path) -> dict:
    """A run's result.json as it is, but for a run whose orchestrator is gone: that has failed. Raises UserError."""
    values = store.read(run, runs)
    result = store.parse(run, values)
    if result.status == values["status"]:
        return values
    return values | {"status": result.status, "error": result.error and result.error.model_dump()}


def _cells(result: Result) -> list[Text]:
    """A run's row, without its name."""
    spec = result.spec
    step_seconds = mean(rank.step_seconds.mean for rank in result.ranks)
    settings = (result.runtime, spec.sync, spec.model, spec.data, spec.nodes, spec.batch, spec.precision)
    figures = (number(step_seconds, 3), share(result.test_accuracy), words.more(result))
    return [Text(result.status, STATUS_COLOURS[result.status]), *map(_cell, (*settings, *figures))]


def _cell(value: object) -> Text:
    """A value on one line: where all rows are laid out as one, a second line would move those below it."""
    return Text(one_line(str(value), CELL_LETTERS))


def _unreadable_cells() -> list[Text]:
    """The row of a run that cannot be read, without its name."""
    return [Text(UNREADABLE, "red"), *(Text("") for _ in range(7)), Text("-"), Text("-"), Text("")]


def show_command(settings: dict[str, str], args) -> int:
    """CLI `show`: one run's summary, or its result.json as it is."""
    runs = runs_folder(settings)
    if args.json:
        print(json.dumps(document(args.run, runs), indent=1))
    else:
        show(store.load(args.run, runs), console())
    return 0


def runs_folder(settings: dict[str, str]) -> Path:
    """The folder that RUNS_DIR= names, ./runs by default. Raises UserError for any other setting, and for no folder."""
    refuse_unknown(settings, SETTINGS)
    folder = Path(settings.get("RUNS_DIR", "runs"))
    try:
        exists = folder.is_dir()
    except OSError as error:
        raise UserError(f"RUNS_DIR={folder}: cannot be read ({error.strerror or error})") from None
    if "RUNS_DIR" in settings and not exists:
        raise UserError(f"RUNS_DIR={folder}: no such folder; a folder that runs were written to would do")
    return folder


def show(result: Result, console: Console, warnings: bool = True) -> None:
    """Print what a run came to: per-rank table with the mean, losses, accuracy, classes, and where the time went."""
    _show_heading(result, console)
    if any(rank.steps for rank in result.ranks):
        for table in tables.narrow_rank_tables(tables.rank_table(result)):
            console.print(in_terminal(table, left_columns=2, bold_end=True))
        console.print(STEP_NOTE, style="dim")
    _show_events(result, console)
    if result.error:
        debug = os.environ.get("DEBUG") == "1"
        traceback = result.error.traceback.splitlines() if debug else []
        for line in [*result.error.last_lines, *traceback]:
            console.print("  | " + line, style="dim", highlight=False)
        console.print("failed: " + result.error.message, style="red", highlight=False)
    if result.test_accuracy is not None:
        _show_scores(result, console)
    for warning in result.warnings if warnings else ():
        console.print(f"warning: {warning}", style="yellow", highlight=False)
    if seconds := seconds_text(result.seconds):
        console.print(seconds)


def _show_heading(result: Result, console: Console) -> None:
    """Print what was run, and under which conditions."""
    spec = result.spec
    what = f"{spec.sync} {spec.model} on {result.data.label}, {plural(spec.nodes, 'node')} ({result.runtime})"
    console.print(
        Text.assemble(
            (result.id, "bold"),
            "  ",
            (result.status, STATUS_COLOURS[result.status]),
            f"  {what}, batch {spec.batch}, {spec.precision}",
        ),
        highlight=False,
    )
    if more := words.unusual_settings(spec):
        console.print(f"with {more}", highlight=False)
    if conditions := words.conditions(result):
        rates = [f"{link.measured.rate_bits / 1e6:.4g}" for link in result.links if link.measured]
        measured = f"; measured {', '.join(rates)} Mbit/s" if rates else ""
        limits = " ".join(f"{name}={text}" for name, text in conditions.items())
        console.print(f"nodes held to {limits}{measured}", highlight=False)
    if source := result.resumed_from:
        console.print(f"going on from step {source.step} of {source.run}", highlight=False)


def _show_events(result: Result, console: Console) -> None:
    """Print faults, restarts and lost workers."""
    for fault in result.faults:
        console.print(f"fault {sentences.of_fault(fault)}", style="yellow", markup=False, highlight=False)
    for restart in result.restarts:
        console.print(f"restart {restart.attempt}: {sentences.of_restart(restart)}", style="yellow", highlight=False)
    for worker in result.lost_workers:
        console.print(f"went on without {sentences.of_lost_worker(worker)}", style="yellow")


def _show_scores(result: Result, console: Console) -> None:
    """Print scores on the test set, by class and in all."""
    console.print(in_terminal(tables.class_table(result)))
    if tables.has_small_matrix(result):
        console.print(in_terminal(tables.confusion_table(result), letters=6))
    else:
        console.print(tables.TOO_MANY, style="dim")
    console.print(
        f"train loss {number(result.train_loss, 3)}   test loss {number(result.test_loss, 3)}   "
        f"test accuracy {share(result.test_accuracy)} of {count(result.test_samples_counted)}   "
        f"distinct training samples {count(result.distinct_samples)} of {count(result.data.train_samples)}"
    )


def seconds_text(seconds: Seconds) -> str:
    """Where the time went, in one line; empty where nothing is known."""
    parts = {
        "startup": seconds.startup,
        "training": seconds.training,
        "evaluation": seconds.evaluation,
        "total": seconds.total,
    }
    texts = [f"{name} {number(value, 1)} s" for name, value in parts.items() if value is not None]
    if seconds.recovery:
        texts.append(f"of training, restarts took {number(seconds.recovery, 1)} s")
    return "   ".join(texts)
