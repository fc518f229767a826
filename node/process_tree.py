"""CPU and memory of processes and all their descendants: a node without a container has no cgroup of its own."""

from contextlib import suppress

import psutil

from node import cgroup
from node.cgroup import Usage


class ProcessTree:
    """Reads the trees below some processes. Counters only grow, also when a child ends: its parent carries its time."""

    def __init__(self, pids: list[int]):
        self._pids = pids
        self._user = self._system = 0.0
        self._peak_bytes = 0

    def read(self) -> Usage:
        """Working set and usage are both the sum of the resident sets, in which shared pages count once per process;
        the peak is the highest such sum read so far. All None once every process is gone."""
        members = []
        for pid in self._pids:
            with suppress(psutil.Error):
                top = psutil.Process(pid)
                members += [top, *top.children(recursive=True)]
        if not members:
            return Usage()
        user = system = 0.0
        resident = alive = 0
        for process in members:
            try:
                with process.oneshot():
                    cpu, memory = process.cpu_times(), process.memory_info()
            except psutil.Error:
                continue
            user += cpu.user + cpu.children_user
            system += cpu.system + cpu.children_system
            resident += memory.rss
            alive += 1
        # A child that ends between two of these readings is missing from one sum; its parent has it in the next.
        self._user, self._system = max(self._user, user), max(self._system, system)
        self._peak_bytes = max(self._peak_bytes, resident)
        return Usage(
            cpu_seconds=self._user + self._system,
            cpu_user_seconds=self._user,
            cpu_system_seconds=self._system,
            memory_usage_bytes=resident,
            memory_inactive_file_bytes=0,
            memory_peak_bytes=self._peak_bytes,
            processes=alive,
            open_files=cgroup.open_files(cgroup.PROC_ROOT, [str(process.pid) for process in members]),
        )
