"""CPU and memory limits of a cluster's nodes: set on running nodes for a run, read back inside, taken back after it.

What a node was started with stands in its container's labels (compose.yaml), so that whoever comes next can take back
what an orchestrator that was killed could not.
"""

import time

from monitor import cgroup

PERIOD = 100_000  # microseconds in which a node may use its quota of CPU time; the kernel's default
SLACK_CORES, SLACK_BYTES = 0.01, 1 << 20  # the kernel takes whole microseconds and whole pages
SECONDS = 15.0  # in which a limit that was set is in force
QUOTA_LABEL, MEMORY_LABEL = "syncbed.cpu_quota", "syncbed.memory"

Limits = dict[str, float | int | None]  # cpus, in cores, and memory_bytes; None: no limit


def own(container) -> Limits:
    """What the cluster gave this node."""
    if QUOTA_LABEL not in container.labels:  # of an older syncbed, which changed none
        return now(container)
    return {
        "cpus": int(container.labels[QUOTA_LABEL]) / PERIOD,
        "memory_bytes": int(container.labels[MEMORY_LABEL]),
    }


def now(container) -> Limits:
    """What Docker holds it to, as of the container's last reload."""
    host = container.attrs["HostConfig"]
    quota, memory = host["CpuQuota"], host["Memory"]
    cores = quota / (host["CpuPeriod"] or PERIOD) if quota > 0 else host.get("NanoCpus", 0) / 1e9  # compose's `cpus`
    return {"cpus": cores or None, "memory_bytes": memory or None}


def put(container, wanted: Limits) -> bool:
    """Hold the node to these from now on. Returns whether that was a change. Raises what the docker SDK raises."""
    if not wrong(now(container), wanted):
        return False
    memory = {"mem_limit": wanted["memory_bytes"], "memswap_limit": wanted["memory_bytes"]}
    container.update(cpu_period=PERIOD, cpu_quota=round(wanted["cpus"] * PERIOD), **memory)
    container.reload()
    return True


def wrong(found: Limits, wanted: Limits) -> str | None:
    """What of `found` is not as wanted, in the words of `make run`; None where all is."""
    for name, word, slack in (("cpus", "CPUS", SLACK_CORES), ("memory_bytes", "MEMORY", SLACK_BYTES)):
        value, asked = found[name], wanted[name]
        if asked is not None and (value is None or abs(value - asked) > slack):
            return f"{word}={asked} was asked for, {value} is in force"
    return None


def await_inside(wanted: Limits) -> str | None:
    """Inside a node: wait until these limits are in force. Returns what is wrong when they are not in SECONDS."""
    until = time.monotonic() + SECONDS
    while True:
        usage = cgroup.read()
        found = {"cpus": usage.cpu_limit_cores, "memory_bytes": usage.memory_limit_bytes}
        if (problem := wrong(found, wanted)) is None or time.monotonic() > until:
            return problem
        time.sleep(0.02)
