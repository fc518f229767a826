"""A figure against a setting: the numbers are those of the runs, at the values they ran with."""

from dataclasses import replace

import pytest
from report_cases import write_run

from monitor.experiments.cells import Cell
from monitor.experiments.figures import samples_per_second
from monitor.experiments.grouping import Group
from monitor.experiments.pages.against import against
from monitor.report.plots import Bars, Lines, svg
from monitor.results.result import Result
from monitor.results.store import load


def pairs(folder, by: str, *values: str):
    """A run of one and of two nodes (6 images of each a step of 0.6 s) at each value."""
    made = []
    for nodes in (1, 2):
        for i, value in enumerate(values):
            name = f"run-{nodes}-{i}"
            write_run(folder / name, nodes=nodes)
            group = Group(f"{nodes}n", (load(name, folder),), (folder / name,))
            made.append((Cell({"NODES": str(nodes), by: value}, 1, f"{nodes}n"), group))
    return made


def test_rates_are_an_axis_in_order_whatever_their_unit(tmp_path):
    found = pairs(tmp_path, "RATE", "1gbit", "100mbit")
    table, ratios, plot = against(found, "a", "RATE", "step")
    alone, both = (samples_per_second(found[i][1].results[0]) for i in (0, 2))
    assert both == pytest.approx(2 * alone) and alone > 0
    assert table.headings == ["", "RATE=1gbit", "RATE=100mbit"]
    assert [[label, *(e.value for e in row)] for label, *row in table.rows] == [
        ["1n", alone, alone],
        ["2n", both, both],
    ]
    assert [[e.value for e in row] for _, *row in ratios.rows] == [pytest.approx([1, 1])] * 2
    assert isinstance(plot, Lines) and plot.log
    assert [(s.label, s.x, s.y) for s in plot.series] == [
        ("1n", [100, 1000], [alone] * 2),
        ("2n", [100, 1000], [both] * 2),
    ]
    assert "10<" not in svg(plot) and "nan" not in svg(plot)


def test_values_that_are_no_numbers_are_bars_of_what_the_change_costs(tmp_path):
    found = pairs(tmp_path, "CPUS", "0.5", "0.5,0.1")
    cell, group = found[1]
    slow = group.results[0].document()
    for rank in slow["ranks"]:
        rank["step_seconds"]["mean"] *= 4
    found[1] = (cell, replace(group, results=(Result.model_validate(slow),)))
    _, ratios, bars = against(found, "a", "CPUS", "step")
    assert [round(row[2].value, 6) for row in ratios.rows] == [0.25, 1]
    assert isinstance(bars, Bars) and bars.labels == ["1n", "2n"]
    assert list(bars.parts.values()) == [pytest.approx([0.25, 1])]


def test_what_has_not_finished_is_a_gap(tmp_path):
    found = pairs(tmp_path, "RATE", "10mbit", "100mbit")
    found[0] = (found[0][0], Group("1n", (), ()))
    table, ratios, plot = against(found, "a", "RATE", "step")
    assert table.rows[0][1] is None and table.rows[0][2].value > 0
    assert ratios.rows[0][1:] == [None, None]
    assert plot.series[0].x == [100]
    assert against(found, "a", "LOSS", "step") == []
