"""Reports: what is plotted and told is what the run's files say; and a page of anything a run can leave."""

import csv
import io
import json
import os
import re
import warnings
from html.parser import HTMLParser
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from report_cases import ZERO, begun, write_run

from monitor.errors import UserError
from monitor.metrics.rates import rates
from monitor.metrics.sampling import Row
from monitor.report import run_page
from monitor.report.command import command, write
from monitor.report.load import load
from monitor.report.page import Page, Section, html, write_page
from monitor.report.plots import Bars, Lines, Plot, Series, svg
from monitor.results.result import Result
from monitor.results.table import Table, text
from monitor.statistics.estimate import Estimate


@pytest.fixture
def run(tmp_path):
    return load(write_run(tmp_path / "runs" / "one"))


def plots(run) -> dict:
    return run_page.run_page(run).by_name(Plot)


class TestNumbers:
    def test_loss_and_accuracy_of_the_joined_batch(self, run):
        loss, accuracy = plots(run)["loss-by-steps"].series[0], plots(run)["accuracy-by-seconds"].series[0]
        assert loss.x == [1, 2, 3, 4]
        assert loss.y == pytest.approx([3.0, 2.5, 2.0, 1.5])  # the mean of two ranks that are 1 apart
        assert loss.y[-1] == run.result.train_loss
        assert accuracy.x == pytest.approx([0.6, 1.2, 1.8, 2.4], abs=1e-3)
        assert accuracy.y == pytest.approx([0.375] * 4)

    def test_phases_add_up_to_the_step(self, run):
        bars = plots(run)["phases"]
        assert bars.labels == ["rank 0", "rank 1"]
        assert [sum(heights) for heights in zip(*bars.parts.values(), strict=True)] == pytest.approx([0.6, 0.6])
        assert bars.parts["exposed sync"] == [0.2, 0.2]
        assert list(bars.parts) == ["data", "forward", "backward", "exposed sync", "optimizer"]  # as in a step

    @pytest.mark.parametrize(("per_epoch", "shown"), [(2, 2), (4, 4), (5, None)])
    def test_epochs_stand_above_steps_once_one_is_through(self, tmp_path, per_epoch, shown):
        folder = write_run(tmp_path / "runs" / "r")
        ready = {"event": "ready", "rank": 0, "time": ZERO, "steps_per_epoch": per_epoch, "versions": {}}
        ready |= dict.fromkeys(("parameters", "gradient_bytes", "train_samples", "test_samples", "steps"), 1)
        with (folder / "events.jsonl").open("a") as file:
            file.write(json.dumps(ready | {"bf16_hint": False}) + "\n")
        for name in ("loss", "accuracy"):
            assert plots(load(folder))[f"{name}-by-steps"].per_epoch == shown
            assert plots(load(folder))[f"{name}-by-seconds"].per_epoch is None

    def test_rates_are_growth_per_second_and_a_hole_is_a_hole(self, run):
        whole, holed = plots(run)["node-cpu"].series
        assert whole.x == list(range(-1, 9))
        assert whole.y == pytest.approx([50.0] * 10)
        assert holed.y == pytest.approx([50.0] * 5 + [None, 50.0])  # 3 to 7: four seconds that nobody saw
        assert {tuple(s.y[:3]) for s in plots(run)["node-received"].series} == {(2.0, 2.0, 2.0)}
        assert plots(run)["node-packets-sent"].series[0].y[0] == 20
        memory = plots(run)["node-memory"].series[1]
        assert memory.y == pytest.approx([101.0] * 6 + [None] + [101.0] * 2)

    def test_two_scrapes_at_once_are_no_peak(self):
        """Counters move in ticks of 10 ms: over 5 ms one tick would read as 200 %."""
        times = (0.0, 1.0, 1.005, 2.0)
        rows = [Row(time=t, node="n", cpu_seconds_total=c) for t, c in zip(times, (0, 0.5, 0.51, 1.0), strict=True)]
        assert rates(rows, "cpu_seconds_total", 100) == ([1.0, 2.0], pytest.approx([50, 50]))

    def test_a_node_that_was_started_again_does_not_run_backwards(self, run):
        rows = [run.rows[i] for i in range(0, 6, 2)]
        fallen = [rows[0], Row(time=ZERO, node="trainer-0", cpu_seconds_total=1.0)]
        assert rates(fallen, "cpu_seconds_total", 100)[1] == [None]

    def test_phases_of_the_run_are_marked(self, run):
        spans = plots(run)["node-cpu"].spans
        assert [(s.label, s.start, s.end) for s in spans] == [
            ("start-up", -2, 0),
            ("training", 0, pytest.approx(2.4, abs=1e-3)),
            ("evaluation", pytest.approx(2.4, abs=1e-3), 8),
        ]

    def test_tables_hold_what_the_result_says(self, run):
        tables = run_page.run_page(run).by_name(Table)
        assert dict(tables["outcome"].rows)["test accuracy"] == "83.3 %"
        assert dict(tables["outcome"].rows)["distinct training images seen"] == "48 of 100"
        mean = dict(zip(tables["ranks"].headings, tables["ranks"].rows[-1], strict=True))
        assert (mean["s/step"], mean["peak CPU %"], mean["sent MB/step"]) == (pytest.approx(0.6), 50.5, 1.0)
        assert tables["classes"].rows[0] == ["<script>", 1.0, pytest.approx(2 / 3), 0.8, 3]
        assert tables["confusion-matrix"].rows[1] == ["b", 0, 3]
        assert dict(tables["settings"].rows)["BATCH"] == "12"

    def test_scores_on_the_way_stand_beside_training(self, tmp_path):
        scores = [{"step": 2, "updates": None, "loss": 2.2, "accuracy": 0.6, "seconds": 3.5}]
        page = run_page.run_page(load(write_run(tmp_path / "runs" / "r", evaluations=scores)))
        by_steps, by_seconds = (page.by_name(Plot)[f"loss-by-{by}"].series[1] for by in ("steps", "seconds"))
        assert (by_steps.x, by_steps.y) == ([2], [2.2])
        assert by_seconds.x == [1.5]  # 2 s of start-up
        assert page.by_name(Table)["evaluations"].rows == [[2, 3.5, 2.2, 0.6]]
        assert page.by_name(Table)["evaluations"].texts() == [["2", "3.5", "2.2000", "60.0 %"]]

    def test_staleness_of_each_rank(self, tmp_path):
        folder = write_run(tmp_path / "runs" / "r")
        result = json.loads((folder / "result.json").read_text())
        result["ranks"][0]["staleness"] = {"mean": 1, "max": 2, "histogram": {"0": 3, "2": 1}}
        (folder / "result.json").write_text(json.dumps(result))
        assert plots(load(folder))["staleness"].parts == {"rank 0": [3, 0, 1]}

    def test_a_long_curve_is_thinned_and_keeps_its_ends(self):
        x, y = run_page.thinned(list(range(100_001)), list(range(100_001)))
        assert (len(x) <= 1002, x == y, x[0], x[-1]) == (True, True, 0, 100_000)


class TestFiles:
    def test_everything_is_written(self, run):
        made = write(run.folder)
        assert made == run.folder / "report.html"
        names = {path.name for path in (run.folder / "report").iterdir()}
        page = run_page.run_page(run)
        assert names == {f"{n}.csv" for n in page.by_name(Table)} | {f"{n}.svg" for n in page.by_name(Plot)}
        read = list(csv.reader((run.folder / "report" / "classes.csv").open()))
        assert read[1][:2] == ["<script>", "1.0"]
        assert not [p for p in run.folder.iterdir() if p.name.endswith(".part")]

    def test_the_same_run_gives_the_same_bytes(self, run):
        write(run.folder)
        first = {p.name: p.read_bytes() for p in [*(run.folder / "report").iterdir(), run.folder / "report.html"]}
        write(run.folder)
        assert first == {
            p.name: p.read_bytes() for p in [*(run.folder / "report").iterdir(), run.folder / "report.html"]
        }

    def test_plots_are_whole_svg_in_the_pages_ink(self, run):
        for name, plot in plots(run).items():
            root = ElementTree.fromstring(svg(plot))
            assert root.get("aria-label") == plot.title
            text = svg(plot)
            assert "#010203" not in text
            assert "currentColor" in text, name

    def test_a_plot_by_itself_is_light_or_dark_as_its_viewer(self, run):
        write(run.folder)
        for path in (run.folder / "report").glob("*.svg"):
            text = path.read_text()
            assert "prefers-color-scheme: dark" in text
            assert "prefers-color-scheme" not in svg(plots(run)[path.stem])  # in a page it is the page's

    def test_no_id_of_the_page_is_there_twice(self, run):
        ids = re.findall(r' id="([^"]+)"', html(run_page.run_page(run)))
        assert ids
        assert len(ids) == len(set(ids))

    def test_the_page_refers_to_nothing_outside_and_runs_nothing(self, run):
        text = html(run_page.run_page(run))
        seen = Seen()
        seen.feed(text)
        assert "script" not in seen.tags
        assert all(value.startswith(("data:", "#")) for value in seen.references)
        assert not re.search(r"@import|url\((?!#)", text)
        assert "<b>up</b>" not in text
        assert "made &lt;b&gt;up&lt;/b&gt;" in text

    def test_markdown_shows_tables_and_names_plots(self, run):
        write(run.folder)
        text = (run.folder / "report.md").read_text()
        assert "| &lt;script&gt; | 1.000 | 0.667 | 0.800 | 3 |" in text
        for shown in re.findall(r"\]\((\S+?\.svg)\)", text):
            assert (run.folder / shown).exists()
        assert text.count(".svg)") == len(plots(run))


class Seen(HTMLParser):
    """The tags of a page and whatever they refer to."""

    def __init__(self):
        super().__init__()
        self.tags, self.references = set(), []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.references += [v for n, v in attrs if n in ("src", "href", "xlink:href", "action", "data", "poster")]


class TestAnythingARunCanLeave:
    def test_one_that_failed_early(self, tmp_path):
        error = {
            "kind": "killed",
            "message": "rank 1 was | killed",
            "rank": 1,
            "last_lines": ["<x>", "y"],
            "traceback": "",
        }
        folder = write_run(tmp_path / "runs" / "r", status="failed", error=error, ranks=[], per_class=None, seconds={})
        (folder / "events.jsonl").write_text("")
        (folder / "metrics.csv").unlink()
        write(folder)
        text = (folder / "report.html").read_text()
        assert "rank 1 was | killed" in text
        assert "&lt;x&gt;" in text

    def test_a_loss_that_is_not_finite_is_a_gap(self, tmp_path):
        folder = write_run(tmp_path / "runs" / "r")
        lines = (folder / "events.jsonl").read_text().replace('"loss": 2.0', '"loss": null')
        (folder / "events.jsonl").write_text(lines)
        assert None in plots(load(folder))["loss-by-steps"].series[0].y
        write(folder)

    @pytest.mark.parametrize(("nodes", "steps"), [(1, 1), (16, 2)])
    def test_one_step_and_sixteen_ranks(self, tmp_path, nodes, steps):
        folder = write_run(tmp_path / "runs" / "r", nodes=nodes, steps=steps)
        assert len(plots(load(folder))["phases"].labels) == nodes
        write(folder)

    @pytest.mark.parametrize("line", ["nan,trainer-0,1", "1e999,trainer-0,1", f"{ZERO},trainer-0,inf"])
    def test_rows_that_are_not_finite_are_left_out(self, run, line):
        with (run.folder / "metrics.csv").open("a") as file:
            file.write(line + "\n")
        assert load(run.folder).rows == run.rows

    def test_steps_without_a_sample_are_one_line(self, run):
        path = run.folder / "events.jsonl"
        path.write_text(path.read_text().replace('"samples": 6', '"samples": 0'))
        with pytest.raises(UserError, match="run one: "):
            write(run.folder)

    @pytest.mark.parametrize(("pid", "says"), [(os.getpid(), "running"), (0, "failed")], ids=["lives", "gone"])
    def test_one_that_goes_on_or_whose_orchestrator_was_killed(self, tmp_path, monkeypatch, pid, says):
        monkeypatch.setattr("monitor.results.store.psutil.pid_exists", bool)
        folder = write_run(tmp_path / "runs" / "r")
        whole = json.loads((folder / "result.json").read_text())
        begun = {
            key: whole[key]
            for key in ("schema", "id", "runtime", "spec", "data", "host", "error", "limits", "links", "faults")
        }
        begun |= {"status": "running", "resumed_from": None, "orchestrator_pid": pid}
        (folder / "result.json").write_text(json.dumps(begun))
        page = run_page.run_page(load(folder))
        assert page.lead[0].endswith(f": {says}")
        assert page.by_name(Plot)["loss-by-steps"].series[0].y == pytest.approx([3.0, 2.5, 2.0, 1.5])
        write(folder)

    @pytest.mark.parametrize(
        "name", ["$\\frac$", "a$b$c", "_x", "a\x00\x1b\x0bb", "a\ud800", "a\nb", "", "x" * 300, "猫 \U0001f408"]
    )
    def test_classes_of_any_name(self, tmp_path, name):
        folder = write_run(tmp_path / "runs" / "r", classes=[name, "b"])
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # none may reach the user's terminal
            write(folder)
        root = ElementTree.parse(folder / "report" / "confusion.svg").getroot()
        texts = [text for text in root.iter("{http://www.w3.org/2000/svg}text") if "".join(text.itertext()) == "b"]
        assert len(texts) == 2

    def test_files_that_were_cut_short(self, run):
        for name in ("events.jsonl", "metrics.csv"):
            text = (run.folder / name).read_text()
            (run.folder / name).write_text(text[: len(text) - 9])
        again = load(run.folder)
        assert (len(again.trained), len(again.steps[1])) == (1, 4)
        write(run.folder)

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("{", "run one: result.json cannot be read"),
            ('{"schema": 99}', "run one: result schema 99 is newer"),
            ('{"schema": 1, "status": "finished"}', "run one: its result.json is not one that syncbed wrote"),
        ],
    )
    def test_no_result_is_one_line(self, run, text, says):
        (run.folder / "result.json").write_text(text)
        with pytest.raises(UserError) as error:
            command({"RUNS_DIR": str(run.folder.parent)}, SimpleNamespace(run="one"))
        assert str(error.value).startswith(says)
        assert "\n" not in str(error.value)

    def test_no_such_run(self, run):
        with pytest.raises(UserError, match=r"run nobody: not found in .* \(newest: one\)"):
            command({"RUNS_DIR": str(run.folder.parent)}, SimpleNamespace(run="nobody"))


def test_two_tables_of_one_name_would_share_a_file(tmp_path):
    table = Table("t", "T", ["a"], [[1]])
    with pytest.raises(ValueError, match="two of one name"):
        write_page(tmp_path, "x", Page("p", [], [Section("s", [table, table])]))


def test_axes_of_quantities_start_at_nothing():
    line = Lines("x", "t", "x", "y", [Series("a", [1, 2], [1000.0, 1001.0])])
    bars = Bars("b", "t", "y", ["one"], {"p": [5.0]})
    for plot in (line, bars):
        labels = re.findall(r">(?:<!-- )?(\d+(?:\.\d+)?)(?: -->)?<", svg(plot))
        assert "0" in labels or "0.0" in labels


@pytest.mark.parametrize(("labels", "lying"), [(4, False), (16, True)])
def test_labels_of_bars_do_not_overlap(labels, lying):
    text = svg(Bars("b", "t", "seconds", [f"rank {i}" for i in range(labels)], {"p": [1.0] * labels}))
    places = [
        re.search(rf'<text [^>]*? x="([\d.]+)" y="([\d.]+)"[^>]*>rank {i}<', text).groups() for i in range(labels)
    ]
    x, y = (len(set(along)) for along in zip(*places, strict=True))
    assert (x, y) == ((1, labels) if lying else (labels, 1))


def test_a_table_knows_its_numbers():
    table = Table(
        "t",
        "T",
        ["a", "b", "c", "d"],
        [["x", 1, None, Estimate(1.25, 1.0, 1.5, 2)], ["y", 2, None, 3.0]],
        [None, None, None, 1],
    )
    assert table.numeric == [False, True, False, True]
    assert table.texts()[0] == ["x", "1", "-", "1.2 [1.0, 1.5]"]
    assert list(csv.reader(io.StringIO(table.csv()))) == [
        ["a", "b", "c", "d", "d low", "d high"],
        ["x", "1", "", "1.25", "1.0", "1.5"],
        ["y", "2", "", "3.0", "", ""],
    ]


def test_small_figures_are_not_shown_as_nothing():
    assert [text(v, 2) for v in (0.0, 0.00002, 0.001, 0.0042, 0.006, 0.03, -0.002, None)] == [
        *("0.00", "0.00", "0.001", "0.004", "0.01", "0.03", "-0.002", "-"),
    ]


def result(**changes) -> Result:
    return Result.model_validate(begun("x", **changes))


def test_limits_and_links_are_on_the_page():
    limits = [{"cpus": cpus, "memory_bytes": 2**30} for cpus in (0.5, 0.2)]
    links = [{"rate_bits": 5_000_000, "delay_ms": 0, "jitter_ms": 0, "loss_percent": 0}] * 2
    links[0] = links[0] | {"measured": {"rate_bits": 4_900_000, "round_trip_ms": 0.5}}
    (table,) = run_page.conditions(result(limits=limits, links=links))
    assert table.headings == ["node", "cores", "MiB", "Mbit/s", "measured Mbit/s", "round trip ms"]
    assert table.rows == [["0", 0.5, 1024, 5, 4.9, 0.5], ["1", 0.2, 1024, 5, None, None]]
    (table,) = run_page.conditions(result(limits=limits, links=[]))
    assert table.headings == ["node", "cores", "MiB"]
    none = [{"cpus": None, "memory_bytes": None}]
    assert run_page.conditions(result(limits=none)) == run_page.conditions(result(limits=[])) == []
