"""RESTARTS= with real ranks: one is killed, the run goes on by itself, and its weights are an undisturbed run's."""

import os
import signal

from test_resume_run import STEPS, start

from monitor.cli import main


def test_a_killed_rank_is_overcome_to_the_last_bit(tmp_path, undisturbed, capsys):
    run = start(tmp_path, RESTARTS=1, FAULT="kill:1@step=3")
    code, out = run.finish()
    assert code == 0, out
    result, usual = run.result(), undisturbed.result()
    (restart,) = result["restarts"]
    assert (restart["attempt"], restart["kind"]) == (1, "killed")
    events = run.events()
    before = events[: [event["event"] for event in events].index("restart")]
    last = max(event["step"] for event in before if event["event"] == "checkpoint")  # 2; on a busy machine 4
    assert restart["from_step"] == last
    assert restart["message"].startswith("rank 1 (local-1) was killed by SIGKILL at step ")
    assert f"restart 1: restarted from step {last}: rank 1 (local-1) was killed" in out
    assert run.weights() == undisturbed.weights()
    same = ("test_accuracy", "test_loss", "train_loss", "confusion_matrix", "distinct_samples", "samples_seen")
    for field in (*same, "synchronisations", "steps"):
        assert result[field] == usual[field], field
    for mine, theirs in zip(result["ranks"], usual["ranks"], strict=True):
        assert [mine[name] for name in ("steps", "sent_bytes", "received_bytes")] == [
            theirs[name] for name in ("steps", "sent_bytes", "received_bytes")
        ]
    assert [c["step"] for c in result["checkpoints"]] == [2, 4, STEPS]
    assert result["seconds"]["training"] > result["seconds"]["recovery"] > 0
    assert len(run.events("restart")) == 1
    assert {e["pid"] for e in run.events("started", 1)} != {run.events("started", 1)[0]["pid"]}
    assert main(["show", "RUNS_DIR=" + str(run.runs)]) == 0
    assert "restart 1: restarted from step" in capsys.readouterr().out


def test_lost_before_its_first_step_it_starts_over(tmp_path, undisturbed):
    run = start(tmp_path, RESTARTS=1)
    os.kill(run.wait_for("started", rank=1)["pid"], signal.SIGKILL)
    code, out = run.finish()
    assert code == 0, out
    (restart,) = run.result()["restarts"]
    assert (restart["from_step"], restart["lost_steps"]) == (0, 0)
    assert "restarted from the start, as there was no checkpoint of all workers" in out
    assert run.weights() == undisturbed.weights()
