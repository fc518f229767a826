"""What a result says of the machine that it was made on, and of this syncbed."""

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil


def host() -> dict:
    """The machine that holds the nodes, as far as the orchestrator can see it."""
    return {
        "system": platform.platform(),
        "cpu": cpu_model(),
        "cores": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
    }


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
