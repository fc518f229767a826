"""Amounts that users give: whole numbers, cores, memory, disk."""

import re

from monitor.errors import UserError

_SHARE = 0.8  # of the host's memory, over all nodes; the rest is for Prometheus, Grafana and the host
_LEAST_MEMORY = 512 * 2**20  # torch alone takes 300 MiB
_LEAST_DISK, _MOST_DISK = 2**20, 10**6 * 2**30
_UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30}


def whole(name: str, text: str, low: int, high: int) -> int:
    """The whole number from `low` to `high` that a setting's text gives. Raises UserError."""
    if not re.fullmatch(r"[0-9]{1,9}", text) or not low <= int(text) <= high:
        raise UserError(f"{name}={text}: a whole number from {low} to {high}")
    return int(text)


def cores(text: str | None, nodes: int, host: int) -> float:
    """CPUS= of a node, by default an equal share of the host's. Raises UserError."""
    if text is None:
        return int(1000 * host / nodes) / 1000  # down: the shares together are never more than the host
    message = f"CPUS={text}: cores per node, a number from 0.05 to the host's {host}"
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?|\.[0-9]+", text) or not 0.05 <= float(text) <= host:
        raise UserError(message)
    return round(float(text), 3)


def memory(text: str | None, nodes: int, host: int) -> int:
    """MEMORY= of a node in bytes, by default an equal share of most of the host's. Raises UserError."""
    least, most = _LEAST_MEMORY // 2**20, host // 2**20
    if text is None:
        share = int(host * _SHARE / nodes) // 2**20
        if share < least:
            fit = max(1, share * nodes // least)
            raise UserError(f"NODES={nodes}: {share} MiB of memory a node, {least} are needed; NODES={fit} would fit")
        return share * 2**20
    size = _bytes(text)
    if not _LEAST_MEMORY <= size <= host:
        raise UserError(f"MEMORY={text}: memory per node from {least}m to the host's {most}m, such as 2g or 1500m")
    return size // 4096 * 4096  # the kernel counts pages


def disk(text: str) -> int:
    """DISK= of a node in bytes. Raises UserError."""
    size = _bytes(text)
    if not _LEAST_DISK <= size <= _MOST_DISK:
        raise UserError(f"DISK={text}: what a node may hold in /runs, from 1m to 1000000g, such as 8g or 500m")
    return size


def _bytes(text: str) -> int:
    """An amount with or without a unit; 0 for anything else."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]+)?)([bkmg]?)(?:i?b)?", text.strip().lower())
    return int(float(match[1]) * _UNITS[match[2]]) if match else 0
