"""Faults of ranks as local processes: a short freeze is survived, a kill ends the run and is named."""

from orchestrator import Orchestrator


def test_a_rank_is_frozen_for_a_moment_and_then_killed(tmp_path):
    words = {"RUNTIME": "local", "MODEL": "cnn3", "NODES": 2, "STEPS": 5000, "DEADLINE": 20}
    run = Orchestrator(tmp_path, **words, FAULT="freeze:0@step=3+1s; kill:1@step=400; kill:0@step=5000")
    code, out = run.finish()
    result = run.result()
    assert (code, result["error"]["kind"], result["error"]["rank"]) == (1, "killed", 1), out
    assert "fault freeze:0@step=3+1s begins after step" in out
    freeze, kill, late = result["faults"]
    assert freeze["ended_seconds"] - freeze["began_seconds"] >= 1
    assert kill["step"] >= 400 > freeze["step"] >= 3  # on a busy machine it strikes late, but hardly hundreds of steps
    assert late["began_seconds"] is None
    assert "FAULT=kill:0@step=5000: the run ended before it was due" in result["warnings"]
    assert [e["moment"] for e in run.events("fault") if "freeze" in e["fault"]] == ["begin", "end"]


def test_faults_of_nodes_are_refused_plainly(tmp_path):
    code, out = Orchestrator(tmp_path, RUNTIME="local", NODES=2, FAULT="restart:1@1s").finish()
    assert code == 2
    assert "FAULT=restart:1@1s: local ranks can be the target of kill and freeze only; RUNTIME=docker would do" in out
