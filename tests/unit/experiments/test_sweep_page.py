"""Pages of sweeps and reports: their numbers are those of the runs, and every kind of table is there."""

import json
from dataclasses import replace

import pytest
from report_cases import write_run

from monitor.experiments import grouping, preset, reproduce
from monitor.experiments.cells import Cell
from monitor.experiments.pages.preset_page import reproduced_page
from monitor.experiments.pages.sweep_page import sweep_page
from monitor.experiments.sweep import Sweep, Try
from monitor.report.page import html, write_page
from monitor.report.plots import Plot
from monitor.results.table import Table

TOML = """
title = "A report"
about = "about it"
[scale.quick]
note = "less of it"
repeats = 1
[[runs]]
name = "one"
words = { SYNC = "ddp", NODES = "1" }
[[runs]]
name = "two"
words = { SYNC = "ddp", NODES = "2" }
[published]
what = "step"
values = { "one" = 2.0, "two" = 1.0 }
[[claims]]
text = "two <b>beat</b> one"
test = "faster"
of = ["two", "one"]
"""
OPTIONS = {"against": 'by = "NODES"\n'}  # of kinds of table that need some


def cells(*nodes: int) -> list[Cell]:
    return [Cell({"SYNC": "ddp", "NODES": str(n)}, 1) for n in nodes]


@pytest.fixture
def job(tmp_path) -> Sweep:
    """One, two and four nodes, the last of which failed; a step takes 0.6 s whatever the nodes, on 6 images each."""
    for nodes in (1, 2):
        write_run(tmp_path / "s" / f"run-{nodes}", nodes=nodes)
    tries = [Try(0, 1, "run-1", 9.0), Try(1, 1, "run-2", 8.0), Try(2, 1, None, 1.0, "the <engine> went away")]
    return Sweep(tmp_path / "s", {"NODES": "1,2,4"}, cells(1, 2, 4), ["a note"], tries)


def page_of(job):
    return sweep_page(job, grouping.cell_groups(job))


def test_a_sweeps_page(job):
    page = page_of(job)
    assert page.lead[:2] == ["make sweep NODES=1,2,4", "2 of 3 runs finished, 1 failed."]
    assert page.lead[2].startswith("RUNTIME=docker: ")
    assert page.lead[3:] == ["a note"]
    rows = {row[0]: dict(zip(page.by_name(Table)["compare"].headings, row, strict=True)) for row in
            page.by_name(Table)["compare"].rows}  # fmt: skip
    assert rows["NODES=2"]["s/step"].value == pytest.approx(0.6)
    assert rows["NODES=2"]["speed-up"].value == pytest.approx(2)
    assert rows["NODES=2"]["efficiency"] == pytest.approx(1)
    assert rows["NODES=4"]["runs"] == "0, 1 failed"
    assert page.by_name(Table)["failed"].rows == [["NODES=4", 1, "the <engine> went away"]]
    assert [row[2:] for row in page.by_name(Table)["runs"].rows] == [
        ["finished", "run-1", 9.0],
        ["finished", "run-2", 8.0],
        ["failed", None, 1.0],
    ]
    assert "<engine>" not in html(page)


def test_speed_up_is_drawn_over_workers_beside_the_ideal(job):
    for folder in ("run-1", "run-2"):  # strong scaling: the same batch on one and on two
        path = job.folder / folder / "result.json"
        told = json.loads(path.read_text())
        told["spec"]["batch"] = 12
        path.write_text(json.dumps(told))
    ideal, line = page_of(job).by_name(Plot)["speed-up-plot"].series
    assert (ideal.x, ideal.y) == ([1, 2], [1, 2])
    assert (line.label, line.x) == ("ddp cnn3 batch 12", [1, 2])
    assert line.y == pytest.approx([1, 1])


def test_phases_of_a_step_side_by_side(job):
    bars = page_of(job).by_name(Plot)["compare-steps"]
    assert bars.labels == ["NODES=1", "NODES=2"]
    assert [sum(parts) for parts in zip(*bars.parts.values(), strict=True)] == pytest.approx([0.6, 0.6])


@pytest.fixture
def made(tmp_path, job):
    (tmp_path / "p.toml").write_text(
        TOML + "".join(f'[[tables]]\nkind = "{k}"\n{OPTIONS.get(k, "")}' for k in preset.KINDS)
    )
    wanted = preset.read(str(tmp_path / "p.toml"), "quick")
    named = [replace(cell, group=name) for cell, name in zip(job.cells, ("one", "two"), strict=False)]
    whole = Sweep(job.folder, {}, named, job.notes, job.tries[:2])
    return reproduce.judge(wanted, whole)


def test_every_kind_of_table_of_a_report(made, tmp_path):
    page = reproduced_page(made)
    tables = page.by_name(Table)
    assert tables["claims"].rows[0][:2] == ["two <b>beat</b> one", "cannot be told here"]
    assert tables["published"].rows == [["one", 1.0, 1.0], ["two", 0.5, pytest.approx(1.0)]]
    kinds = {name.rsplit("-", 1)[0] for name in tables if name[-1].isdigit()}
    assert {"compare", "losses", "resources", "competition", "speed_up"} <= kinds
    number = {kind: i + 1 for i, kind in enumerate(preset.KINDS)}
    resources = tables[f"resources-{number['resources']}"]
    assert resources.rows[1] == [2, 12, 101_000_000, 50.0, 20_000_000, 10_000_000]
    competition = tables[f"competition-{number['competition']}"]
    assert competition.rows[-1] == [1, 1.25, 5 / 6, 0.01, pytest.approx(2.4)]
    assert competition.texts()[-1] == ["1", "1.2500", "83.3 %", "0.0100", "2.4"]
    losses = tables[f"losses-{number['losses']}"]
    assert [row[:2] for row in losses.rows] == [["one", 1], ["one", 4], ["two", 1], ["two", 4]]
    assert losses.rows[3][3] == pytest.approx(1.5)
    assert all(table.texts()[-1][-1].endswith(" %") for table in (losses, tables[f"speed_up-{number['speed_up']}"]))
    nodes = tables[f"nodes-{number['nodes']}-2"]
    assert nodes.rows[-1][1] == "mean of the workers"
    curve = page.by_name(Plot)[f"curves-{number['curves']}-loss"].series[1]
    assert curve.x == pytest.approx([step / 8 for step in (1, 2, 3, 4)])  # 100 images in batches of 12
    assert tables[f"against-{number['against']}"].headings == ["", "NODES=1", "NODES=2"]
    assert f"utilisation-{number['utilisation']}-2-cpu" in page.by_name(Plot)
    write_page(tmp_path, "report", page)
    assert "<b>beat</b>" not in (tmp_path / "report.html").read_text()


def test_a_report_of_which_nothing_finished_is_a_page_too(made):
    empty = replace(made, groups={name: replace(g, results=(), folders=()) for name, g in made.groups.items()})
    empty.sweep.tries.clear()
    page = reproduced_page(empty)
    assert page.lead[1] == "0 of 2 runs finished, 0 failed."
    html(page)
