"""What a result says of the machine that it was made on, and of this syncbed."""

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from monitor.results.parts import Host

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def process_start(pid: int) -> str | None:
    """What tells a process from every other that had or will have its id: the boot, and the clock tick of its start.

    The tick counts from the boot: setting the clock does not change it, as it does psutil's create_time. None for a
    process that has ended, a zombie too, and where the system does not tell.
    """
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return None if state in "ZX" else f"{BOOT_ID.read_text().strip()} {fields[18]}"  # field 22 of proc(5)
    except (OSError, IndexError, ValueError):
        return None


def host() -> Host:
    """The machine that holds the nodes, as far as the orchestrator can see it."""
    return Host(
        system=platform.platform(),
        cpu=cpu_model(),
        cores=psutil.cpu_count(),
        memory_bytes=psutil.virtual_memory().total,
    )


def cpu_model() -> str:
    """The processor's name from /proc/cpuinfo, or what the platform module knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def own_version() -> str:
    """syncbed's version; "source" when it runs from a folder that was never installed."""
    try:
        return version("syncbed")
    except PackageNotFoundError:
        return "source"
