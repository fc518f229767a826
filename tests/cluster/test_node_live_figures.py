"""The live figures of a real run, as its snapshot of Prometheus has them, against what the run itself says."""

import gzip
import json

import pytest
from orchestrator import Orchestrator, wait_until
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from testbed import asked, scraped, syncbed

STEPS = 5


@pytest.fixture(scope="module")
def run(cluster, tmp_path_factory):
    settings = {"MODEL": "logistic", "DATA": "cifar10", "SYNC": "local_sgd", "H": 2, "NODES": 3, "BATCH": 48}
    found = 'sum(up{job="node"}) == 4'  # a cluster that has just been started is found some seconds later
    wait_until(lambda: asked(cluster, found))
    run = Orchestrator(
        tmp_path_factory.mktemp("live"), RUNTIME="docker", PROJECT=cluster.project, STEPS=STEPS, **settings
    )
    run.code, run.out = run.finish()
    assert run.code == 0, run.out
    for rank in range(3):  # they stay for some seconds: Prometheus is to have seen the last of them
        scraped(cluster, f"trainer-{rank}", run.events()[-1]["time"], "syncbed_training_step")
    return run


def keep(run, cluster, *more):
    return syncbed(
        "prometheus-snapshot", run.run.name, f"RUNS_DIR={run.run.parent}", f"PROJECT={cluster.project}", *more
    )


def test_a_snapshot_has_every_ranks_figures_and_they_are_the_runs_own(run, cluster):
    done = keep(run, cluster, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    last = {}
    with gzip.open(told["path"], "rt") as file:
        for family in text_string_to_metric_families(file.read()):
            for sample in family.samples:
                last[sample.name, frozenset(sample.labels.items())] = sample.value
    assert len(last) == told["series"]

    def value(name, **labels):
        (found,) = [
            v for (n, pairs), v in last.items() if n == f"syncbed_{name}" and labels.items() <= dict(pairs).items()
        ]
        return found

    result = run.result()
    steps = [event for event in run.events() if event["event"] == "step"]
    for rank in result["ranks"]:
        one = {"rank": str(rank["rank"]), "node": rank["node"]}
        own = [step for step in steps if step["rank"] == rank["rank"]]
        assert value("training_step", **one) == value("training_step_seconds_count", **one) == STEPS
        assert value("training_loss", **one) == own[-1]["loss"]
        assert value("training_samples_total", **one) == sum(step["samples"] for step in own) == STEPS * 16
        seconds = sum(step["step_seconds"] for step in own)
        assert value("training_step_seconds_sum", **one) == pytest.approx(seconds)
        phases = ("data", "forward", "backward", "sync", "optimizer")
        assert sum(value("training_phase_seconds_sum", phase=p, **one) for p in phases) == pytest.approx(seconds, 0.01)
        for direction in ("sent", "received"):  # two averages, and one of what was left apart after the last step
            counted = value("training_bytes_total", collective="all_reduce", direction=direction, **one)
            formula = value("training_expected_bytes", direction=direction, **one)
            assert counted == rank[f"{direction}_bytes"] == pytest.approx(STEPS * formula, abs=1)
        assert value("training_synchronisations_total", **one) == STEPS // 2
        assert value("training_deadline_misses_total", **one) == 0
    assert (
        value("training_run_info", run=run.run.name, sync="local_sgd", model="logistic", nodes="3", precision="fp32")
        == 1
    )


def test_there_is_none_without_the_runs_cluster(run, cluster):
    done = syncbed("prometheus-snapshot", "latest", f"RUNS_DIR={run.run.parent}", f"PROJECT={cluster.project}-other")
    assert done.returncode == 2
    assert f"RUN={run.run.name}: no cluster {cluster.project}-other is up" in done.stderr
    assert done.stderr.count("\n") == 1
