"""What a process of a node asks the kernel for: to be hidden from its own user, and to end with its parent."""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4  # prctl(2)


def hide() -> None:
    """Keep this process's memory, descriptors and environment from its own user: prctl(2), ptrace(2), proc(5).

    What it starts is hidden until it is another program.
    """
    if ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        sys.exit("this kernel does not hide a process from its user")


def show() -> None:
    """Undo `hide`, in a fork."""
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """The kernel kills this process should its parent be killed. `parent`: its process id."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was killed before the kernel knew
        os._exit(1)
