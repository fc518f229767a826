"""The table of faults: every run in it can be, what came is held against what is stated, the page is the figures."""

import json

import pytest
from report_cases import ended, rank_result

from benchmarks import chaos
from monitor.capabilities import RUNTIMES
from monitor.conditions import faults
from monitor.conditions.conditions import Conditions
from monitor.results.result import Result
from trainer.registry import SYNCS
from trainer.spec import RunSpec

OURS = [name for name, entry in SYNCS.items() if entry.place.startswith("trainer.")]


@pytest.mark.parametrize("sync", OURS)
def test_every_run_of_the_table_can_be(sync):
    for fault in filter(lambda fault: chaos.stated(fault, sync), chaos.FAULTS):
        words = chaos.words(fault, sync, 300)
        own = {name: text for name, text in words.items() if name not in ("RUNTIME", faults.SETTING)}
        assert Conditions.of(words, RunSpec.from_settings(own), RUNTIMES["docker"]).faults


def result(error=None, lost=(), began=2.0, problem=None):
    record = {"fault": "x", "step": 1, "began_seconds": began, "ended_seconds": None, "error": problem}
    document = ended(
        "x",
        error=error and {"kind": error[0], "rank": error[1], "message": f"rank {error[1]} {error[0]}"},
        faults=[record],
        ranks=[rank_result(rank, 4) | {"node": f"trainer-{rank // 2}"} for rank in range(4)],
        lost_workers=[{"rank": rank, "step": 1, "reason": "was killed"} for rank in lost],
        seconds={"total": 30.0, "startup": 20.0},
    )
    return Result.model_validate(document)


@pytest.mark.parametrize(
    ("fault", "sync", "came", "wrong"),
    [
        ("kill", "ddp", result(("killed", 1)), None),
        ("kill", "ddp", result(("killed", 0)), "rank 0 killed"),
        ("kill", "ddp", result(("peer", 1)), "rank 1 peer"),
        ("kill", "ddp", result(), "the run goes on"),
        ("kill", "single", result(("killed", 0)), None),
        ("kill", "ps_async", result(lost=[1]), None),
        ("kill", "ps_async", result(lost=[0]), "went on without ranks [0]"),
        ("kill", "ps_async", result(("killed", 1)), "rank 1 killed"),
        ("partition", "ps_async", result(lost=[1]), None),
        ("partition", "ps_sync", result(("peer", 0)), None),
        ("restart", "hogwild", result(("lost", 0)), None),
        ("restart", "hogwild", result(("lost", 2)), "rank 2 lost"),
        ("restart", "ring", result(("killed", 3)), None),
        ("freeze", "ring", result(("frozen", 1), began=-40.0), "only after 50 s"),
        ("passing", "ring", result(), None),
        ("passing", "ring", result(began=None), "not brought about"),
        ("parted", "ring", result(problem="no"), "not brought about"),
    ],
)
def test_what_came_is_held_against_what_is_stated(fault, sync, came, wrong):
    found = chaos.judge(fault, sync, came)["wrong"]
    assert found == wrong if wrong is None else found.startswith(wrong)


def test_the_page_is_what_the_figures_say():
    record = json.loads((chaos.RESULTS / "faults.json").read_text())
    assert (chaos.ROOT / "docs/reference/faults.md").read_text() == chaos.page(record)
    cells = [came for own in record["figures"].values() for came in own.values()]
    assert cells
    assert not [came for came in cells if came["wrong"]]
