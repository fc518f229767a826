"""`syncbed run RUNTIME=local` as a person runs it: what it leaves, that nothing hangs and nothing is left behind."""

import csv
import json
import os
import random
import signal
import subprocess

import pytest
from orchestrator import Orchestrator, processes_of, syncbed, wait_until, write_cifar

from trainer.events import PHASES

LONG = {"STEPS": 2000}  # ended by the test, long before its last step


def start(folder, **settings):
    return Orchestrator(folder, RUNTIME="local", NODES=2, **settings)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One run that went well, for all tests that only read it."""
    run = start(tmp_path_factory.mktemp("finished"), EVERY=2)
    run.code, run.out = run.finish()
    assert run.code == 0, run.out
    return run


def test_the_run_folder_is_whole(finished):
    names = {path.name for path in finished.run.iterdir()}
    assert names == {"spec.json", "events.jsonl", "metrics.csv", "result.json", "checkpoints"}
    assert [path.name for path in sorted((finished.run / "checkpoints").iterdir())] == [
        "step-000002",
        "step-000003",
    ]
    result = finished.result()
    assert [(c["step"], c["path"]) for c in result["checkpoints"]] == [
        (2, "checkpoints/step-000002"),
        (3, "checkpoints/step-000003"),
    ]
    assert json.loads((finished.run / "spec.json").read_text()) == result["spec"]


def test_the_result_is_what_the_events_say(finished):
    result = finished.result()
    assert (result["status"], result["error"], result["runtime"]) == ("finished", None, "local")
    assert result["parameters"] == 9_231_114
    assert (result["data"]["train_samples"], result["data"]["test_samples"]) == (64, 13)
    assert "64 + 13 images" in result["data"]["label"]
    assert (result["samples_seen"], result["distinct_samples"], result["synchronisations"]) == (24, 24, 3)
    assert result["test_samples_counted"] == sum(map(sum, result["confusion_matrix"])) == 13
    assert result["test_accuracy"] == pytest.approx(sum(result["confusion_matrix"][i][i] for i in range(10)) / 13)
    for rank in result["ranks"]:
        steps = finished.events("step", rank["rank"])
        assert len(steps) == rank["steps"] == 3
        assert rank["step_seconds"]["mean"] == pytest.approx(sum(s["step_seconds"] for s in steps[1:]) / 2)
        assert sum(rank["phase_seconds"][p] for p in PHASES) == pytest.approx(rank["step_seconds"]["mean"], rel=0.01)
        assert rank["sent_bytes"] == 3 * 9_231_114 * 4  # 2(n-1)/n of S with n = 2
        assert rank["peak_memory_bytes"] > 50e6
    last = [finished.events("step", rank)[-1]["loss"] for rank in (0, 1)]
    assert result["train_loss"] == pytest.approx(sum(last) / 2)


def test_the_seconds_add_up(finished):
    seconds = finished.result()["seconds"]
    assert 0 < seconds["training"] < seconds["total"]
    assert seconds["startup"] + seconds["training"] + seconds["evaluation"] < seconds["total"]


def test_the_nodes_figures_are_in_metrics_csv(finished):
    with (finished.run / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["node"] for row in rows} == {"local-0", "local-1"}
    for node in ("local-0", "local-1"):
        own = [row for row in rows if row["node"] == node]
        cpu = [float(row["cpu_seconds_total"]) for row in own if row["cpu_seconds_total"]]
        assert cpu == sorted(cpu)
        assert cpu[-1] > 1.0  # importing torch alone takes longer
        assert max(float(row["memory_working_set_bytes"]) for row in own if row["memory_working_set_bytes"]) > 100e6


def test_what_it_prints_names_what_matters(finished):
    assert "RUNTIME=local" in finished.out
    assert "9,231,114 parameters" in finished.out
    assert "test accuracy" in finished.out
    assert str(finished.run / "result.json").endswith(finished.out.strip().splitlines()[-1].removeprefix("result: "))


def test_runs_and_show_read_it_back(finished):
    assert json.loads(syncbed(finished.folder, "show", "--json").stdout) == finished.result()
    assert [run["id"] for run in json.loads(syncbed(finished.folder, "runs", "--json").stdout)] == [finished.run.name]
    assert finished.run.name in syncbed(finished.folder, "runs").stdout


@pytest.mark.parametrize(("sign", "kind", "word"), [("SIGKILL", "killed", "SIGKILL"), ("SIGSTOP", "frozen", "frozen")])
def test_a_lost_rank_ends_the_run_and_is_named(tmp_path, sign, kind, word):
    run = start(tmp_path, **LONG, DEADLINE=12)
    run.wait_for("step", rank=1)
    pid = run.events("started", rank=1)[0]["pid"]
    os.kill(pid, signal.Signals[sign])
    code, out = run.finish()
    result = run.result()
    assert code == 1
    assert (result["status"], result["error"]["kind"], result["error"]["rank"]) == ("failed", kind, 1)
    assert "rank 1 (local-1)" in out
    assert word in result["error"]["message"]
    assert result["ranks"][0]["steps"] >= 1
    assert processes_of(run.run.name) == []


def test_a_lost_worker_is_gone_on_without_where_the_strategy_can(tmp_path):
    servers = {"SYNC": "ps_async", "COLOCATED": 1, "EVALUATOR": 1, "STALENESS": 2, "MODEL": "cnn3", "EVERY": 100}
    run = start(tmp_path, **servers, STEPS=300, DEADLINE=12)
    run.wait_for("step", rank=1)
    os.kill(run.events("started", rank=1)[0]["pid"], signal.SIGKILL)
    code, out = run.finish()
    result = run.result()
    assert code == 0, out
    assert (result["status"], result["error"]) == ("finished", None)
    (lost,) = result["lost_workers"]
    assert (lost["rank"], lost["reason"]) == (1, "was killed by SIGKILL")
    assert f"rank 1 (local-1) was killed by SIGKILL at step {lost['step']}; the others go on without it" in out
    assert [rank["role"] for rank in result["ranks"]] == ["worker", "worker", "server", "evaluator"]
    assert result["ranks"][0]["steps"] == 300
    assert sum(result["ranks"][0]["staleness"]["histogram"].values()) == 300
    assert result["ranks"][2]["updates"] >= 300 + lost["step"]
    assert result["test_samples_counted"] == 13
    assert [c["step"] for c in result["checkpoints"]] == [100, 200, 300]
    assert result["evaluations"]
    assert "went on without rank 1" in syncbed(tmp_path, "show").stdout
    assert processes_of(run.run.name) == []


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_stopped_by_a_signal_it_writes_its_result_and_leaves_nothing(tmp_path, name):
    run = start(tmp_path, **LONG)
    run.wait_for("step")
    run.process.send_signal(signal.Signals[name])
    code, out = run.finish()
    result = run.result()
    assert code == 1
    assert (result["status"], result["error"]["kind"]) == ("failed", "interrupted")
    assert "Traceback" not in out
    assert processes_of(run.run.name) == []


@pytest.mark.parametrize("moment", ["started", "ready", "step"])
def test_a_killed_orchestrator_leaves_no_rank_and_the_next_run_works(tmp_path, moment):
    run = start(tmp_path, **LONG)
    run.wait_for(moment)
    killed = run.run.name
    run.process.kill()
    run.process.communicate()
    wait_until(lambda: processes_of(killed) == [])
    again = start(tmp_path, STEPS=1)
    code, out = again.finish()
    assert code == 0, out
    assert again.run.name != killed
    listed = json.loads(syncbed(tmp_path, "runs", "--json").stdout)
    assert {run["id"]: run["status"] for run in listed} == {again.run.name: "finished", killed: "failed"}


def test_killed_at_a_random_moment_nothing_is_left(tmp_path):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    moments = random.Random(seed).sample(range(1, 12), 3)
    for lines in moments:
        run = start(tmp_path, STEPS=4)
        wait_until(lambda run=run, lines=lines: run.process.poll() is not None or len(run.events()) >= lines, 120)
        run.process.kill()
        run.process.communicate()
        wait_until(lambda run=run: processes_of(run.run.name) == [])


def test_a_full_disk_fails_the_run_in_one_line_and_keeps_earlier_results(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk takes root")
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", small], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    try:
        (small / "kept").write_text("earlier")
        run = start(tmp_path, RUNS_DIR=small)  # a checkpoint alone takes 74 MB
        run.runs = small
        code, out = run.finish()
        assert code == 1, out
        assert "no space" in out.lower()
        assert "Traceback" not in out
        assert (small / "kept").read_text() == "earlier"
        assert run.result()["status"] == "failed"
        assert list(small.glob("**/*.part*")) == []
    finally:
        subprocess.run(["umount", "-l", small], check=True)


def test_a_truncated_data_file_is_refused_before_anything_starts(tmp_path):
    batch = write_cifar(tmp_path / "cifar") / "data_batch_1"
    batch.write_bytes(batch.read_bytes()[:1000])
    code, out = start(tmp_path).finish()
    assert code == 2
    assert "data_batch_1" in out
    assert out.strip().splitlines()[-1].startswith("syncbed: ")


def test_a_batch_larger_than_the_data_is_bad_input_and_says_so(tmp_path):
    run = start(tmp_path, BATCH=128)
    code, out = run.finish()
    assert (code, out.strip().splitlines()[-1]) == (2, "syncbed: BATCH=128: the training set has 64 images")
    assert not run.runs.exists()  # nothing was started


def test_a_reader_that_goes_away_does_not_end_the_run(tmp_path):
    run = start(tmp_path)
    run.process.stdout.close()  # what `make run | head -1` does
    assert run.process.wait(150) == 0
    assert run.result()["status"] == "finished"


def test_the_default_data_set_is_synthetic_and_labelled_where_cifar10_cannot_be_had(tmp_path):
    nobody = "http://127.0.0.1:9"  # a proxy that does not answer: no network, wherever the test runs
    words = ("run", "RUNTIME=local", "SYNC=single", "BATCH=2", "STEPS=1", "--json")
    out = syncbed(tmp_path, *words, https_proxy=nobody, http_proxy=nobody)
    assert out.returncode == 0, out.stderr
    result = json.loads(out.stdout)
    assert "warning: cifar10 cannot be fetched" in out.stderr
    assert (result["spec"]["data"], result["spec"]["nodes"]) == ("synthetic", 1)
    assert "cifar10 could not be fetched" in result["data"]["label"]
