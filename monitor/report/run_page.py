"""The page of one run, from what its folder holds."""

from collections.abc import Callable

from monitor.report import nodes
from monitor.report.load import Run
from monitor.report.page import Page, Printed, Section
from monitor.report.plots import Bars, Lines, Matrix, Series
from monitor.results import attempts, scores, show, text, words
from monitor.results.scores import joined_loss
from monitor.results.table import PER_CENT, Table
from monitor.results.text import number, share
from trainer.events import PHASES
from trainer.registry import MODELS

MOST_POINTS = 1000  # of a curve; a longer one is thinned, its ends kept
PHASE_NAMES = {"sync": "exposed sync"}
RANK_NOTE = (
    "The first step is left out of the step means. sync is the part that backward did not hide. Peak CPU and "
    "throttling are the node's, and stand with its first rank."
)


def run_page(run: Run) -> Page:
    """Everything a run left, as a page. What it does not have, it does not show."""
    result, spec = run.result, run.result["spec"]
    size = f"{spec['nodes']} node{'s'[: spec['nodes'] > 1]}"
    images = result["data"].get("label") or spec["data"]
    lead = [
        f"{spec['sync']} {spec['model']} on {images}, {size} ({result['runtime']}), batch {spec['batch']}, "
        f"{spec['precision']}: {result['status']}",
        *(f"Warning: {warning}" for warning in result.get("warnings") or ()),
    ]
    sections = [
        Section("What failed", failure(result)),
        Section("Result", [outcome(result)]),
        Section("Training", [*learning(run), *evaluations(run)]),
        Section("Where the time of a step goes", ranks(result)),
        Section("Classes", classes(result)),
        Section("Faults", fault_table(result)),
        Section("Nodes over time", [*nodes.loopback(run), *nodes.over_time(run)]),
        Section("Staleness", staleness(result)),
        Section("What was run, and on what", [settings(result), *conditions(result), machine(result)]),
    ]
    return Page(f"Run {result['id']}", lead, [section for section in sections if section.items])


def failure(result: dict) -> list:
    """What failed, and the failed rank's last lines."""
    error = result.get("error")
    if not error:
        return []
    lines = error.get("last_lines") or []
    return [error["message"], *([Printed(lines)] if lines else [])]


def outcome(result: dict) -> Table:
    """Losses, accuracy, samples and seconds."""
    seconds, restarts = result.get("seconds") or {}, result.get("restarts") or ()
    known = {
        "training loss of the last step": number(result.get("train_loss"), 4),
        "test loss": number(result.get("test_loss"), 4),
        "test accuracy": share(result.get("test_accuracy")),
        "test images counted": _count(result.get("test_samples_counted")),
        "steps": _count(result.get("steps")),
        "distinct training images seen": _of(result.get("distinct_samples"), result["data"].get("train_samples")),
        "synchronisations": _count(result.get("synchronisations")),
        **{
            f"seconds of {name}": number(seconds.get(name), 2)
            for name in ("startup", "training", "evaluation", "total")
        },
        **({"seconds of training that restarts took": number(seconds.get("recovery"), 2)} if restarts else {}),
    }
    rows = [[name, value] for name, value in known.items() if value != "-"]
    for restart in restarts:
        rows.append([f"restart {restart['attempt']}", attempts.sentence(restart)])
    for lost in result.get("lost_workers") or ():
        rows.append(["went on without", f"rank {lost['rank']}, which {lost['reason']} at step {lost['step']}"])
    return Table("outcome", "What it came to", ["", "value"], rows)


def ranks(result: dict) -> list:
    """The table per rank with its mean, as report R1 prints it, and the phases as stacked bars."""
    if not scores.workers(result):
        return []
    return [rank_table(result), phases(result)]


def rank_table(result: dict, name: str = "ranks", title: str = "Ranks") -> Table:
    """A row per rank and the mean of the workers."""
    columns: dict[str, tuple[Callable[[dict], float | None], int]] = {
        "s/step": (lambda r: r["step_seconds"]["mean"], 3),
        "median s": (lambda r: r["step_seconds"]["median"], 3),
        "p95 s": (lambda r: r["step_seconds"]["p95"], 3),
        **{f"{p} s": (lambda r, p=p: r["phase_seconds"][p], 3) for p in PHASES},
        "sent MB/step": (lambda r: _each(r["sent_bytes"], r["steps"], 1e6), 2),
        "peak MB": (lambda r: _each(r["peak_memory_bytes"], 1, 1e6), 0),
    }
    of_node = {
        "peak CPU %": (show.of_node(result["ranks"], "peak_cpu_percent"), 0),
        "throttled s": (show.of_node(result["ranks"], "throttled_seconds"), 2),
    }
    rows = [
        [r["rank"], r["node"], r.get("role", "worker"), r["steps"], *(take(r) for take, _ in columns.values())]
        + [known[i] for known, _ in of_node.values()]
        for i, r in enumerate(result["ranks"])
    ]
    workers = scores.workers(result)
    means = [text.mean(take(r) for r in workers) for take, _ in columns.values()]
    at = [i for i, r in enumerate(result["ranks"]) if r in workers]
    means += [text.mean(known[i] for i in at) for known, _ in of_node.values()]
    rows.append([None, "mean of the workers", "", None, *means])
    places = [None, None, None, None, *(p for _, p in (*columns.values(), *of_node.values()))]
    return Table(name, title, ["rank", "node", "role", "steps", *columns, *of_node], rows, places, [RANK_NOTE])


def phases(result: dict) -> Bars:
    """Mean seconds of a step by phase, a bar per worker."""
    workers = scores.workers(result)
    parts = {PHASE_NAMES.get(p, p): [rank["phase_seconds"][p] for rank in workers] for p in PHASES}
    labels = [f"rank {rank['rank']}" for rank in workers]
    return Bars("phases", "Phases of a step, mean of each rank", "seconds", labels, parts)


def learning(run: Run) -> list[Lines]:
    """Loss and accuracy of the joined batch against steps and against seconds of training."""
    joined = joined_steps(run)
    if not joined:
        return []
    steps = [step for step, *_ in joined]
    seconds = [seconds for _, seconds, *_ in joined]
    plots, per_epoch = [], run.steps_per_epoch if run.steps_per_epoch and steps[-1] >= run.steps_per_epoch else None
    for name, title, at, y_top in (("loss", "Training loss", 2, None), ("accuracy", "Training accuracy", 3, 1.0)):
        values = [point[at] for point in joined]
        for by, x_label, x in (("steps", "step", steps), ("seconds", "seconds since the first step began", seconds)):
            line = Series(f"{name} of the joined batch", *thinned(x, values))
            told = "Training and test" if name == "accuracy" else "Training and test loss"
            series = [line, *_scores(run, by, name)]
            plots.append(
                Lines(
                    f"{name}-by-{by}",
                    f"{title if len(series) == 1 else told if name == 'loss' else told + ' accuracy'} against {by}",
                    x_label, name, series, y_top=y_top, whole_x=by == "steps",
                    per_epoch=per_epoch if by == "steps" else None,
                )
            )  # fmt: skip
    return plots


def _scores(run: Run, by: str, name: str) -> list[Series]:
    """The test set's loss or accuracy, where it was scored on the way."""
    scores = run.result.get("evaluations") or []
    if not scores:
        return []
    startup = (run.result.get("seconds") or {}).get("startup") or 0.0
    x = [score["step"] if by == "steps" else score["seconds"] - startup for score in scores]
    return [Series(f"{name} on the test set", x, [score[name] for score in scores])]


def joined_steps(run: Run) -> list[tuple[int, float, float | None, float]]:
    """(step, seconds since the first step began, loss, accuracy) of the joined batch, of steps that all did."""
    by_step: dict[int, list] = {}
    for own in run.steps.values():
        for step in own:
            by_step.setdefault(step.step, []).append(step)
    workers = len(run.steps)
    joined = []
    for number_, steps in sorted(by_step.items()):
        if len(steps) == workers:
            samples = sum(step.samples for step in steps)
            accuracy = sum(step.accuracy * step.samples for step in steps) / samples
            joined.append((number_, max(step.time for step in steps) - run.began, joined_loss(steps), accuracy))
    return joined


def evaluations(run: Run) -> list[Table]:
    """Scores on the test set while training went on."""
    scores = run.result.get("evaluations") or []
    rows = [[score["step"], score["seconds"], score["loss"], score["accuracy"]] for score in scores]
    headings = ["step", "s since the command", "test loss", "test accuracy"]
    return [Table("evaluations", "Scores on the test set", headings, rows, [None, 1, 4, PER_CENT])] if rows else []


def classes(result: dict, suffix: str = "", of: str = "") -> list:
    """The classification report and the confusion matrix."""
    if not result.get("per_class"):
        return []
    rows = [[c["class"], c["precision"], c["recall"], c["f1"], c["support"]] for c in result["per_class"]]
    headings = ["class", "precision", "recall", "F1", "support"]
    report = Table("classes" + suffix, "Classification report" + of, headings, rows, [None, 3, 3, 3, None])
    labels, counts = result["classes"], result["confusion_matrix"]
    matrix = Matrix("confusion" + suffix, "Confusion matrix" + of, "predicted class", "true class", labels, counts)
    table = Table(
        "confusion-matrix" + suffix,
        "Confusion matrix" + of + ", counts",
        ["true \\ predicted", *labels],
        [[label, *row] for label, row in zip(labels, counts, strict=True)],
    )
    return [report, matrix, table]


def fault_table(result: dict) -> list[Table]:
    """What was done to ranks and nodes, and when, in seconds from the beginning of the first step."""
    told = result.get("faults") or []
    rows = [[f["fault"], f["began_seconds"], f["ended_seconds"], f["step"], f["error"] or ""] for f in told]
    headings = ["fault", "began s", "ended s", "after step", "could not be done"]
    return [Table("faults", "Faults of the run (FAULT=)", headings, rows, [None, 1, 1, 0, None])] if rows else []


def staleness(result: dict) -> list[Bars]:
    """How stale the workers' updates were, where there is such a thing."""
    histograms = [rank["staleness"]["histogram"] for rank in result["ranks"] if rank.get("staleness")]
    if not histograms:
        return []
    most = max(int(age) for histogram in histograms for age in histogram)
    ages = [str(age) for age in range(most + 1)]
    ranks_ = [rank["rank"] for rank in result["ranks"] if rank.get("staleness")]
    parts = {f"rank {r}": [h.get(age, 0) for age in ages] for r, h in zip(ranks_, histograms, strict=True)}
    return [Bars("staleness", "Updates between a pull and its push, by steps of each rank", "steps", ages, parts)]


def settings(result: dict) -> Table:
    """Every setting that decided what was computed, in the words of `make run`."""
    return Table("settings", "Settings", ["setting", "value"], [[*row] for row in words.taken(result["spec"]).items()])


def conditions(result: dict) -> list[Table]:
    """What each node could use and send: limits and links that were asked for, and what the links were measured at."""
    rows = []
    links = result.get("links") or []
    for node, limit in enumerate(result.get("limits") or []):
        link = links[node] if links else {}
        seen = link.get("measured", {})
        memory = limit["memory_bytes"] and limit["memory_bytes"] / 2**20
        rate = link.get("rate_bits") and link["rate_bits"] / 1e6
        sent = seen.get("rate_bits") and seen["rate_bits"] / 1e6
        asked = [rate, *(link.get(name) for name in ("delay_ms", "jitter_ms", "loss_percent"))]
        control = link.get("congestion")
        rows.append([str(node), limit["cpus"], memory, *asked, control, sent, seen.get("round_trip_ms")])
    headings = ["node", "cores", "MiB", "Mbit/s", "delay ms", "jitter ms", "loss %", "congestion control"]
    headings += ["measured Mbit/s", "round trip ms"]
    shown = [i for i in range(len(headings)) if not i or any(row[i] for row in rows)]
    if len(shown) < 2:
        return []
    places = [None, 2, 0, 1, 1, 1, 2, None, 1, 2]
    rows = [[row[i] for i in shown] for row in rows]
    table = Table(
        "conditions", "Limits and links of the nodes", [headings[i] for i in shown], rows, [places[i] for i in shown]
    )
    return [table]


def machine(result: dict) -> Table:
    """The machine and the versions."""
    host, model = result["host"], result["spec"]["model"]
    rows = [
        ["processor", host["cpu"]],
        ["cores", str(host["cores"])],
        ["memory", f"{host['memory_bytes'] / 2**30:.1f} GiB"],
        ["system", host["system"]],
        *([name, version] for name, version in (result.get("versions") or {}).items()),
        ["model", MODELS[model].summary if model in MODELS else model],
        ["parameters", _count(result.get("parameters"))],
        ["bytes of gradients", _count(result.get("gradient_bytes"))],
        ["data", result["data"].get("label") or result["spec"]["data"]],
    ]
    return Table("machine", "Machine, versions, model", ["", "value"], rows)


def thinned(x: list, y: list) -> tuple[list, list]:
    every = -(-len(x) // MOST_POINTS)
    keep = sorted({*range(0, len(x), every), len(x) - 1})
    return [x[i] for i in keep], [y[i] for i in keep]


def _each(total: float | None, parts: int, unit: float) -> float | None:
    return total / parts / unit if total is not None and parts else None


def _of(part: int | None, whole: int | None) -> str:
    return "-" if part is None else f"{part:,} of {_count(whole)}"


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
