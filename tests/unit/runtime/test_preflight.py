"""What keeps a node from taking part in a run, and what mends it."""

import pytest
from test_conditions import OWN, Container

from monitor.engine.images import code_hash
from monitor.errors import Busy, UserError
from monitor.runtime import preflight

NAMES = ["trainer-0", "trainer-1"]


def check(**facts) -> None:
    good = {
        "run": None,
        "code": code_hash(),
        "addresses": ["10.0.0.2"],
        "peers": {name: ["10.0.0.2"] for name in NAMES},
        "shm_bytes": 256 << 20,
        "free_bytes": 10 << 30,
        "cpu_limit_cores": OWN["cpus"],
        "memory_limit_bytes": OWN["memory_bytes"],
    }
    preflight.check_node("trainer-1", Container(), good | facts, NAMES, "mine")


def test_a_node_as_it_should_be_takes_part():
    check()
    check(free_bytes=512 << 20)
    check(free_bytes=None)


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"addresses": ["127.0.1.1"]}, "its own name resolves to a loopback address"),
        ({"peers": {"trainer-1": ["10.0.0.2"]}}, "node trainer-1 cannot resolve trainer-0"),
        ({"shm_bytes": 1 << 20}, "/dev/shm has 1048576 bytes, 64 MiB are needed"),
        ({"cpu_limit_cores": 2.0}, "CPUS=0.5 was asked for, 2.0 is in force"),
        (
            {"code": ""},
            r"older image \(code unknown, .*`make cluster-up PROJECT=mine` rebuilds it",
        ),
        ({"free_bytes": 511 << 20}, "the engine's disk has 511 MiB left, 512 are the least; `make clean PROJECT=mine`"),
    ],
)
def test_what_keeps_it_from_that_is_one_line(facts, says):
    with pytest.raises(UserError, match=says) as error:
        check(**facts)
    assert "\n" not in str(error.value)


def test_a_run_that_has_it_is_named():
    with pytest.raises(Busy):
        check(run="a-run")
