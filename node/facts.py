"""What a node is, as seen from inside: addresses, limits, data, and the run that holds it."""

import contextlib
import os
import random
import socket
import subprocess
from pathlib import Path
from typing import TypedDict

from node import cgroup, disk
from node.leftovers import end_leftovers
from node.lock import lock_holder
from node.strays import end_strays

DATA, RUNS = Path("/data"), Path("/runs")


class NodeFacts(TypedDict):
    """What `python -m node.launcher check` prints."""

    hostname: str
    addresses: list[str]  # IPv4, of the hostname
    peers: dict[str, list[str]]  # addresses by the names of the cluster's nodes; none where a name does not resolve
    rank: int
    world_size: int
    cpu_limit_cores: float | None  # None: no limit
    memory_limit_bytes: int | None
    shm_bytes: int  # size of /dev/shm
    free_bytes: int | None  # left on the disk of the volume of runs; None where there is none
    code: str  # the image's, as monitor.engine.images.code_hash() makes it; "" where it is not known
    data: list[str]  # keys of the data sets that are prepared here
    free_port: int
    shaped: bool  # whether what it sends is shaped or cut off
    run: str | None  # id of the run that holds the node
    leftovers: list[int]  # process ids of ranks that no launcher held; they were ended


def node_facts() -> NodeFacts:
    """What this node is. Changes nothing but `leftovers`."""
    usage = cgroup.read()
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    hostname = socket.gethostname()
    strays = end_strays()  # first: one of them may hold the lock
    holder = lock_holder()
    shm = os.statvfs("/dev/shm")
    return {
        "hostname": hostname,
        "addresses": _addresses(hostname),
        "peers": {f"trainer-{rank}": _addresses(f"trainer-{rank}") for rank in range(world_size)},
        "rank": int(os.environ.get("RANK", "0")),
        "world_size": world_size,
        "cpu_limit_cores": usage.cpu_limit_cores,
        "memory_limit_bytes": usage.memory_limit_bytes,
        "shm_bytes": shm.f_frsize * shm.f_blocks,
        "free_bytes": disk.free_bytes(RUNS) if RUNS.is_dir() else None,
        "code": os.environ.get("SYNCBED_CODE", ""),
        "data": sorted(path.parent.name for path in DATA.glob("*/manifest.json")),
        "free_port": free_port(),
        "shaped": shaped(),
        "run": holder,
        "leftovers": strays + ([] if holder else end_leftovers()),
    }


def shaped() -> bool:
    """Whether what this node sends is shaped or cut off, by a run or left so by one that was killed.

    tc-qdisc(8), ip-route(8).
    """
    with contextlib.suppress(OSError):
        qdiscs = subprocess.run(["tc", "qdisc", "show"], capture_output=True, text=True).stdout
        routes = subprocess.run(["ip", "route", "show"], capture_output=True, text=True).stdout
        kinds = [line.split()[1] for line in qdiscs.splitlines() if line.startswith("qdisc ")]
        changed = any(word in ("blackhole", "congctl") for word in routes.split())
        return changed or any(kind in ("tbf", "netem") for kind in kinds)
    return False


def _addresses(name: str) -> list[str]:
    try:
        return sorted({str(address[0]) for *_, address in socket.getaddrinfo(name, None, socket.AF_INET)})
    except OSError:
        return []


def free_port() -> int:
    """A port nothing listens on, below the range that the kernel takes for outgoing connections on its own."""
    while True:
        port = random.randint(20000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
                return port
            except OSError:
                continue
