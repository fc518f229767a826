"""What a node is, as seen from inside: addresses, limits, data, and the run that holds it."""

import contextlib
import os
import random
import socket
import subprocess
from pathlib import Path

from node import cgroup
from node.leftovers import end_leftovers
from node.lock import lock_holder

DATA = Path("/data")


def check() -> dict:
    """The node's facts. Kills nothing, changes nothing but `leftovers`: ranks that no launcher holds, which it ends."""
    usage = cgroup.read()
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    hostname = socket.gethostname()
    holder = lock_holder()
    shm = os.statvfs("/dev/shm")
    return {
        "hostname": hostname,
        "addresses": _addresses(hostname),
        "peers": {name: _addresses(name) for name in (f"trainer-{rank}" for rank in range(world_size))},
        "rank": int(os.environ.get("RANK", "0")),
        "world_size": world_size,
        "cpu_limit_cores": usage.cpu_limit_cores,
        "memory_limit_bytes": usage.memory_limit_bytes,
        "shm_bytes": shm.f_frsize * shm.f_blocks,
        "code": os.environ.get("SYNCBED_CODE", ""),
        "data": sorted(path.parent.name for path in DATA.glob("*/manifest.json")),
        "free_port": free_port(),
        "shaped": shaped(),
        "run": holder,
        "leftovers": [] if holder else end_leftovers(),
    }


def shaped() -> bool:
    """Whether a run has shaped what this node sends or cut it off, or one that was killed has left it so. tc-qdisc(8),
    ip-route(8).
    """
    with contextlib.suppress(OSError):
        shown = subprocess.run(["tc", "qdisc", "show"], capture_output=True, text=True).stdout
        routes = subprocess.run(["ip", "route", "show"], capture_output=True, text=True).stdout
        kinds = [line.split()[1] for line in shown.splitlines() if line.startswith("qdisc ")]
        changed = any(word in ("blackhole", "congctl") for word in routes.split())
        return changed or any(kind in ("tbf", "netem") for kind in kinds)
    return False


def _addresses(name: str) -> list[str]:
    try:
        return sorted({info[4][0] for info in socket.getaddrinfo(name, None, socket.AF_INET)})
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
