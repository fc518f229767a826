"""Rows of metrics.csv: made from scrapes, written whole, summed up."""

import csv
import json
import math
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from agent_scrape import rank, serving

from monitor.metrics import sampling
from monitor.metrics.sampling import HEADER, Row, Sampler, make_row, missing, summarise, write_csv

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    monkeypatch.setattr(sampling, "ANSWER_SECONDS", 60.0)  # on a busy machine an agent is late


class Announcement:
    """The stream on which an agent says its port."""

    def __init__(self, line: str):
        self._line = line

    def readline(self) -> str:
        return self._line


def until(condition):
    """Wait for a condition; pytest's own time limit ends it when it never comes."""
    pause = threading.Event()
    while not condition():
        pause.wait(0.01)


def test_columns_are_the_contract():
    assert ",".join(HEADER) == (
        "time,node,cpu_seconds_total,cpu_throttled_seconds_total,memory_working_set_bytes,memory_usage_bytes,"
        "memory_peak_bytes,network_receive_bytes_total,network_transmit_bytes_total,network_receive_packets_total,"
        "network_transmit_packets_total,training_step,training_loss"
    )


def test_a_row_sums_modes_and_interfaces_and_joins_ranks():
    row = make_row(
        5.0,
        "trainer-1",
        [
            ("syncbed_node_cpu_seconds_total", 1.5),
            ("syncbed_node_cpu_seconds_total", 0.25),
            ("syncbed_node_network_receive_bytes_total", 100),
            ("syncbed_node_network_receive_bytes_total", 23),
            ("syncbed_training_step", 7),
            ("syncbed_training_step", 8),
            ("syncbed_training_loss", 2.0),
            ("syncbed_training_loss", 3.0),
            ("syncbed_node_processes", 4),
            ("up", 1),
        ],
    )
    assert row == Row(
        time=5.0,
        node="trainer-1",
        cpu_seconds_total=1.75,
        network_receive_bytes_total=123,
        training_step=8,
        training_loss=2.5,
    )


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_left_empty(loss):
    assert make_row(1.0, "n", [("syncbed_training_loss", loss)]).training_loss is None


def test_sampler_rows_are_what_the_agent_says(tmp_path):
    with rank(tmp_path), serving("cgroup-v2/container", tmp_path) as port:
        sampler = Sampler(interval_seconds=0.02)
        sampler.watch("local-0", Announcement(json.dumps({"port": port})))
        until(lambda: len(sampler.rows()) >= 3)
        sampler.stop()
        rows = sampler.rows()
    assert [row.time for row in rows] == sorted({row.time for row in rows})
    expected = Row(
        time=rows[0].time,
        node="local-0",
        cpu_seconds_total=pytest.approx(61.482737),
        cpu_throttled_seconds_total=pytest.approx(27.51),
        memory_working_set_bytes=1_007_681_536,
        memory_usage_bytes=1_610_612_736,
        memory_peak_bytes=1_879_048_192,
        network_receive_bytes_total=160_985_621 + 3193 + 100,  # the fixture's agent leaves no interface out
        network_transmit_bytes_total=139_865_475 + 3193 + 300,
        network_receive_packets_total=118_320 + 29 + 2,
        network_transmit_packets_total=97_411 + 29 + 4,
        training_step=17,
        training_loss=2.25,
    )
    assert rows[0] == expected


def test_rows_are_in_the_file_as_soon_as_they_are_taken(tmp_path):
    path = tmp_path / "metrics.csv"
    sampler = Sampler(interval_seconds=0.02)
    sampler.keep(path)
    sampler.keep(path)  # for the second node, and after a restart
    with rank(tmp_path), serving("cgroup-v2/container", tmp_path) as port:
        for name in ("local-0", "local-1"):
            sampler.watch(name, Announcement(json.dumps({"port": port})))
        until(lambda: path.read_text().count("local-0") > 1 and path.read_text().count("local-1") > 1)
        sampler.stop()
    sampler.close()
    header, *kept = path.read_text().splitlines()
    write_csv(path, sampler.rows())
    first, *lines = path.read_text().splitlines()
    assert (header, sorted(kept)) == (first, sorted(lines))


@pytest.mark.parametrize("kind", ["no folder", "a file that is there", "a full disk"])
def test_rows_are_kept_where_no_file_can_be(tmp_path, kind, monkeypatch):
    if kind == "no folder":
        path = tmp_path / "gone" / "metrics.csv"
    elif kind == "a file that is there":
        path = tmp_path / "metrics.csv"
        path.symlink_to("/dev/null")
    else:
        path = tmp_path / "metrics.csv"
        monkeypatch.setattr(sampling, "added_to", lambda path: open("/dev/full", "wb", buffering=0))  # noqa: SIM115, PTH123
    sampler = Sampler(interval_seconds=0.02)
    sampler.keep(path)
    with rank(tmp_path), serving("cgroup-v2/container", tmp_path) as port:
        sampler.watch("local-0", Announcement(json.dumps({"port": port})))
        until(lambda: len(sampler.rows()) >= 2)
        sampler.stop()
    sampler.close()


def test_what_was_counted_since_the_last_scrape_is_seen_at_the_end():
    asked = threading.Event()

    class Counts(BaseHTTPRequestHandler):
        total = 0

        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f"syncbed_node_network_receive_bytes_total {self.total}.0\n".encode())
            asked.set()

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Counts)
    threading.Thread(target=server.serve_forever, args=(0.01,)).start()
    sampler = Sampler(interval_seconds=600)
    sampler.watch("local-0", Announcement(json.dumps({"port": server.server_port})))
    assert asked.wait(60)
    until(sampler.rows)
    Counts.total = 5000
    sampler.stop()
    server.shutdown()
    server.server_close()
    assert [row.network_receive_bytes_total for row in sampler.rows()] == [0, 5000]


def test_sampler_with_a_real_agent():
    command = [sys.executable, "-m", "node.agent", "--port", "0", "--process", str(os.getpid()), "--watch-stdin"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as agent:
        sampler = Sampler(interval_seconds=0.02)
        sampler.watch("local-0", agent.stdout)
        until(lambda: len(sampler.rows()) >= 3)
        sampler.stop()
        agent.stdin.close()
        assert agent.wait(60) == 0
    first, *_, last = sampler.rows()
    assert 0 < first.cpu_seconds_total <= last.cpu_seconds_total
    assert first.memory_working_set_bytes > 2**20
    assert first.cpu_throttled_seconds_total is None


def test_an_agent_that_answers_nonsense_leaves_gaps_and_is_asked_again():
    answers = iter([(500, b"no"), (200, b"{{{"), (500, b"no")])
    asked = []

    class Moody(BaseHTTPRequestHandler):
        def do_GET(self):
            status, body = next(answers, (200, b"syncbed_training_step 1.0\n"))
            asked.append(status)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Moody) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        sampler = Sampler(interval_seconds=0.02)
        sampler.watch("local-0", Announcement(json.dumps({"port": server.server_port})))
        until(lambda: len(sampler.rows()) >= 2)
        sampler.stop()
        server.shutdown()
    assert {row.training_step for row in sampler.rows()} == {1}
    assert asked[:3] == [500, 200, 500]


@pytest.mark.parametrize("line", ["", "not json", "{}", "[]", '{"port": 1}'])
def test_an_agent_that_never_came_up_gives_no_rows(line):
    sampler = Sampler(interval_seconds=0.02)
    sampler.watch("local-0", Announcement(line))
    sampler.stop()
    assert sampler.rows() == []


def test_csv_is_exact_and_leaves_no_part_behind(tmp_path):
    rows = [
        Row(
            time=1700000000.25,
            node="trainer-0",
            cpu_seconds_total=1.23456789,
            memory_usage_bytes=3e9,
            training_step=4.0,
        ),
        Row(time=1700000001.0, node="trainer-0"),
    ]
    write_csv(tmp_path / "metrics.csv", rows)
    header, *lines = (tmp_path / "metrics.csv").read_text().splitlines()
    assert header == ",".join(HEADER)
    assert lines == ["1700000000.25,trainer-0,1.234568,,,3000000000,,,,,,4,", "1700000001,trainer-0,,,,,,,,,,,"]
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.csv"]


def test_csv_of_no_rows_is_a_header(tmp_path):
    write_csv(tmp_path / "metrics.csv", [])
    with (tmp_path / "metrics.csv").open() as file:
        assert list(csv.reader(file)) == [list(HEADER)]


def test_a_csv_that_cannot_be_finished_leaves_the_old_one(tmp_path):
    write_csv(tmp_path / "metrics.csv", [Row(time=1.0, node="a")])
    before = (tmp_path / "metrics.csv").read_bytes()

    def broken():
        yield Row(time=2.0, node="a")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_csv(tmp_path / "metrics.csv", broken())
    assert (tmp_path / "metrics.csv").read_bytes() == before


def rows_of(**columns):
    times = range(len(next(iter(columns.values()))))
    return [Row(time=float(t), node="n", **{name: column[t] for name, column in columns.items()}) for t in times]


def test_summary():
    rows = rows_of(
        cpu_seconds_total=[10.0, 10.5, 12.4, 12.5],
        cpu_throttled_seconds_total=[1.0, 1.0, 1.25, 2.5],
        memory_working_set_bytes=[5, 9, 7, 6],
        network_receive_bytes_total=[100, 200, 400, 1000],
        network_transmit_bytes_total=[7, 7, 7, 7],
    )
    other = [Row(time=1.0, node="other", memory_working_set_bytes=99)]
    assert summarise([*reversed(rows), *other], "n") == {
        "peak_cpu_percent": 190.0,
        "cpu_seconds": 2.5,
        "throttled_seconds": 1.5,
        "peak_memory_bytes": 9,
        "network_received_bytes": 900,
        "network_sent_bytes": 0,
    }


def test_summary_of_nothing_is_nothing():
    for rows in ([], [Row(time=1.0, node="n")], rows_of(cpu_seconds_total=[None, None])):
        assert set(summarise(rows, "n").values()) == {None}


def test_one_row_has_no_growth_and_a_gap_is_bridged():
    assert summarise(rows_of(cpu_seconds_total=[3.0]), "n")["cpu_seconds"] is None
    gap = summarise(rows_of(cpu_seconds_total=[3.0, None, 5.0]), "n")
    assert (gap["cpu_seconds"], gap["peak_cpu_percent"]) == (2.0, 100.0)


def test_a_node_that_was_started_again_counts_from_zero():
    summary = summarise(rows_of(cpu_seconds_total=[50.0, 51.0, 0.5, 1.0]), "n")
    assert (summary["cpu_seconds"], summary["peak_cpu_percent"]) == (2.0, 100.0)


def test_two_scrapes_close_together_make_no_peak():
    rows = [Row(time=t, node="n", cpu_seconds_total=c) for t, c in ((0.0, 0.0), (1.0, 0.5), (1.005, 0.52), (2.0, 1.0))]
    assert summarise(rows, "n")["peak_cpu_percent"] == 50.0


def test_bytes_are_whole_numbers():
    rows = rows_of(network_receive_bytes_total=[1.0, 4.0], memory_working_set_bytes=[10.0, 12.0])
    told = summarise(rows, "n")
    assert {k: type(told[k]) for k in ("network_received_bytes", "peak_memory_bytes")} == {
        "network_received_bytes": int,
        "peak_memory_bytes": int,
    }


def test_seconds_without_rows_are_told_by_node():
    def at(node, *times):
        return [Row(time=100.0 + t, node=node) for t in times]

    rows = [
        *at("whole", *range(21)),
        *at("late", *(t + 0.9 for t in range(20) if t not in (7, 11))),
        *at("hole", *range(5), *range(15, 21)),
        *at("no end", *range(9)),
        *at("no start", *range(12, 21)),
        *at("other", 3),
    ]
    nodes = ["whole", "late", "hole", "no end", "no start", "none"]
    assert missing(rows, nodes, 100.0, 120.0) == {"hole": 10.0, "no end": 11.0, "no start": 11.0, "none": 19.0}
    assert missing(at("whole", -1, 4), ["whole"], 100.0, 103.0) == {}  # too short to lack any
