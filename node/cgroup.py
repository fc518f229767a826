"""What the kernel counts for the control group and the network namespace this process lives in.

    usage = read()                      # of this process's own cgroup, version 1, 2 or a mix of both
    usage.memory_working_set_bytes      # None where the kernel does not say

Both roots are parameters, so that the readers are tested on folders that look like other machines. A container often
has its own cgroup mounted *as* the root of a controller, while /proc/self/cgroup still gives the path on the host; so a
path that does not exist below the root means that the root itself is ours.

Sources: Linux Documentation/admin-guide/cgroup-v1/ and cgroup-v2.rst; proc_net_dev(5).
"""

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from io import FileIO
from pathlib import Path

CGROUP_ROOT, PROC_ROOT = Path("/sys/fs/cgroup"), Path("/proc")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_NO_LIMIT_FROM = 2**60  # version 1 says "no limit" as the largest multiple of the page size below 2**63


@dataclass(frozen=True)
class Usage:
    """One reading. Counters run since the cgroup was made. None: this kernel or this cgroup does not say."""

    cpu_seconds: float | None = None  # user + system, the kernel's exact total
    cpu_user_seconds: float | None = None
    cpu_system_seconds: float | None = None
    cpu_throttled_seconds: float | None = None  # time in which the quota was used up and tasks had to wait
    cpu_periods: int | None = None  # enforcement periods that have passed with work to do
    cpu_throttled_periods: int | None = None
    cpu_limit_cores: float | None = None  # quota / period, the tightest of this cgroup and those above it
    memory_usage_bytes: int | None = None  # raw: page cache included
    memory_inactive_file_bytes: int | None = None  # page cache the kernel gives back first
    memory_peak_bytes: int | None = None  # highest raw usage
    memory_limit_bytes: int | None = None  # the tightest of this cgroup and those above it
    oom_kills: int | None = None
    processes: int | None = None  # in this cgroup itself
    tasks: int | None = None  # processes and threads, what a pids limit counts
    open_files: int | None = None  # file descriptors of all its processes

    @property
    def memory_working_set_bytes(self) -> int | None:
        """Usage minus inactive file cache, never below 0: the two files are not read at the same instant."""
        if self.memory_usage_bytes is None or self.memory_inactive_file_bytes is None:
            return None
        return max(0, self.memory_usage_bytes - self.memory_inactive_file_bytes)


@dataclass(frozen=True)
class Interface:
    """Counters of one network interface since it was made."""

    receive_bytes: int
    receive_packets: int
    receive_errors: int
    receive_drops: int
    transmit_bytes: int
    transmit_packets: int
    transmit_errors: int
    transmit_drops: int


def read(cgroup_root: Path = CGROUP_ROOT, proc_root: Path = PROC_ROOT) -> Usage:
    """Read the cgroup of this process. Never raises for a file that is missing or cannot be read: None instead."""
    values: dict = {}
    for reader, folders in _readers(cgroup_root, proc_root):
        values |= reader(folders)
    values["open_files"] = open_files(proc_root, values.pop("members", ()))
    return Usage(**values)


def read_network(proc_root: Path = PROC_ROOT) -> dict[str, Interface]:
    """Every interface of this process's network namespace by name; empty when /proc/net/dev cannot be read."""
    interfaces = {}
    for line in (_text(f"{proc_root}/net/dev") or "").splitlines():
        name, colon, rest = line.rpartition(":")  # an alias such as eth0:1 has a colon of its own
        numbers = rest.split()
        if colon and len(numbers) >= 16 and all(n.isdigit() for n in numbers):
            interfaces[name.strip()] = Interface(*map(int, numbers[0:4] + numbers[8:12]))
    return interfaces


# Where a controller's files are

Folders = tuple[str, ...]  # our own first, then those above it, as far up as can be seen


@cache  # a process stays in its cgroup, and paths take longer to make than files to read
def _readers(cgroup_root: Path, proc_root: Path) -> tuple[tuple[Callable[[Folders], dict], Folders], ...]:
    """What reads each controller that is mounted here, and from where."""
    paths, readers = _paths(proc_root), []
    for controller, (read_v1, read_v2) in _READERS.items():
        if (place := _v1_place(cgroup_root, paths, controller)) is not None:
            readers.append((read_v1, _upwards(*place)))
        elif (place := _v2_place(cgroup_root, paths)) is not None:
            readers.append((read_v2, _upwards(*place)))
    return tuple(readers)


def _paths(proc_root: Path) -> dict[str, str]:
    """This process's path in each hierarchy, by controller; version 2 has the empty name."""
    paths = {}
    for line in (_text(f"{proc_root}/self/cgroup") or "").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        paths |= dict.fromkeys(controllers.split(","), path)
        if "," in controllers:
            paths[controllers] = path  # mounted under this name where no link per controller was made
    return paths


def _v1_place(root: Path, paths: dict[str, str], controller: str) -> tuple[Path, Path] | None:
    """(our folder, the controller's root) in version 1, or None when the controller is not mounted there."""
    if (root / "cgroup.controllers").exists():  # version 2 alone: a folder "cpu" here would be somebody's cgroup
        return None
    names = [controller, *(name for name in paths if controller in name.split(",") and name != controller)]
    tops = [root / name for name in names if (root / name).is_dir()]
    return (_below(tops[0], paths.get(controller, "/")), tops[0]) if tops else None


def _v2_place(root: Path, paths: dict[str, str]) -> tuple[Path, Path] | None:
    for top in (root, root / "unified"):
        if (top / "cgroup.controllers").exists():
            return _below(top, paths.get("", "/")), top
    return None


def _below(top: Path, path: str) -> Path:
    """Our folder; the top itself where the path is another namespace's."""
    folder = top / path.strip("/")
    return folder if ".." not in folder.parts and folder.is_dir() else top


# What the files say


def _cpu_v1(folders: Folders) -> dict:
    return _cpu(folders, "throttled_time", 1e-9, _quota_v1)


def _cpu_v2(folders: Folders) -> dict:
    return _cpu(folders, "throttled_usec", 1e-6, _quota_v2)


def _cpu(folders: Folders, throttled: str, unit: float, quota: Callable[[str], float | None]) -> dict:
    """`throttled`: the name of the time that tasks waited for the quota, in `unit` seconds."""
    stat = _table(f"{folders[0]}/cpu.stat")
    return {
        "cpu_throttled_seconds": _scaled(stat.get(throttled), unit),
        "cpu_periods": stat.get("nr_periods"),
        "cpu_throttled_periods": stat.get("nr_throttled"),
        "cpu_limit_cores": _tightest(folders, quota),
    }


def _cpuacct_v1(folders: Folders) -> dict:
    # Whole ticks, but each of the two only ever grows, which the split of the exact total does not.
    stat = _table(f"{folders[0]}/cpuacct.stat")
    return {
        "cpu_seconds": _scaled(_number(f"{folders[0]}/cpuacct.usage"), 1e-9),
        "cpu_user_seconds": _scaled(stat.get("user"), 1 / _TICKS_PER_SECOND),
        "cpu_system_seconds": _scaled(stat.get("system"), 1 / _TICKS_PER_SECOND),
    }


def _cpuacct_v2(folders: Folders) -> dict:
    stat = _table(f"{folders[0]}/cpu.stat")
    return {f"cpu_{out}seconds": _scaled(stat.get(f"{key}_usec"), 1e-6) for key, out in _CPU_V2_NAMES.items()}


_CPU_V2_NAMES = {"usage": "", "user": "user_", "system": "system_"}


def _memory_v1(folders: Folders) -> dict:
    return {
        "memory_usage_bytes": _number(f"{folders[0]}/memory.usage_in_bytes"),
        "memory_inactive_file_bytes": _table(f"{folders[0]}/memory.stat").get("total_inactive_file"),
        "memory_peak_bytes": _number(f"{folders[0]}/memory.max_usage_in_bytes"),
        "memory_limit_bytes": _tightest(folders, lambda f: _limit(f"{f}/memory.limit_in_bytes")),
        "oom_kills": _table(f"{folders[0]}/memory.oom_control").get("oom_kill"),  # since Linux 4.13
    }


def _memory_v2(folders: Folders) -> dict:
    return {
        "memory_usage_bytes": _number(f"{folders[0]}/memory.current"),
        "memory_inactive_file_bytes": _table(f"{folders[0]}/memory.stat").get("inactive_file"),
        "memory_peak_bytes": _number(f"{folders[0]}/memory.peak"),  # since Linux 5.19
        "memory_limit_bytes": _tightest(folders, lambda f: _limit(f"{f}/memory.max")),
        "oom_kills": _table(f"{folders[0]}/memory.events").get("oom_kill"),
    }


def _pids(folders: Folders) -> dict:
    members = _text(f"{folders[0]}/cgroup.procs")
    if members is None:
        return {"tasks": _number(f"{folders[0]}/pids.current")}
    pids = members.split()
    return {"processes": len(pids), "members": pids, "tasks": _number(f"{folders[0]}/pids.current")}


def open_files(proc_root: Path, pids: Collection[str]) -> int | None:
    """File descriptors of those of these processes that live; None where one of them does not show its own."""
    counts, has_size = [], _counts_open_files(proc_root)
    for pid in pids:
        folder = f"{proc_root}/{pid}/fd"
        try:
            # To list them is the dearest part of a scrape on a host with many. No object for each is needed.
            counts.append((has_size and os.stat(folder).st_size) or len(os.listdir(folder)))  # noqa: PTH116, PTH208
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError:  # the kernel shows no other user's
            if not _shows_none(f"{proc_root}/{pid}"):
                return None
    return sum(counts) if counts else None


def _shows_none(folder: str) -> bool:
    """Whether the process has ended and waits for its parent, or is this user's and hidden, as launchers are."""
    try:
        if os.stat(folder).st_uid == os.geteuid():  # noqa: PTH116
            return True
    except OSError:
        return True  # it is gone by now
    return (_text(f"{folder}/stat") or "").rpartition(")")[2].split()[:1] == ["Z"]


@cache
def _counts_open_files(proc_root: Path) -> bool:
    """Whether the size of a process's folder of descriptors is their number: since Linux 6.2. proc_pid_fd(5)."""
    release = (_text(f"{proc_root}/sys/kernel/osrelease") or "").split(".")
    return all(part.isdigit() for part in release[:2]) and tuple(map(int, release[:2])) >= (6, 2)


_READERS = {  # controller: (version 1, version 2)
    "cpu": (_cpu_v1, _cpu_v2),
    "cpuacct": (_cpuacct_v1, _cpuacct_v2),
    "memory": (_memory_v1, _memory_v2),
    "pids": (_pids, _pids),
}


def _quota_v1(folder: str) -> float | None:
    quota, period = _number(f"{folder}/cpu.cfs_quota_us"), _number(f"{folder}/cpu.cfs_period_us")
    return quota / period if quota is not None and quota > 0 and period else None  # -1: no limit


def _quota_v2(folder: str) -> float | None:
    quota, _, period = (_text(f"{folder}/cpu.max") or "max").strip().partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None


def _limit(file: str) -> int | None:
    value = _number(file)  # version 2 writes "max", which is no number
    return value if value is not None and value < _NO_LIMIT_FROM else None


def _tightest(folders: Folders, read_one: Callable) -> float | int | None:
    """The smallest limit of this cgroup and those above it, as far up as can be seen."""
    return min((value for folder in folders if (value := read_one(folder)) is not None), default=None)


def _upwards(folder: Path, top: Path) -> Folders:
    folders = [folder]
    while folders[-1] != top:
        folders.append(folders[-1].parent)
    return tuple(map(str, folders))


def _text(file: str) -> str | None:
    try:
        with FileIO(file) as stream:  # no buffer and no text layer: half the time
            return stream.readall().decode()
    except (OSError, UnicodeDecodeError):  # not mounted, not permitted, or the controller is not enabled here
        return None


def _number(file: str) -> int | None:
    text = (_text(file) or "").strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _table(file: str) -> dict[str, int]:
    """Lines of "name number"."""
    pairs = (line.split() for line in (_text(file) or "").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _scaled(value: int | None, unit: float) -> float | None:
    return None if value is None else value * unit
