"""What the live page reads: files as they grow, and a Prometheus that is scraped meanwhile."""

import os
import time
from dataclasses import replace

import pytest
from fake_prometheus import CPU, Fake, serving
from ports import free_port
from watched import ZERO, Watched, row, step

from monitor.metrics import prometheus
from monitor.watch.feed import FileRows, ScrapedRows, Tail, rows_of
from trainer.received import ReceivedError


def some(source) -> list:
    """All that it has now, in one list."""
    return [one for part in source.read() for one in part]


def test_lines_come_whole_and_once(tmp_path):
    tail, path = Tail(tmp_path / "events.jsonl"), tmp_path / "events.jsonl"
    assert some(tail) == [], "it is not there yet"
    with path.open("ab", buffering=0) as file:
        file.write(b"one\ntw")
        assert some(tail) == ["one"]
        file.write("o ü".encode()[:-1])
        assert some(tail) == []
        file.write("ü".encode()[-1:] + b"\n\nthree\n")
        assert some(tail) == ["two ü", "", "three"]
        assert some(tail) == []


def test_a_large_file_comes_in_parts(tmp_path):
    (tmp_path / "f").write_bytes(b"x" * 99 + b"\n" + b"y" * (1 << 20) + b"\nz\n")
    parts = list(Tail(tmp_path / "f").read())
    assert len(parts) == 2 and [line[:1] for part in parts for line in part] == ["x", "y", "z"]


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_only_a_plain_file_is_read(tmp_path, kind):
    path = tmp_path / "events.jsonl"
    path.symlink_to("/dev/zero") if kind == "link" else os.mkfifo(path)
    with pytest.raises(ReceivedError):
        list(Tail(path).read())


def test_rows_of_a_local_run_are_those_of_its_file(tmp_path):
    watched = Watched(tmp_path)
    source = rows_of(watched.facts)
    assert isinstance(source, FileRows) and some(source) == []
    watched.use(row("local-0", 1), row("local-1", 1))
    assert some(source) == [row("local-0", 1), row("local-1", 1)]
    with (watched.folder / "metrics.csv").open("ab") as file:
        file.write(b"1800000002.5,local-0,1.5,,nan\n1800000003,local-0,1.")
    assert some(source) == [], "one is not finite, one is not whole"
    source.close()


def test_rows_of_a_cluster_are_what_its_prometheus_has_scraped_since(tmp_path):
    now = time.time()
    samples = {(CPU, "trainer-0"): [(now - 30, 1.0), (now - 20, 2.0)], (CPU, "trainer-9"): [(now - 20, 5.0)]}
    fake = Fake(samples)
    facts = replace(Watched(tmp_path).facts, nodes=["trainer-0", "trainer-1"], began=now - 25)
    with serving(fake) as url:
        source = rows_of(replace(facts, prometheus=url))
        assert isinstance(source, ScrapedRows)
        seen = some(source)
        assert [(one.time, one.node, one.cpu_seconds_total) for one in seen] == [
            (pytest.approx(now - 20), "trainer-0", 2)
        ]
        assert some(source) == [] and len(fake.ranges) == 1, "it is asked every second time"
        samples[CPU, "trainer-1"] = [(now - 4, 7.0)]  # that scrape took its time
        samples[CPU, "trainer-0"].append((now - 1, 3.0))
        assert [(one.node, one.cpu_seconds_total) for one in some(source)] == [("trainer-1", 7), ("trainer-0", 3)]
        some(source)
        assert some(source) == [], "each comes once"


def test_prometheus_is_not_asked_for_all_of_a_long_run(tmp_path):
    fake = Fake({})
    with serving(fake) as url:
        some(ScrapedRows(replace(Watched(tmp_path).facts, began=ZERO - 1e9), url))
    assert fake.ranges[-1][1] - fake.ranges[0][0] == pytest.approx(1800, abs=0.01)


def test_a_prometheus_that_is_away_is_said_and_asked_again(tmp_path):
    port = free_port()
    source = ScrapedRows(replace(Watched(tmp_path).facts, began=time.time() - 5), f"http://127.0.0.1:{port}")
    assert some(source) == []
    assert source.problem.startswith(f"Prometheus at http://127.0.0.1:{port} does not answer (")
    fake = Fake({})
    with serving(fake) as url:
        source._url = url
        some(source), some(source)
    assert source.problem == ""


def test_scrapes_join_pages_and_raise(tmp_path):
    fake = Fake({(CPU, "b"): [(100.0, 1), (1000.0, 2)], (CPU, "a"): [(1000.0, 3)]})
    with serving(fake) as url:
        rows = prometheus.scrapes(url, 0.0, 1100.0)
        fake.broken = 1
        with pytest.raises(prometheus.NotAnswering):
            prometheus.scrapes(url, 0.0, 1.0)
    assert [(one.time, one.node) for one in rows] == [(100, "b"), (1000, "a"), (1000, "b")]
    assert [last - first for first, last in fake.ranges] == [600, 500]


def test_events_are_there_as_soon_as_they_are_said(tmp_path):
    watched = Watched(tmp_path)
    tail = Tail(watched.folder / "events.jsonl")
    watched.say(step(0, 1), step(1, 1))
    assert len(some(tail)) == 2
