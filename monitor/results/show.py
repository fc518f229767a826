"""A result as a person reads it in a terminal. Also the commands `runs` and `show`."""

import json
import os
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from monitor.conditions import faults
from monitor.console import console
from monitor.errors import UserError, refuse_unknown
from monitor.results import store, words
from monitor.results.attempts import sentence
from monitor.results.text import mean, number, share
from trainer.events import PHASES
from trainer.layout import WORKER

SETTINGS = {"RUNS_DIR": "folder of results; default: runs"}
HEADINGS = ["run", "status", "runtime", "sync", "model", "data", "nodes", "batch", "precision", "s/step", "accuracy"]
HEADINGS += ["with"]
UNREADABLE = "unreadable"
NOT_A_RESULT = (KeyError, TypeError, ValueError, AttributeError, IndexError)  # what reading any other JSON may raise
FOREIGN = "its result.json is not one that syncbed wrote; restore or remove it"
STATUS_COLOURS = {"finished": "green", "failed": "red", "running": "yellow"}


def list_command(settings: dict[str, str], args) -> int:
    """CLI `runs`: every run, newest first."""
    found = []
    for folder in store.folders(runs_folder(settings)):
        try:
            found.append(store.load(folder.name, folder.parent) | {"id": folder.name})
        except UserError as error:
            found.append({"id": folder.name, "status": UNREADABLE, "error": {"message": str(error)}})
    if args.json:
        print(json.dumps(found, indent=1))
        return 0
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in HEADINGS:
        table.add_column(heading, no_wrap=heading == "run", min_width=30 if heading == "run" else None)
    problems = []
    for result in found:
        try:
            table.add_row(*_cells(result))
        except NOT_A_RESULT:
            result = {"id": result["id"], "status": UNREADABLE, "error": {"message": f"run {result['id']}: {FOREIGN}"}}
            table.add_row(*_cells(result))
        if result["status"] == UNREADABLE:
            problems.append(result["error"]["message"])
    console().print(table if found else "no runs yet: `make run SYNC=ddp` makes the first")
    for problem in problems:
        console(stderr=True).print(f"warning: {problem}", style="yellow", highlight=False)
    return 0


def _cells(result: dict) -> list[str | Text]:
    """A run's row. Raises one of NOT_A_RESULT for what is no result."""
    spec = result.get("spec", {})
    steps = [rank["step_seconds"]["mean"] for rank in result.get("ranks", [])]
    return [
        result["id"],
        Text(result["status"], STATUS_COLOURS.get(result["status"], "red")),
        str(result.get("runtime", "")),
        *(str(spec.get(key, "")) for key in ("sync", "model", "data", "nodes", "batch", "precision")),
        number(mean(steps), 3),
        share(result.get("test_accuracy")),
        words.more(result) if spec else "",
    ]


def show_command(settings: dict[str, str], args) -> int:
    """CLI `show`: one run's summary, or its result.json as it is."""
    result = store.load(args.run, runs_folder(settings))
    if args.json:
        print(json.dumps(result, indent=1))
        return 0
    try:
        show(result, console())
    except NOT_A_RESULT:
        raise UserError(f"run {args.run}: {FOREIGN}") from None
    return 0


def runs_folder(settings: dict[str, str]) -> Path:
    """The folder that RUNS_DIR= names, ./runs by default. Raises UserError for any other setting, and for no folder."""
    refuse_unknown(settings, SETTINGS)
    folder = Path(settings.get("RUNS_DIR", "runs"))
    try:
        there = folder.is_dir()
    except OSError as error:
        raise UserError(f"RUNS_DIR={folder}: cannot be read ({error.strerror or error})") from None
    if "RUNS_DIR" in settings and not there:
        raise UserError(f"RUNS_DIR={folder}: no such folder; a folder that runs were written to would do")
    return folder


def show(result: dict, console: Console, warnings: bool = True) -> None:
    """Print what a run came to: per-rank table with the mean, losses, accuracy, classes, and where the time went."""
    spec = result["spec"]
    colour = STATUS_COLOURS.get(result["status"], "red")
    nodes = f"{spec['nodes']} node{'s'[: spec['nodes'] > 1]} ({result['runtime']})"
    what = f"{spec['sync']} {spec['model']} on {result['data']['label']}, {nodes}"
    console.print(
        Text.assemble(
            (result["id"], "bold"),
            "  ",
            (result["status"], colour),
            f"  {what}, batch {spec['batch']}, {spec['precision']}",
        ),
        highlight=False,
    )
    if more := words.named(spec):
        console.print(f"with {more}", highlight=False)
    if under := words.conditions(result):
        rates = [f"{link['measured']['rate_bits'] / 1e6:.4g}" for link in result["links"] if "measured" in link]
        measured = f"; measured {', '.join(rates)} Mbit/s" if rates else ""
        asked = " ".join(f"{name}={text}" for name, text in under.items())
        console.print(f"nodes held to {asked}{measured}", highlight=False)
    if before := result.get("resumed_from"):
        console.print(f"going on from step {before['step']} of {before['run']}", highlight=False)
    if any(rank["steps"] for rank in result.get("ranks", ())):
        console.print(rank_table(result["ranks"]))
        console.print(phase_table(result["ranks"]))
        note = "first step left out of the step means; sync is the part that backward did not hide; CPU is the node's"
        console.print(note, style="dim")
    for fault in result.get("faults") or ():
        console.print(f"fault {faults.sentence(fault)}", style="yellow", markup=False, highlight=False)
    for restart in result.get("restarts") or ():
        console.print(f"restart {restart['attempt']}: {sentence(restart)}", style="yellow", highlight=False)
    for lost in result.get("lost_workers") or ():
        console.print(
            f"went on without rank {lost['rank']}, which {lost['reason']} at step {lost['step']}", style="yellow"
        )
    if result["error"]:
        debug = os.environ.get("DEBUG") == "1"
        for line in [*result["error"]["last_lines"], *(result["error"]["traceback"].splitlines() if debug else ())]:
            console.print("  | " + line, style="dim", highlight=False)
        console.print("failed: " + result["error"]["message"], style="red", highlight=False)
    if result.get("test_accuracy") is not None:
        console.print(class_table(result["per_class"]))
        console.print(confusion_table(result["confusion_matrix"], result["classes"]))
        console.print(
            f"train loss {number(result['train_loss'], 3)}   test loss {number(result['test_loss'], 3)}   "
            f"test accuracy {share(result['test_accuracy'])} of {result['test_samples_counted']:,}   "
            f"distinct training samples {result['distinct_samples']:,} of {result['data']['train_samples']:,}"
        )
    for warning in (result.get("warnings") or ()) if warnings else ():
        console.print(f"warning: {warning}", style="yellow", highlight=False)
    spent = result.get("seconds")
    if spent:
        parts = ("startup", "training", "evaluation", "total")
        told = [f"{part} {number(spent[part], 1)} s" for part in parts if spent[part] is not None]
        if spent.get("recovery"):
            told.append(f"of training, restarts took {number(spent['recovery'], 1)} s")
        console.print("   ".join(told))


def rank_table(ranks: list[dict]) -> Table:
    """Seconds per step, bytes and peaks: a row per rank and their mean, as report R1 prints it."""
    columns = {
        "s/step": ([rank["step_seconds"]["mean"] for rank in ranks], 3),
        "median": ([rank["step_seconds"]["median"] for rank in ranks], 3),
        "p95": ([rank["step_seconds"]["p95"] for rank in ranks], 3),
        "sent MB/step": ([rank["sent_bytes"] / rank["steps"] / 1e6 if rank["steps"] else None for rank in ranks], 2),
        "peak MB": ([rank["peak_memory_bytes"] / 1e6 if rank["peak_memory_bytes"] else None for rank in ranks], 0),
        "peak CPU %": (of_node(ranks, "peak_cpu_percent"), 0),
    }
    return _table_with_mean(ranks, columns)


def of_node(ranks: list[dict], name: str) -> list[float | None]:
    """A figure of each rank's node, which all ranks there have: with the node's first rank, None with the others."""
    first = {rank["node"]: i for i, rank in reversed([*enumerate(ranks)])}
    return [rank[name] if first[rank["node"]] == i else None for i, rank in enumerate(ranks)]


def phase_table(ranks: list[dict]) -> Table:
    """Mean seconds of each phase of a step: a row per rank and their mean."""
    return _table_with_mean(ranks, {p: ([rank["phase_seconds"][p] for rank in ranks], 3) for p in PHASES})


def _table_with_mean(ranks: list[dict], columns: dict[str, tuple[list, int]]) -> Table:
    table = Table("rank", "node", box=None, header_style="bold", pad_edge=False)
    table.add_column("steps", justify="right")
    for heading in columns:
        table.add_column(heading, justify="right")
    roles = [rank.get("role", WORKER) for rank in ranks]
    for row, (rank, role) in enumerate(zip(ranks, roles, strict=True)):
        cells = (number(values[row], places) for values, places in columns.values())
        where = rank["node"] if role == WORKER else f"{rank['node']}, {role}"
        table.add_row(str(rank["rank"]), where, str(rank["steps"]), *cells)
    workers = [i for i, role in enumerate(roles) if role == WORKER]
    means = (number(mean(values[i] for i in workers), places) for values, places in columns.values())
    table.add_row("mean", "of workers" if len(workers) < len(ranks) else "", "", *means, style="bold")
    return table


def class_table(report: list[dict]) -> Table:
    """The classification report."""
    table = Table("class", box=None, header_style="bold", pad_edge=False)
    for heading in ("precision", "recall", "F1", "support"):
        table.add_column(heading, justify="right")
    for row in report:
        values = (f"{row[key]:.3f}" for key in ("precision", "recall", "f1"))
        table.add_row(row["class"], *values, str(row["support"]))
    return table


def confusion_table(matrix: list[list[int]], classes: list[str]) -> Table:
    """The confusion matrix: a row per true class, a column per predicted one."""
    table = Table("true \\ predicted", box=None, header_style="bold", pad_edge=False)
    for name in classes:
        table.add_column(name[:6], justify="right")
    for name, row in zip(classes, matrix, strict=True):
        table.add_row(name, *(str(count) for count in row))
    return table
