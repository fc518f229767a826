"""CPU and memory limits of a cluster's nodes: set on running nodes for a run, read back inside, taken back after it.

What a node was started with stands in its container's labels (compose.yaml), so that whoever comes next can take back
what an orchestrator that was killed could not.
"""

from docker.models.containers import Container

from node.limits import Limits, wrong

PERIOD = 100_000  # microseconds in which a node may use its quota of CPU time; the kernel's default
QUOTA_LABEL, MEMORY_LABEL = "syncbed.cpu_quota", "syncbed.memory"


def original(container: Container) -> Limits:
    """What the cluster gave this node."""
    if QUOTA_LABEL not in container.labels:  # of an older syncbed, which changed none
        return now(container)
    return {
        "cpus": int(container.labels[QUOTA_LABEL]) / PERIOD,
        "memory_bytes": int(container.labels[MEMORY_LABEL]),
    }


def now(container: Container) -> Limits:
    """What Docker holds it to, as of the container's last reload."""
    host = container.attrs["HostConfig"]
    quota, memory = host["CpuQuota"], host["Memory"]
    cores = quota / (host["CpuPeriod"] or PERIOD) if quota > 0 else host.get("NanoCpus", 0) / 1e9  # compose's `cpus`
    return {"cpus": cores or None, "memory_bytes": memory or None}


def put(container: Container, limits: Limits) -> bool:
    """Hold the node to these from now on. Returns whether that was a change. Raises what the docker SDK raises.

    `limits`: both limits as numbers; a node of a cluster has both.
    """
    if not wrong(now(container), limits):
        return False
    cores, memory = limits["cpus"], limits["memory_bytes"]
    assert cores is not None
    container.update(
        cpu_period=PERIOD,
        cpu_quota=round(cores * PERIOD),
        mem_limit=memory,
        memswap_limit=memory,  # the same: no swap
    )
    container.reload()
    return True
