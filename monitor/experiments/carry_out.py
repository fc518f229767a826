"""Run what a sweep has not finished."""

from rich.console import Console
from rich.text import Text

from monitor.clock import CLOCK
from monitor.errors import FAILED, Busy, UserError
from monitor.experiments.sweep import Sweep, Try, load_matching
from monitor.experiments.sweep_folder import alone, has_sweep
from monitor.interrupt import Stop
from monitor.results import text
from monitor.results.text import duration
from monitor.run import launch
from trainer.checkpoint_folder import FOLDER
from trainer.files import remove_folder
from trainer.spec import SpecError


def carry_out(sweep: Sweep, say: Console) -> int:
    """Run what is not finished. 0 when all is; 1 when something failed or a signal stopped it.

    Raises UserError when another sweep works in the folder, or has made another of it since it was looked at, and Busy
    when another run holds the nodes.
    """
    with alone(sweep.folder):
        if has_sweep(sweep.folder):
            now = load_matching(sweep.folder, sweep.settings)
            sweep.cells, sweep.notes, sweep.tries = now.cells, now.notes, now.tries
        sweep.save()
        total, failed = sweep.total, 0
        for line in sweep.notes:
            say.print(line, highlight=False)
        before = sum(sweep.is_finished(*which) for which in sweep.order())
        if before:
            say.print(f"{before} of {total} runs are finished already", highlight=False)
        for place, (cell, repeat) in enumerate(sweep.order(), 1):
            if sweep.is_finished(cell, repeat):
                continue
            say.print(_heading(sweep, place, total, cell, repeat), highlight=False)
            stop = Stop().listen()
            attempt = _try(sweep, cell, repeat, say, stop)
            if attempt:
                failed += attempt.error is not None
                sweep.tries.append(attempt)
                sweep.save()
                if attempt.run and sweep.settings.get("KEEP") != "1":
                    remove_folder(sweep.folder / attempt.run / FOLDER, may_stay=True)
            if stop.is_requested:
                say.print("stopped; the same command goes on from here", highlight=False)
                return FAILED
    return FAILED if failed else 0


def _heading(sweep: Sweep, place: int, total: int, cell: int, repeat: int) -> Text:
    seconds_left = sweep.seconds_left()
    repeats = sweep.cells[cell].repeats
    again = f"  repeat {repeat} of {repeats}" if repeats > 1 else ""
    time_left = "" if seconds_left is None else f"  {duration(seconds_left)} left"
    what = sweep.cells[cell].text(sweep.cells)
    return Text.assemble((f"[{place}/{total}]", "bold"), f" {what}{again}{time_left}")


def _try(sweep: Sweep, cell: int, repeat: int, say: Console, stop: Stop) -> Try | None:
    """Run a cell once and say in a line what came of it. None when a signal stopped it, which says nothing of it."""
    began = CLOCK.begin()
    try:
        result = launch.run(sweep.cells[cell].request(sweep.folder), say, began, stop)
    except Busy:
        raise
    except (UserError, SpecError) as error:
        say.print(f"failed: {error}", style="red", highlight=False)
        return Try(cell, repeat, None, CLOCK.now() - began, str(error))
    if result.error and result.error.kind == "interrupted":
        return None
    error = result.error.message if result.error else None
    if error:
        say.print(f"failed: {error}", style="red", highlight=False)
    else:
        seconds = text.mean(rank.step_seconds.mean for rank in result.ranks)
        say.print(
            f"finished  {text.number(seconds, 3)} s/step  "
            f"test accuracy {text.share(result.test_accuracy)}  {result.id}",
            markup=False,
            highlight=False,
        )
    return Try(cell, repeat, result.id, CLOCK.now() - began, error)
