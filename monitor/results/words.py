"""What was run, in the words of `make run`: what tells one run from another, and what is worth naming of one.

A spec may be of another version of syncbed, with strategies and settings that are not known here.
"""

from collections.abc import Callable, Iterable
from typing import Any

from monitor.conditions.links import DEFAULT_CONGESTION
from monitor.results.parts import MOST_LETTERS, Link, Number, Spec
from monitor.results.result import Result
from monitor.text import one_line
from trainer.registry import MODELS, SYNCS
from trainer.spec import RunSpec

NAMES = RunSpec.setting_names()
HEADED = ("sync", "model", "data", "nodes", "batch", "precision")  # what every heading and list names
LINK: dict[str, tuple[str, Callable[[Link], Number | None]]] = {  # word: unit, and the value in it
    "rate": ("mbit", lambda link: link.rate_bits and link.rate_bits / 1e6),
    "delay": ("ms", lambda link: link.delay_ms),
    "jitter": ("ms", lambda link: link.jitter_ms),
    "loss": ("%", lambda link: link.loss_percent),
}


def differences(result: Result, among: list[Result]) -> str:
    """The settings in which a run differs from others among these, in the words of `make run`."""
    values, others = flat(result), [flat(other) for other in among]
    names = [name for name in values if len({str(other.get(name)) for other in others}) > 1]
    if not names:
        names = ["sync", "model", "nodes", "batch"]
    relevant = relevant_settings(values)
    if result.links:
        values["congestion"] = values["congestion"] or DEFAULT_CONGESTION
    words = [(_word(name), text(values[name])) for name in names]
    return " ".join(f"{word}={value}" if value else f"no {word}" for word, value in words if word in relevant)


def flat(result: Result) -> dict[str, Any]:
    """What tells one run from another: the spec, the runtime and its nodes' limits, the data that was really used, and
    where it began.
    """
    place = {"runtime": result.runtime, "data": result.data.key}
    conditions = of_limits(result) | of_links(result) | {"fault": of_faults(result)}
    start = {"from_step": result.resumed_from.step if result.resumed_from else 0}
    return result.spec.values() | place | conditions | start


def of_faults(result: Result) -> str:
    """The run's faults, as FAULT= takes them; empty for none."""
    return "; ".join(record.fault for record in result.faults)


def of_limits(result: Result) -> dict[str, str]:
    """What the run's nodes were held to, by word, as `make run` takes it."""
    limits = result.limits
    return {
        "cpus": _each((limit.cpus for limit in limits), ""),
        "memory": _each((limit.memory_bytes and limit.memory_bytes / 2**20 for limit in limits), "m", ".0f"),
    }


def of_links(result: Result) -> dict[str, str]:
    """What the run's links were asked to be, by word, as `make run` takes it; empty where nothing was asked for."""
    words = {name: _each((value(link) for link in result.links), unit) for name, (unit, value) in LINK.items()}
    controls = [link.congestion or DEFAULT_CONGESTION for link in result.links]  # older results do not name it
    if len(set(controls)) == 1:
        controls = controls[:1]
    is_usual = set(controls) <= {DEFAULT_CONGESTION} and any(words.values())
    return words | {"congestion": "" if is_usual else ",".join(controls)}


def _each(values: Iterable[Number | None], unit: str, form: str = "g") -> str:
    """Of each node, in order, parted by commas; once where all are alike. Nothing and 0 are the same."""
    texts = [f"{value or 0:{form}}{unit}" for value in values]
    if not set(texts) - {f"{0:{form}}{unit}"}:
        return ""
    return texts[0] if len(set(texts)) == 1 else ",".join(texts)


def conditions(result: Result) -> dict[str, str]:
    """Limits and links, by word, of what is not empty."""
    return {name.upper(): text for name, text in (of_limits(result) | of_links(result)).items() if text}


def more(result: Result) -> str:
    """What a list names beside the headings: settings that are not the default, links, faults, unequal limits."""
    words = [unusual_settings(result.spec)]
    for name, value in conditions(result).items():
        if "," in value or name not in ("CPUS", "MEMORY"):
            words.append(f"{name}={value}")
    if faults := of_faults(result):
        words.append(f"FAULT={faults}")
    return " ".join(filter(None, words))


def relevant_settings(values: dict[str, Any]) -> dict[str, str]:
    """Every setting that the run looked at: those of other strategies are left out. `values`: a spec's, or flat()."""
    of_some = {name for strategy in SYNCS.values() for name in strategy.settings}
    strategy = SYNCS.get(values["sync"])
    of_this = strategy.settings if strategy else of_some
    return {
        _word(name): text(value)
        for name, value in values.items()
        if value is not None and (name in of_this or name not in of_some)
    }


def unusual_settings(spec: Spec) -> str:
    """The settings that are not the default and that no heading names, as COMPRESS=bf16 NPROC=2; empty for none."""
    usual = {name: field.default for name, field in RunSpec.__dataclass_fields__.items()}
    if spec.model in MODELS:
        usual["lr"] = MODELS[spec.model].lr
    values = {n: v for n, v in spec.values().items() if n not in HEADED and v is not None and v != usual.get(n)}
    return " ".join(f"{_word(name)}={text(value)}" for name, value in values.items())


def _word(name: str) -> str:
    """What the setting of a spec's field is called."""
    return NAMES.get(name) or one_line(name.upper(), MOST_LETTERS)


def text(value: Any) -> str:
    """A value as it would be given, on one line."""
    if isinstance(value, float):
        return f"{value:g}"
    return one_line(",".join(map(str, value)) if isinstance(value, list | tuple) else str(value), MOST_LETTERS)
