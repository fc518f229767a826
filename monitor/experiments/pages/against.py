"""A figure against the values of one setting, a line per strategy: where do they cross, what does a change cost?"""

from collections.abc import Iterable, Mapping

from monitor.conditions.links import link
from monitor.experiments import figures
from monitor.experiments.cells import Cell
from monitor.experiments.grouping import Group
from monitor.experiments.pages.sweep_page import RATES
from monitor.report.page import Item
from monitor.report.plots import Bars, Lines, Series
from monitor.results.table import Table, Value
from monitor.statistics.estimate import Estimate, mean, ratio


def against(pairs: list[tuple[Cell, Group]], name: str, by: str, what: figures.RateOf) -> list[Item]:
    """Of each group of runs, one of figures.RATES at each value of the setting `by`, and its ratio to the first value.

    Curves on logarithmic axes where the values are numbers or rates; bars of the ratios where they are not.
    """
    rates: dict[str, dict[str, list[float]]] = {}
    for cell, group in pairs:
        if by in cell.words:
            rates.setdefault(cell.group, {})[cell.words[by]] = group.each(figures.RATES[what])
    values = list(dict.fromkeys(value for of_group in rates.values() for value in of_group))
    if not values:
        return []
    means = {label: {v: mean(each) for v, each in of_group.items() if each} for label, of_group in rates.items()}
    ratios = {label: _ratios(of_group, values) for label, of_group in rates.items()}
    headings, title = ["", *(f"{by}={v}" for v in values)], RATES[what].capitalize()
    items: list[Item] = [
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
    series = [_series(label, of_group, values, x) for label, of_group in means.items() if of_group]
    if not series:
        return items
    return [*items, Lines(f"{name}-plot", f"{title} against {by}", f"{by}{unit}", "samples/s", series, log=True)]


def _ratios(rates: dict[str, list[float]], values: list[str]) -> dict[str, Estimate | None]:
    first = rates.get(values[0])
    return {v: ratio(rates[v], first) if first and rates.get(v) else None for v in values}


def _rows(estimates: Mapping[str, Mapping[str, Estimate | None]], values: list[str]) -> list[list[Value]]:
    return [[label, *(of_group.get(v) for v in values)] for label, of_group in estimates.items()]


def _series(label: str, estimates: dict[str, Estimate], values: list[str], x: list[float]) -> Series:
    points = [(at, estimates[v]) for at, v in sorted(zip(x, values, strict=True)) if v in estimates]
    means = [estimate for _, estimate in points]
    return Series(
        label, [at for at, _ in points], [e.value for e in means], [e.low for e in means], [e.high for e in means]
    )


def _bars(name: str, title: str, y_label: str, ratios: dict[str, dict[str, Estimate | None]], value: str) -> Bars:
    heights = {label: estimate.value for label, of_group in ratios.items() if (estimate := of_group.get(value))}
    return Bars(name, title, y_label, list(heights), {y_label: list(heights.values())})


def _numbers(by: str, values: Iterable[str]) -> list[float] | None:
    """The values on an axis: rates in Mbit/s, numbers as they are, None where one is neither."""
    try:
        return [_megabits(v) if by == "RATE" else float(v) for v in values]
    except ValueError:
        return None


def _megabits(rate: str) -> float:
    """RATE= in Mbit/s. Raises ValueError."""
    shape = link({"RATE": rate})
    if shape is None or shape.rate_bits is None:
        raise ValueError(rate)
    return shape.rate_bits / 1e6
