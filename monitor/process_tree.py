"""CPU and memory of a process and all its descendants: a node without a container has no cgroup of its own."""

import psutil

from monitor.cgroup import Usage


class ProcessTree:
    """Reads the tree below one process. Counters only grow, also when a child ends: its parent carries its time."""

    def __init__(self, pid: int):
        self._pid = pid
        self._user = self._system = 0.0
        self._peak_bytes = 0

    def read(self) -> Usage:
        """Working set and usage are both the sum of the resident sets, in which shared pages count once per process;
        the peak is the highest such sum read so far. All None once the process is gone."""
        try:
            top = psutil.Process(self._pid)
            members = [top, *top.children(recursive=True)]
        except psutil.Error:
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
        )
