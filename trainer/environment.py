"""What must be settled before torch is imported: threads, the network interface, memory.

No torch here.

OpenMP and Gloo read their settings from the environment when they are loaded, so these come first.
"""

import ctypes
import os
import socket
from dataclasses import dataclass
from pathlib import Path

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
KEPT_BYTES = 1 << 30


class EnvironmentFault(ValueError):
    """A variable that should have been set when the rank was started is missing or wrong. str() is one line."""


@dataclass(frozen=True)
class Place:
    """Where this process stands, in torch.distributed's words."""

    rank: int
    world_size: int
    master_addr: str
    master_port: int


def place(environ=os.environ) -> Place:
    """Read RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Raises EnvironmentFault."""
    rank, world_size = _whole(environ, "RANK", 0), _whole(environ, "WORLD_SIZE", 1)
    if rank >= world_size:
        raise EnvironmentFault(f"RANK={rank}: ranks of WORLD_SIZE={world_size} are 0..{world_size - 1}")
    return Place(rank, world_size, environ.get("MASTER_ADDR", "127.0.0.1"), _whole(environ, "MASTER_PORT", 1, "29500"))


def _whole(environ, name: str, low: int, default: str | None = None) -> int:
    text = environ.get(name, default)
    if text is None:
        raise EnvironmentFault(f"{name} is not set: start ranks with `syncbed run` or torchrun")
    if not text.isdecimal() or int(text) < low:
        raise EnvironmentFault(f"{name}={text}: a whole number from {low}")
    return int(text)


def cpu_quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Cores that the cgroup at `root` (version 1 or 2) may use; None when it sets no limit or cannot be read."""
    try:
        if (root / "cpu.max").exists():
            quota, period = (root / "cpu.max").read_text().split()
        else:
            quota = (root / "cpu/cpu.cfs_quota_us").read_text().strip()
            period = (root / "cpu/cpu.cfs_period_us").read_text()
    except (OSError, ValueError):
        return None
    return None if quota in ("max", "-1") else int(quota) / int(period)


def threads(environ=os.environ, root: Path = Path("/sys/fs/cgroup")) -> int:
    """Compute threads of this rank: its cores rounded down, at least 1.

    The node's cores are SYNCBED_CPUS (set by a launcher whose nodes are no cgroups of their own),
    else the cgroup's quota, else all cores this process may run on. The LOCAL_WORLD_SIZE ranks of
    the node share them.
    """
    if text := environ.get("SYNCBED_CPUS"):
        try:
            cores = float(text)
        except ValueError:
            raise EnvironmentFault(f"SYNCBED_CPUS={text}: a number of cores") from None
    else:
        cores = cpu_quota(root) or len(os.sched_getaffinity(0))
    return max(1, int(cores / _whole(environ, "LOCAL_WORLD_SIZE", 1, "1")))


def interface(master_addr: str, master_port: int) -> str:
    """Name of the one network interface that routes to the master. Raises EnvironmentFault."""
    import psutil

    try:
        family, kind, _, _, address = socket.getaddrinfo(master_addr, master_port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # datagram: chooses a route, sends nothing
            mine = probe.getsockname()[0]
    except OSError as error:
        raise EnvironmentFault(f"MASTER_ADDR={master_addr}: no route to it ({error.strerror or error})") from None
    # Rank 0 reaches its own address through loopback; the address it is known by is still that of the real interface.
    for name, addresses in psutil.net_if_addrs().items():
        if any(a.address.split("%")[0] == mine for a in addresses):
            return name
    if mine.startswith("127."):
        return "lo"  # all of 127.0.0.0/8 is loopback, but only 127.0.0.1 is listed
    raise EnvironmentFault(f"MASTER_ADDR={master_addr}: no interface here has the address {mine} that routes to it")


def settle(thread_count: int, interface_name: str, environ=os.environ) -> None:
    """Set what OpenMP, MKL and Gloo read when torch is imported.

    PASSIVE: waiting OpenMP threads sleep. Spinning ones took 2.6 times the step time where ranks
    share cores.
    """
    environ["OMP_NUM_THREADS"] = environ["MKL_NUM_THREADS"] = str(thread_count)
    environ["OMP_WAIT_POLICY"] = "PASSIVE"
    environ["GLOO_SOCKET_IFNAME"] = interface_name


def keep_freed_memory() -> None:
    """Let the C library keep what is freed for the next tensor, whatever its size.

    Does nothing where it is not glibc.

    By default memory of 32 MB and more goes back to the kernel at once, and all the gradients in
    one tensor are more: the kernel clears the pages of the next one, which takes ten times as long
    as to fill them (4 tensors of 37 MB:
    155 ms against 27 ms), and a step makes some. Source: mallopt(3).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        for parameter in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
            mallopt(parameter, KEPT_BYTES)


def has_bf16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this CPU has bfloat16 instructions (x86: AVX-512 BF16 or AMX; Arm: BF16)."""
    try:
        words = set(cpuinfo.read_text().split())
    except OSError:
        return False
    return bool(words & {"avx512_bf16", "amx_bf16", "bf16"})
