"""A run's raw series: kept whole, readable again, and one line where they cannot be had."""

import gzip
import json
import os
import re
import shutil
import subprocess
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from urllib.parse import parse_qs

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from report_cases import ended, write_document

from monitor.dashboards import snapshot
from monitor.errors import UserError
from monitor.metrics.promql import has_plain_names
from trainer import events

RUN = "20261128-080000-ddp-logistic-2n-abcdef"
START, END = 1_795_852_800.25, 1_795_852_803.75  # Unix seconds of the first and the last event
NODE = {"job": "node", "node": "trainer-0"}
INFO = {"__name__": "syncbed_training_run_info", "run": RUN, **NODE}
ODD = {"__name__": "odd", "text": 'a "b" \\ c\nd', **NODE}


def at(seconds: float) -> float:
    return round(START + seconds, 3)


SERIES = [  # (labels, samples), as Prometheus holds them
    (INFO, [(at(s), "1") for s in range(4)]),
    ({"__name__": "up", **NODE}, [(at(s), "1") for s in range(-3, 15)]),
    ({"__name__": "up", "job": "prometheus"}, [(at(s), "1") for s in range(-3, 15)]),
    ({"__name__": "b_bucket", "le": "+Inf", **NODE}, [(at(0), "0"), (at(1), "12345678901")]),
    ({"__name__": "b_bucket", "le": "0.5", **NODE}, [(at(1), "3")]),
    ({"__name__": "loss", **NODE}, [(at(0), "2.5"), (at(1), "NaN"), (at(2), "+Inf"), (at(3), "1e-05")]),
    ({"__name__": "loss", "extra": "label", **NODE}, [(at(0), "7")]),
    (ODD, [(at(0), "-1")]),
    ({"__name__": 'quoted"} 1\n# EOF', **NODE}, [(at(0), "1")]),  # Prometheus 3 takes such names
    ({"__name__": "loss", 'x="1"} 2\ny': "z", **NODE}, [(at(0), "1")]),
    ({"__name__": "yesterday", **NODE}, [(at(-90_000), "1")]),
]


@contextmanager
def prometheus(held):
    """The address of one that holds these series."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            form = {k: v[0] for k, v in parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode()).items()}
            if self.path == "/api/v1/series":
                data = [labels for labels, _ in held]
            else:
                data = {"result": list(answer(form["query"], float(form["time"])))}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"status": "success", "data": data}).encode())

        def log_message(self, *args):
            pass

    def answer(expression, when):
        name, inside, length, unit = re.fullmatch(r"(\w+)\{(.*)\}\[(\d+)(ms|d)\]", expression, re.DOTALL).groups()
        seconds = int(length) * (0.001 if unit == "ms" else 86400)
        wanted = {"__name__": name} | {k: json.loads(v) for k, v in re.findall(r'(\w+)=("(?:[^"\\]|\\.)*")', inside)}
        for labels, samples in held:
            if wanted.items() <= labels.items():
                values = [[t, v] for t, v in samples if when - seconds < t <= when]
                if values:
                    yield {"metric": labels, "values": values}

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def runs(tmp_path):
    """A folder of one finished run on a cluster."""
    folder = tmp_path / "runs" / RUN
    folder.mkdir(parents=True)
    write_document(folder, ended(RUN))
    told = [events.Alive(rank=0, time=when) for when in (END, START)]
    (folder / "events.jsonl").write_text("".join(events.to_line(event) + "\n" for event in told) + '{"event": "cut sh')
    (tmp_path / "runs" / "latest").symlink_to(RUN)
    return tmp_path / "runs"


def keep(runs, run=RUN, json=False, **settings) -> int:
    return snapshot.command({"RUNS_DIR": str(runs), **settings}, SimpleNamespace(run=run, json=json))


def held_by(monkeypatch, url):
    monkeypatch.setattr(snapshot, "find", lambda run, project: url)


def test_every_sample_of_the_runs_time_is_kept_and_can_be_read_again(runs, monkeypatch, capsys):
    with prometheus(SERIES) as url:
        held_by(monkeypatch, url)
        assert keep(runs, "latest") == 0
    path = runs / RUN / "prometheus/series.om.gz"
    text = gzip.decompress(path.read_bytes()).decode()
    got = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = tuple(sorted(({"__name__": sample.name} | sample.labels).items()))
            got.setdefault(key, []).append((round(float(sample.timestamp), 3), float(sample.value)))
    wanted = {}
    for labels, samples in filter(lambda one: has_plain_names(one[0]), SERIES):
        inside = [
            (t, float(v)) for t, v in samples if at(-1) < t <= END + 9
        ]  # a second before, a dead rank's five after
        if inside:
            wanted[tuple(sorted(labels.items()))] = inside
    assert repr(sorted(got.items())) == repr(sorted(wanted.items()))  # NaN is equal to NaN this way
    assert sum(map(len, wanted.values())) == 4 + 2 * 13 + 3 + 5 + 1
    said = capsys.readouterr()
    assert said.out == f"{path}: 8 series, 39 samples, 0.0 MB\n"
    assert said.err == ""
    assert [file.name for file in path.parent.iterdir()] == ["series.om.gz"]


def test_the_same_for_programs(runs, monkeypatch, capsys):
    with prometheus(SERIES) as url:
        held_by(monkeypatch, url)
        keep(runs, json=True)
    path = runs / RUN / "prometheus/series.om.gz"
    about = {"series": 8, "samples": 39, "first": at(0)}
    assert json.loads(capsys.readouterr().out) == {"path": str(path), "bytes": path.stat().st_size, **about}


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed here")
def test_promtool_makes_blocks_of_it(runs, monkeypatch, tmp_path):
    with prometheus(SERIES) as url:
        held_by(monkeypatch, url)
        keep(runs)
    text, blocks = tmp_path / "series.om", tmp_path / "blocks"
    text.write_bytes(gzip.decompress((runs / RUN / "prometheus/series.om.gz").read_bytes()))
    subprocess.run(
        ["promtool", "tsdb", "create-blocks-from", "openmetrics", text, blocks], check=True, capture_output=True
    )
    (blocks / "wal").mkdir()  # older promtools look into it
    dump = subprocess.run(["promtool", "tsdb", "dump", blocks], check=True, capture_output=True, text=True).stdout
    assert len(dump.splitlines()) == 39
    assert f'{{__name__="loss", job="node", node="trainer-0"}} 1e-05 {1000 * at(3):.0f}\n' in dump
    assert f'text="a \\"b\\" \\\\ c\\nd"}} -1 {1000 * at(0):.0f}\n' in dump


def test_a_start_that_is_gone_is_a_warning(runs, monkeypatch, capsys):
    late = [(labels, [(t, v) for t, v in samples if t >= at(3)]) for labels, samples in SERIES]
    with prometheus(late) as url:
        held_by(monkeypatch, url)
        assert keep(runs) == 0
    assert capsys.readouterr().err == "warning: Prometheus has nothing of the first 3 s of the run\n"


def test_a_run_that_prometheus_has_nothing_of(runs, monkeypatch):
    with prometheus([series for series in SERIES if series[0] is not INFO]) as url:
        held_by(monkeypatch, url)
        with pytest.raises(UserError) as raised:
            keep(runs, PROJECT="other")
    assert str(raised.value).startswith(
        f"RUN={RUN}: Prometheus of cluster other has nothing of it, from 2026-11-28 08:00"
    )
    assert "PROJECT=" in str(raised.value)
    assert not (runs / RUN / "prometheus").exists()


def test_no_cluster(runs, monkeypatch):
    monkeypatch.setattr(snapshot.sdk, "connect", lambda: None)
    monkeypatch.setattr(snapshot.containers, "urls", lambda client, project: {})
    with pytest.raises(
        UserError, match=f"RUN={RUN}: no cluster syncbed is up, and what its Prometheus held went with it"
    ):
        keep(runs)


@pytest.mark.parametrize(
    ("result", "says"),
    [
        ({"runtime": "local"}, "it ran as local processes, which no Prometheus watches"),
        ({"status": "running"}, "it is running"),
    ],
)
def test_a_run_of_which_there_is_none(runs, result, says):
    write_document(runs / RUN, ended(RUN, orchestrator_pid=os.getpid()) | result)
    with pytest.raises(UserError, match=f"RUN={RUN}: {says}"):
        keep(runs)


def test_unknown_runs_settings_and_runs_without_events(runs):
    with pytest.raises(UserError, match=r"run nobody: not found in .* \(newest: 2026"):
        keep(runs, "nobody")
    with pytest.raises(UserError, match="FORMAT=csv: no such setting"):
        keep(runs, FORMAT="csv")
    (runs / RUN / "events.jsonl").write_text("")
    with pytest.raises(UserError, match="nothing ran"):
        keep(runs)
    (runs / RUN / "events.jsonl").unlink()
    with pytest.raises(UserError, match=r"events\.jsonl cannot be read"):
        keep(runs)


def test_one_that_does_not_answer_leaves_nothing_half(runs, monkeypatch):
    held_by(monkeypatch, "http://127.0.0.1:1")
    with pytest.raises(UserError, match=r"Prometheus at http://127.0.0.1:1 does not answer .*Connection refused"):
        keep(runs)
    assert not list((runs / RUN).glob("**/*.part"))
