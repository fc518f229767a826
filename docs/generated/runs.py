"""What a run takes, models and data sets, and the five reports."""

import re
from pathlib import Path
from types import SimpleNamespace

from docs.generated.markdown import anchor, link, page, settings_table, table
from monitor.capabilities import RUNTIMES
from monitor.conditions.links import PROFILES
from monitor.experiments import preset
from monitor.run import request
from trainer.registry import DATA, MODELS, SYNCS, shape_text
from trainer.spec import RunSpec

ROOT = Path(__file__).resolve().parents[2]
# Every setting of a run, in the order in which a reader looks for it.
GROUPS = {
    "What is trained": ("SYNC", "MODEL", "DATA", "NODES", "NPROC", "BATCH", "SHARES", "STEPS", "EPOCHS", "SEED"),
    "The optimizer": ("LR", "MOMENTUM", "WEIGHT_DECAY", "PRECISION", "SYNC_BN"),
    "How replicas are kept together": (
        *("GRANULARITY", "BUCKET_MB", "COMPRESS", "RATIO", "RANK", "H", "OUTER_LR", "OUTER_MOMENTUM"),
        *("TOPOLOGY", "TRANSPORT", "SERVERS", "COLOCATED", "EVALUATOR", "STALENESS"),
    ),
    "While it trains": ("EVERY", "EVALUATE", "RESUME", "RESTARTS", "DEADLINE", "TENSORBOARD"),
    "Limits, links and faults": (
        *("CPUS", "MEMORY", "DISK", "LINK", "RATE", "DELAY", "JITTER", "LOSS", "CONGESTION", "FAULT"),
    ),
    "Where it runs and where files go": (*("RUNTIME", "PROJECT", "DATA_DIR", "DATA_CACHE", "RUNS_DIR", "PAGES"),),
}


def settings() -> str:
    """Every setting of `make run`."""
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(request.SETTINGS), "GROUPS and the settings of a run differ"
    fields = {setting: field for field, setting in RunSpec.setting_names().items()}

    def users(name: str) -> str:
        return ", ".join(f"`{sync}`" for sync, strategy in SYNCS.items() if fields.get(name) in strategy.settings)

    parts = [
        "Settings are `NAME=value` words of `make run` and of `.venv/bin/syncbed run`. `make sweep` and "
        "`make reproduce` take them for all their runs. Environment settings are ignored, with a warning. "
        "Unknown and invalid settings are rejected with a suggestion. `.venv/bin/syncbed run --help` prints this list."
    ]
    for title, names in GROUPS.items():
        of_group = {name: request.SETTINGS[name] for name in names}
        parts += [f"## {title}", settings_table(of_group, users)]
    words = ("rate", "delay", "jitter", "loss")
    parts += [
        "## Named links",
        "`LINK=` takes one of these names. `RATE`, `DELAY`, `JITTER` and `LOSS` beside it take precedence.",
        table(["link", *words], ([f"`{n}`", *(p.get(w, "") for w in words)] for n, p in PROFILES.items())),
    ]
    return page("Settings of a run", *parts)


def models_and_data() -> str:
    """Every model and data set."""
    models = (
        [
            f"`{name}`",
            model.summary,
            " or ".join(map(shape_text, model.shapes)),
            " or ".join(f"{count:,}" for count in model.parameters.values()),
            f"{model.lr:g}",
            link(model.place),
        ]
        for name, model in MODELS.items()
    )
    data = (
        [
            f"`{name}`",
            d.summary,
            shape_text(d.shape) if d.shape else "as the model takes them",
            ", ".join(f"`{model}`" for model, m in MODELS.items() if d.fits(m)),
        ]
        for name, d in DATA.items()
    )
    return page(
        "Models and data sets",
        "A model and a data set that do not fit are refused, with what fits. Parameters are counted at 10 classes. A "
        "strategy moves 4 bytes for each: S is four times this number.",
        "## Models",
        table(["`MODEL=`", "what it is", "images", "parameters", "`LR` by default", "file"], models),
        "## Data sets",
        table(["`DATA=`", "what it is, training + test images", "an image", "models"], data),
        "[Data sets](../guides/data.md) says where they come from and how they are prepared.",
    )


def reports() -> str:
    """The presets of the five reports: how long, how many nodes, which claims."""
    rows, parts = [], []
    for path in sorted(preset.OURS.glob("*.toml")):
        quick, full = preset.read(path.stem, "quick"), preset.read(path.stem, "full")
        rows.append(
            [
                f"[`{path.stem}`](#{anchor(f'{path.stem} {quick.title}')})",
                str(nodes_of(quick)),
                f"{runs_of(quick)}; {quick.note}",
                f"{minutes(path.stem)} min",
                f"{runs_of(full)}; {full.note}",
            ]
        )
        parts += [f"## {path.stem}: {quick.title}", quick.about, "Claims that are judged:"]
        parts.append("\n".join(f"- {claim.text}" for claim in quick.claims))
    return page(
        "The five reports",
        "`make reproduce REPORT=r1` runs one. [The guide](../guides/reports.md) says how, and what to expect.",
        table(["`REPORT=`", "nodes", "`SCALE=quick`, the default", "took", "`SCALE=full`"], rows),
        "The time is what the runs in [benchmarks/reports](../explanation/limits.md#where-figures-come-from) took at "
        "`SCALE=quick`, on a shared machine of 2 cores with half a core a node. `make cluster-up NODES=5` starts a "
        "cluster that is large enough for each of them.",
        *parts,
    )


def nodes_of(chosen: preset.Preset) -> int:
    """The largest number of nodes that a run of the preset takes."""
    return max(cell.spec().nodes for cell in cells_of(chosen))


def runs_of(chosen: preset.Preset) -> str:
    count = sum(cell.repeats for cell in cells_of(chosen))
    return f"{count} runs"


def cells_of(chosen: preset.Preset) -> list:
    """Every cell, as on a cluster of 4 nodes."""
    cluster = SimpleNamespace(name="docker", default_nodes=4, capabilities=RUNTIMES["docker"])
    cells, left_out = chosen.cells(cluster, {})  # pyright: ignore[reportArgumentType] # all that cells asks for
    assert not left_out
    return cells


def minutes(report: str) -> str:
    """How long its runs took, as the committed page says."""
    text = (ROOT / f"benchmarks/reports/{report}/report.md").read_text()
    match = re.search(r"its runs took ([0-9.]+) minutes", text)
    assert match, report
    return match[1]
