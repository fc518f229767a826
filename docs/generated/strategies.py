"""Strategies and compressors, from the registry and their docstrings."""

import ast
from pathlib import Path

from docs.generated.markdown import anchor, link, page, table
from trainer.registry import COMPRESSORS, SYNCS, Strategy
from trainer.spec import RunSpec

ROOT = Path(__file__).resolve().parents[2]


def strategies() -> str:
    """Every strategy, a row each."""
    return page(
        "Strategies",
        "S is the bytes of all gradients, n the number of ranks that train. The tests compute these formulas and "
        "compare them with the bytes that the wire counts. [How bytes are counted](../explanation/measurement.md"
        "#bytes-are-counted-not-estimated) says what is in them. [How to choose a strategy for slow "
        "links](../guides/slow-links.md) says what follows from them.",
        table(
            ["strategy", "bytes a rank sends per step", "when to use it"],
            ([f"[`{name}`]({detail_page(s)}.md#{anchor(name)})", s.sends, s.use] for name, s in SYNCS.items()),
        ),
        "Where the replicas are apart between averages (`local_sgd`, `diloco`, `gossip`, `psgd`), their mean is what "
        "is evaluated and what checkpoints hold. It is taken once after the last step and costs 2(n-1)/n · S more, "
        "unless the replicas have just been averaged. A checkpoint on the way does not disturb them.",
        "`gossip` sends S in place of 2S with two ranks, since a rank then has one neighbour.",
        "[Strategies that equal SGD on the joined batch](strategies-exact.md) and [strategies that do "
        "not](strategies-relaxed.md) have each algorithm, its source, and what it means for momentum and batch norm. "
        "[Compression](compression.md) makes smaller what some of them send.",
    )


def detail_page(strategy: Strategy) -> str:
    """The page that a strategy's algorithm is on."""
    return "strategies-exact" if strategy.exact else "strategies-relaxed"


def strategies_exact() -> str:
    """The algorithms of strategies that equal SGD on the joined batch."""
    return page(
        "Strategies that equal SGD on the joined batch",
        "The tests hold each against single-process SGD, to float tolerance, for 1 to 4 ranks.",
        *details(exact=True),
    )


def strategies_relaxed() -> str:
    """The algorithms of the others."""
    return page(
        "Strategies that do not wait for all, or not each step",
        "They compute something else than SGD on the joined batch, so compare the accuracy that they reach, and not "
        "only their speed. [Accuracy after an epoch](../guides/slow-links.md#what-it-costs-in-accuracy) was measured "
        "for each.",
        *details(exact=False),
    )


def details(exact: bool) -> list[str]:
    """A heading, the docstring and what the registry says, for each strategy of a kind."""
    chosen = ((name, strategy) for name, strategy in SYNCS.items() if strategy.exact is exact)
    return [part for name, s in chosen for part in (f"## {name}", docstring(s.place), properties(s))]


def compression() -> str:
    """What may travel in place of gradients."""
    users = ", ".join(f"`{name}`" for name, s in SYNCS.items() if "compress" in s.settings)
    parts = [
        f"`COMPRESS=` makes smaller what {users} send: gradients, and with `diloco` the change of the weights. A "
        "formula of [a strategy](strategies.md) then has s, the bytes named below, in place of S.",
        "With `topk` and `powersgd` each rank keeps what it did not send and adds it to its next gradient before that "
        "is sent (error feedback).",
        "`topk` chooses among the entries of one `GRANULARITY` group; `ring` and `diloco` have one group for all, "
        "parameter servers one for each server. Every rank gathers every rank's entries, (n-1) · s in place of "
        "2(n-1)/n · s, so `topk` saves while `RATIO` is below 1/n.",
    ]
    for name, place in COMPRESSORS.items():
        parts += [f"## {name}", docstring(place), f"File: {link(place)}."]
    return page("Compression", *parts)


def properties(strategy: Strategy) -> str:
    """What the registry says of a strategy, as a list."""
    names = RunSpec.setting_names()
    lines = [f"- File: {link(strategy.place)}."]
    if strategy.settings:
        lines.append("- Settings: " + ", ".join(f"`{names[field]}`" for field in strategy.settings) + ".")
    if not strategy.repeatable:
        lines.append("- What it computes depends on which rank is faster, so two runs differ.")
    if strategy.survives_lost_workers:
        lines.append("- Training continues without a lost worker, except rank 0.")
    if strategy.one_node:
        lines.append("- Runs on one node.")
    return "\n".join(lines)


def docstring(place: str) -> str:
    """The class's docstring, read without importing torch."""
    module, name = place.split(":")
    tree = ast.parse((ROOT / (module.replace(".", "/") + ".py")).read_text())
    found = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    text = ast.get_docstring(found)
    assert text, place
    return text
