"""A figure against the values of one setting, a line per strategy: where do they cross, what does a change cost?"""

from collections.abc import Iterable

from monitor.conditions.links import link
from monitor.experiments import figures
from monitor.experiments.cells import Cell
from monitor.experiments.grouping import Group
from monitor.experiments.pages.sweep_page import RATES
from monitor.report.plots import Bars, Lines, Series
from monitor.results.table import Table
from monitor.statistics.estimate import Estimate, mean, ratio


def against(pairs: list[tuple[Cell, Group]], name: str, by: str, what: str) -> list:
    """Of each group of runs, one of figures.RATES at each value of the setting `by`, and its ratio to the first value.

    Curves on logarithmic axes where the values are numbers or rates; bars of the ratios where they are not.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for cell, group in pairs:
        if by in cell.words:
            found.setdefault(cell.group, {})[cell.words[by]] = group.each(figures.RATES[what])
    values = list(dict.fromkeys(value for own in found.values() for value in own))
    if not values:
        return []
    means = {label: {v: mean(each) for v, each in own.items() if each} for label, own in found.items()}
    ratios = {label: _ratios(own, values) for label, own in found.items()}
    headings, title = ["", *(f"{by}={v}" for v in values)], RATES[what].capitalize()
    items = [
        Table(name, title, headings, _rows(means, values), [None, *[1] * len(values)]),
        Table(
            f"{name}-ratios",
            f"{title}: ratio to {by}={values[0]}",
            headings,
            _rows(ratios, values),
            [None, *[2] * len(values)],
        ),
    ]
    if len(values) < 2:
        return items[:1]
    x = _numbers(by, values)
    if x is None:
        return items + [
            _bars(f"{name}-{i}", f"{title} at {by}={v}", f"ratio to {by}={values[0]}", ratios, v)
            for i, v in enumerate(values[1:], 1)
        ]
    unit = " (Mbit/s)" if by == "RATE" else ""
    series = [_series(label, own, values, x) for label, own in means.items() if own]
    if not series:
        return items
    return [*items, Lines(f"{name}-plot", f"{title} against {by}", f"{by}{unit}", "samples/s", series, log=True)]


def _ratios(own: dict[str, list[float]], values: list[str]) -> dict[str, Estimate | None]:
    first = own.get(values[0])
    return {v: ratio(own[v], first) if first and own.get(v) else None for v in values}


def _rows(found: dict[str, dict], values: list[str]) -> list[list]:
    return [[label, *(own.get(v) for v in values)] for label, own in found.items()]


def _series(label: str, own: dict[str, Estimate], values: list[str], x: list[float]) -> Series:
    there = [(at, own[v]) for at, v in sorted(zip(x, values, strict=True)) if v in own]
    at, means = zip(*there, strict=True) if there else ((), ())
    return Series(label, list(at), [e.value for e in means], [e.low for e in means], [e.high for e in means])


def _bars(name: str, title: str, y_label: str, ratios: dict[str, dict], value: str) -> Bars:
    known = {label: own[value].value for label, own in ratios.items() if own.get(value)}
    return Bars(name, title, y_label, list(known), {y_label: list(known.values())})


def _numbers(by: str, values: Iterable[str]) -> list[float] | None:
    """The values on an axis: rates in Mbit/s, numbers as they are, None where one is neither."""
    try:
        return [link({by: v}).facts()["rate_bits"] / 1e6 if by == "RATE" else float(v) for v in values]
    except (ValueError, AttributeError):
        return None
