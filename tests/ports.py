"""Ports for tests: free when they are given, and nothing takes them before they are used, often seconds later.

Port 0 would give one of those that the kernel also gives to whoever connects somewhere meanwhile.
"""

from node import facts

_given: set[int] = set()


def free_port() -> int:
    """One that was not given before."""
    while (port := facts.free_port()) in _given:
        pass
    _given.add(port)
    return port
