"""What was run, in the words of `make run`: what tells one run from another, and what is worth naming of one.

Specs are taken as results hold them, so that those of older versions can be read.
"""

from collections.abc import Iterable

from monitor.conditions import faults
from monitor.conditions.links import DEFAULT_CONGESTION
from trainer.registry import MODELS, SYNCS
from trainer.spec import RunSpec

NAMES = RunSpec.setting_names()
LINK = (  # word, field of a result's link, unit and its size
    ("rate", "rate_bits", "mbit", 1e6),
    ("delay", "delay_ms", "ms", 1),
    ("jitter", "jitter_ms", "ms", 1),
    ("loss", "loss_percent", "%", 1),
)
HEADED = ("sync", "model", "data", "nodes", "batch", "precision")  # what every heading and list names


def differences(result: dict, among: list[dict]) -> str:
    """The settings in which a run differs from others among these, in the words of `make run`."""
    own = flat(result)
    names = [n for n in own if len({str(flat(other).get(n)) for other in among}) > 1]
    if not names:
        names = ["sync", "model", "nodes", "batch"]
    looked_at = taken(own)
    if result.get("links"):
        own["congestion"] = own["congestion"] or DEFAULT_CONGESTION
    told = [(NAMES.get(n, n.upper()), text(own[n])) for n in names]
    return " ".join(f"{word}={value}" if value else f"no {word}" for word, value in told if word in looked_at)


def flat(result: dict) -> dict:
    """What tells one run from another: the spec, the runtime and its nodes' limits, the data that was really used, and
    where it began.
    """
    about = {"runtime": result["runtime"], "data": result["data"].get("key", result["spec"]["data"])}
    about |= of_limits(result) | of_links(result) | {"fault": faults.text(result.get("faults") or ())}
    return result["spec"] | about | {"from_step": (result.get("resumed_from") or {}).get("step", 0)}


def of_limits(result: dict) -> dict[str, str]:
    """What the run's nodes were held to, by word, as `make run` takes it."""
    limits = result.get("limits") or []  # older results have none
    return {
        "cpus": _each((one["cpus"] for one in limits), "{:g}"),
        "memory": _each((one["memory_bytes"] and one["memory_bytes"] / 2**20 for one in limits), "{:.0f}m"),
    }


def conditions(result: dict) -> dict[str, str]:
    """Limits and links, by word, of what is not empty."""
    told = of_limits(result) | of_links(result)
    return {name.upper(): text for name, text in told.items() if text}


def more(result: dict) -> str:
    """What a list names beside the headings: settings that are not the default, links, faults, unequal limits."""
    own = [
        f"{name}={text}" for name, text in conditions(result).items() if "," in text or name not in ("CPUS", "MEMORY")
    ]
    struck = faults.text(result.get("faults") or ())
    return " ".join(filter(None, [named(result["spec"]), *own, struck and f"FAULT={struck}"]))


def of_links(result: dict) -> dict[str, str]:
    """What the run's links were asked to be, by word, as `make run` takes it; empty where nothing was asked for."""
    links = result.get("links") or []  # older results have none, or no congestion control
    told = {
        name: _each((one[key] and one[key] / scale for one in links), "{:g}" + unit) for name, key, unit, scale in LINK
    }
    controls = [one.get("congestion") or DEFAULT_CONGESTION for one in links]
    usual = set(controls) <= {DEFAULT_CONGESTION} and any(told.values())
    return told | {"congestion": "" if usual else ",".join(controls if len(set(controls)) > 1 else controls[:1])}


def _each(values: Iterable[float | None], form: str) -> str:
    """Of each node, in order, parted by commas; once where all are alike. Nothing and 0 are the same."""
    told = [form.format(value or 0) for value in values]
    return "" if not set(told) - {form.format(0)} else told[0] if len(set(told)) == 1 else ",".join(told)


def taken(spec: dict) -> dict[str, str]:
    """Every setting that the run looked at: those of other strategies are left out."""
    of_some = {name for strategy in SYNCS.values() for name in strategy.settings}
    of_this = SYNCS[spec["sync"]].settings if spec.get("sync") in SYNCS else of_some
    return {
        NAMES.get(name, name.upper()): text(value)
        for name, value in spec.items()
        if value is not None and (name in of_this or name not in of_some)
    }


def named(spec: dict) -> str:
    """The settings that are not the default and that no heading names, as COMPRESS=bf16 NPROC=2; empty for none."""
    usual = {name: field.default for name, field in RunSpec.__dataclass_fields__.items()}
    usual["lr"] = MODELS[spec["model"]].lr if spec["model"] in MODELS else usual["lr"]
    unusual = {n: v for n, v in spec.items() if n not in HEADED and v is not None and v != usual.get(n)}
    return " ".join(f"{NAMES.get(name, name.upper())}={text(value)}" for name, value in unusual.items())


def text(value) -> str:
    """A value as it would be given."""
    return (
        ",".join(map(str, value))
        if isinstance(value, (list, tuple))
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )
