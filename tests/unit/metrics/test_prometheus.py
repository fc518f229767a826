"""Reading a run's window back, against a server that answers as Prometheus does, and a real one if it is here."""

import json
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from fake_prometheus import CPU, Fake, serving
from ports import free_port
from promql import promtool

from monitor.metrics import prometheus

ROOT = Path(__file__).resolve().parents[3]
CONFIG = ROOT / "images/prometheus/prometheus.yml"


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch):
    monkeypatch.setattr(prometheus, "_RETRY_SECONDS", 0.01)


def read(fake, start, end, **options):
    """(rows, warnings)"""
    warnings = []
    with serving(fake) as url:
        return prometheus.window(url, start, end, warn=warnings.append, **options), warnings


STEP = "syncbed_training_step"


def test_rows_join_what_one_scrape_saw():
    samples = {
        (CPU, "trainer-0"): [(100.2, 1), (101.2, 2), (102.2, 3)],
        (STEP, "trainer-0"): [(101.2, 7)],
        (CPU, "trainer-1"): [(100.7, 11), (102.7, 13)],  # one scrape was missed
        ("syncbed_node_processes", "trainer-0"): [(101.2, 5)],  # has no column
    }
    rows, warnings = read(Fake(samples, [{"trainer-0": 102.2, "trainer-1": 102.7}]), 100.0, 102.0)
    got = [(row.time, row.node, row.cpu_seconds_total, row.training_step) for row in rows]
    assert got == [
        (100.2, "trainer-0", 1, None),
        (100.7, "trainer-1", 11, None),
        (101.2, "trainer-0", 2, 7),
        (102.2, "trainer-0", 3, None),
        (102.7, "trainer-1", 13, None),
    ]
    assert warnings == []


def test_a_step_of_margin_and_no_more():
    samples = {(CPU, "n"): [(t + 0.5, t) for t in range(95, 110)]}
    rows, _ = read(Fake(samples, [{"n": 200.0}]), 100.0, 104.0)
    assert [row.time for row in rows] == [99.5, 100.5, 101.5, 102.5, 103.5, 104.5]


def test_a_scrape_that_comes_late_after_the_end_is_there_too():
    samples = {(CPU, "late"): [(101.5, 1), (103.4, 3), (106.2, 6), (107.0, 7)], (CPU, "n"): [(104.5, 4), (105.5, 5)]}
    rows, _ = read(Fake(samples, [{"late": 107.0, "n": 105.5}]), 102.0, 104.0)
    assert [(row.time, row.node) for row in rows] == [(101.5, "late"), (103.4, "late"), (104.5, "n"), (106.2, "late")]


def test_one_row_per_second_the_last():
    samples = {(CPU, "n"): [(100.1, 1), (100.9, 2), (101.5, 3)]}
    rows, _ = read(Fake(samples, [{"n": 200.0}]), 100.0, 102.0)
    assert [(row.time, row.cpu_seconds_total) for row in rows] == [(100.9, 2), (101.5, 3)]


def test_nan_is_an_empty_field():
    samples = {(CPU, "n"): [(100.5, 1)], ("syncbed_training_loss", "n"): [(100.5, "NaN")]}
    rows, _ = read(Fake(samples, [{"n": 200.0}]), 100.0, 101.0)
    assert [(row.cpu_seconds_total, row.training_loss) for row in rows] == [(1, None)]


def test_long_runs_are_asked_for_in_pages_without_loss():
    samples = {(CPU, "n"): [(1000.5 + t, t) for t in range(2000)]}
    fake = Fake(samples, [{"n": 2999.5}])
    rows, _ = read(fake, 1001.0, 2999.0)
    assert [row.cpu_seconds_total for row in rows] == list(range(2000))
    assert fake.ranges == [(1000.0, 1600.0), (1600.0, 2200.0), (2200.0, 2800.0), (2800.0, 3000.0)]


def test_it_waits_for_the_last_scrape_of_every_node():
    late = [{"a": 101.0}, {"a": 102.5}, {"a": 102.5, "b": 101.9}, {"a": 102.5, "b": 102.0}]
    fake = Fake({(CPU, "a"): [(101.0, 1)]}, late)
    rows, warnings = read(fake, 100.0, 102.0, nodes={"a", "b"})
    assert (len(rows), warnings, fake.last_scrapes) == (1, [], late[-1:])


def test_nodes_that_are_late_are_named_and_the_rest_is_returned():
    fake = Fake({(CPU, "a"): [(101.0, 1)]}, [{"a": 103.0, "c": 100.0}])
    rows, warnings = read(fake, 100.0, 102.0, nodes=["a", "b", "c"], wait_seconds=0.05)
    assert len(rows) == 1
    assert warnings == ["Prometheus has no scrape of b, c since the run ended; metrics.csv lacks its end"]


def test_a_restarting_prometheus_is_asked_again():
    fake = Fake({(CPU, "a"): [(101.0, 1)]}, [{"a": 103.0}])
    fake.broken = 5
    rows, warnings = read(fake, 100.0, 102.0)
    assert (len(rows), warnings) == (1, [])


def test_nobody_there_is_a_warning_and_no_rows():
    warnings = []
    assert prometheus.window("http://127.0.0.1:1", 1.0, 2.0, wait_seconds=0.05, warn=warnings.append) == []
    assert len(warnings) == 1
    assert "http://127.0.0.1:1" in warnings[0]
    assert "Connection refused" in warnings[0]


def test_a_broken_prometheus_is_a_warning_with_its_words():
    fake = Fake({}, [{"a": 103.0}])
    fake.broken = 10**6
    rows, warnings = read(fake, 100.0, 102.0, wait_seconds=0.05)
    assert rows == []
    assert "HTTP 503: Service Unavailable" in warnings[0]


def test_an_answer_that_is_no_json(tmp_path):
    class NotPrometheus(Fake):
        def answer(self, form):
            return json  # not serialisable: the connection breaks without an answer

    rows, warnings = read(NotPrometheus({}), 1.0, 2.0, wait_seconds=0.05)
    assert (rows, len(warnings)) == ([], 1)


def test_the_proxy_of_the_internet_is_not_asked(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    rows, warnings = read(Fake({(CPU, "a"): [(101.0, 1)]}, [{"a": 103.0}]), 100.0, 102.0)
    assert (len(rows), warnings) == (1, [])


# The real thing


def test_a_failed_scrape_is_not_the_last_one_but_a_node_that_is_gone_is_not_waited_for(tmp_path):
    """Scrapes from second 0 to 10."""
    scrapes = {"good": "1+0x10", "late": "1+0x9 0", "back": "1+0x8 0 1", "gone": "1+0x5 0+0x4"}
    last = {"good": 10, "late": 10 - prometheus._GONE_SECONDS, "back": 10, "gone": 10 - prometheus._GONE_SECONDS}
    case = {
        "interval": "1s",
        "input_series": [{"series": f'up{{job="node",node="{n}"}}', "values": v} for n, v in scrapes.items()],
        "promql_expr_test": [
            {
                "expr": prometheus._LAST,
                "eval_time": "10s",
                "exp_samples": [{"labels": f'{{job="node",node="{n}"}}', "value": when} for n, when in last.items()],
            }
        ],
    }
    (tmp_path / "test.yml").write_text(json.dumps({"evaluation_interval": "1s", "tests": [case]}))  # is YAML too
    done = promtool("test", "rules", str(tmp_path / "test.yml"))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed here")
def test_promtool_accepts_the_configuration():
    subprocess.run(["promtool", "check", "config", str(CONFIG)], check=True, capture_output=True)


def test_configuration_scrapes_each_second_and_finds_nodes_by_itself():
    import yaml

    config = yaml.safe_load(CONFIG.read_text())
    assert config["global"]["scrape_interval"] == "1s"
    node = next(job for job in config["scrape_configs"] if job["job_name"] == "node")
    assert node["http_sd_configs"][0]["url"] == "http://trainer-0:9400/targets"
    assert "static_configs" not in node


@pytest.mark.skipif(not shutil.which("prometheus"), reason="prometheus is not installed here")
def test_window_of_a_real_prometheus(tmp_path):
    from agent_scrape import serving as agent_serving

    port = free_port()
    with agent_serving("cgroup-v2/container", tmp_path, world_size=1) as agent:
        text = CONFIG.read_text()
        # No name server knows trainer-0 here, so it is scraped under the loopback address.
        here = f"      - target_label: __address__\n        replacement: 127.0.0.1:{agent}\n"
        for old, new in (
            ("trainer-0:9400/targets", f"127.0.0.1:{agent}/targets"),
            ("regex: trainer-([0-9]|1[0-5]):9400", f"regex: trainer-0:{agent}"),
            ("prometheus-monitoring:9090", f"127.0.0.1:{port}"),
            ("      # A node that", here + "      # A node that"),
        ):
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "prometheus.yml").write_text(text)
        command = ["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"]
        with subprocess.Popen(
            [*command, f"--web.listen-address=127.0.0.1:{port}"], stderr=subprocess.DEVNULL
        ) as process:
            try:
                url, found = f"http://127.0.0.1:{port}", []
                for _ in range(10):  # a scrape that takes longer than its second, on a busy machine, gives no row
                    start = found[-1].time + 0.5 if found else time.time()  # a scrape is half a second before it
                    found = prometheus.window(url, start, start + 2, nodes=["trainer-0"], wait_seconds=60)
                    rows = [row.time for row in found]
                    if rows and min(rows) <= start and max(rows) >= start + 2:
                        break
            finally:
                process.kill()
    assert {row.node for row in found} == {"trainer-0"}
    assert {row.memory_working_set_bytes for row in found} == {1_007_681_536}
    assert min(rows) <= start
    assert max(rows) >= start + 2
