"""CPU and memory limits as a node sees them: compared with what was asked for."""

import time
from typing import TypedDict

from node import cgroup

SLACK_CORES, SLACK_BYTES = 0.01, 1 << 20  # the kernel takes whole microseconds and whole pages
SECONDS = 15.0  # in which a limit that was set is in force


class Limits(TypedDict):
    """None: no limit."""

    cpus: float | None  # cores
    memory_bytes: int | None


def wrong(actual: Limits, target: Limits) -> str | None:
    """Which limit is not as wanted, in the words of `make run`; None where all are."""
    for setting, value, limit, slack in (
        ("CPUS", actual["cpus"], target["cpus"], SLACK_CORES),
        ("MEMORY", actual["memory_bytes"], target["memory_bytes"], SLACK_BYTES),
    ):
        if limit is not None and (value is None or abs(value - limit) > slack):
            return f"{setting}={limit} was asked for, {value} is in force"
    return None


def await_inside(target: Limits) -> str | None:
    """Inside a node: wait until these limits are in force. Returns what is wrong when they are not in SECONDS."""
    until = time.monotonic() + SECONDS
    while True:
        usage = cgroup.read()
        actual: Limits = {"cpus": usage.cpu_limit_cores, "memory_bytes": usage.memory_limit_bytes}
        if (problem := wrong(actual, target)) is None or time.monotonic() > until:
            return problem
        time.sleep(0.02)
