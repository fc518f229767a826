"""A process that has imported torch and forks ranks, so that the next run's ranks start at once.

    python -m node.warm          in a node's container; the orchestrator starts it, detached

Importing torch takes seconds of CPU. This process does it once per container, with one thread, and waits on a socket.
A launcher sends it a rank's environment and its own standard output and error (SCM_RIGHTS, unix(7)); the fork becomes
that rank. Nothing of an earlier rank is in it: each is a fork of the same process, which never trains.

- It ends with its container, after IDLE_SECONDS without a run, and where another program takes its place.
- A rank dies with its launcher (the connection closes) and with this process (prctl(2), PR_SET_PDEATHSIG).
- Without it, or where it does not answer, a launcher starts its rank as a new process.

The process is hidden from its user, as launchers are: a rank can neither look into it nor change it.
"""

import array
import contextlib
import ctypes
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import struct
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from node.hiding import die_with_parent, hide, show
from node.lock import STATE
from node.strays import started_by_docker

MODULE = "node.warm"
SOCKET = STATE / "warm.sock"
IDLE_SECONDS = 900.0
LEAST_MEMORY = 1 << 30  # bytes of a node that has one: it takes about 0.3 GiB with a CUDA build of torch
MOST_REQUEST = 1 << 20
PREFERRED_VICTIM = b"500"  # of the kernel, should memory run out: the rank, not this process. proc(5), oom_score_adj
_LENGTH = struct.Struct("!I")


def is_there(proc: Path = Path("/proc")) -> bool:
    """Whether one lives in this container, and runs. What a rank has started never counts."""
    return any(not is_stopped for _, is_stopped in started_by_docker(MODULE, proc))


def warm_command(python: str) -> list[str]:
    """The command line that starts one."""
    return [python, "-m", MODULE]


class WarmRank:
    """A rank that was forked; the part of subprocess.Popen that a launcher needs."""

    def __init__(self, connection: socket.socket, pid: int):
        self._connection, self.pid = connection, pid

    def wait(self) -> int:
        """Its exit code, negative for a signal. It was killed where its parent has ended."""
        answer = self._connection.makefile("rb").readline()
        return int(answer) if answer.endswith(b"\n") else -signal.SIGKILL


def start(env: dict[str, str]) -> WarmRank | None:
    """Ask for a rank with this environment, and this process's standard output and error. None where nobody answers."""
    request = json.dumps(env).encode()
    connection = _connect()
    if connection is None:
        return None
    with contextlib.suppress(OSError, ValueError):
        descriptors = array.array("i", [1, 2])
        head = _LENGTH.pack(len(request))
        connection.sendmsg([head], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
        connection.sendall(request)
        return WarmRank(connection, int(_line(connection)))
    connection.close()
    return None


def _connect() -> socket.socket | None:
    if not is_there():
        return None
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(SOCKET))
    except OSError:  # it does not listen yet: the rank itself is as quick
        connection.close()
        return None
    return connection


def end() -> None:
    """End it, where there is one: its memory is needed."""
    for pid, _ in started_by_docker(MODULE):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _line(connection: socket.socket) -> bytes:
    """One line, and not a byte more."""
    text = b""
    while not text.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte:
            raise ConnectionError("it has ended")
        text += byte
    return text


class Server:
    """The process that forks. One thread, no torch object of its own."""

    def __init__(self, listener: socket.socket):
        self._listener = listener
        self._ranks: dict[int, socket.socket] = {}  # launchers' connections by process id
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._wakeup, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # it wakes the selector
        self._selector.register(self._wakeup, selectors.EVENT_READ)

    def serve(self) -> None:
        """Fork ranks until nobody has asked for one in IDLE_SECONDS, with none left."""
        while True:
            ready = self._selector.select(None if self._ranks else IDLE_SECONDS)
            if not ready and not self._ranks:
                return
            for key, _ in ready:
                if key.fileobj is self._listener:
                    self._answer(self._listener.accept()[0])
                elif key.fileobj == self._wakeup:
                    os.read(self._wakeup, 4096)
                else:
                    self._gone(key.data)
            self._reap()

    def _answer(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(5)
            env, descriptors = _receive(connection)
        except (OSError, ValueError):
            connection.close()
            return
        pid = os.fork()
        if pid == 0:
            become_rank(env, descriptors, os.getppid())
        with contextlib.suppress(OSError):  # it has done so itself, and is another program's by now
            os.setpgid(pid, pid)  # signals go to the group as soon as its launcher knows its id
        for descriptor in descriptors:
            os.close(descriptor)
        self._ranks[pid] = connection
        self._selector.register(connection, selectors.EVENT_READ, pid)
        with contextlib.suppress(OSError):  # its launcher is gone: seen when its connection is read
            connection.sendall(b"%d\n" % pid)

    def _gone(self, pid: int) -> None:
        """A launcher says nothing more: its connection has closed, and its rank is to end."""
        connection = self._ranks[pid]
        with contextlib.suppress(OSError):
            if connection.recv(1):
                return
        self._selector.unregister(connection)
        _kill_group(pid)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                connection = self._ranks.pop(pid)
                with contextlib.suppress(KeyError, ValueError):
                    self._selector.unregister(connection)
                with contextlib.suppress(OSError):
                    connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
                connection.close()


def _receive(connection: socket.socket) -> tuple[dict[str, str], list[int]]:
    """A rank's environment, and descriptors for its output and errors. Raises OSError and ValueError."""
    head, rights, _, _ = connection.recvmsg(_LENGTH.size, socket.CMSG_SPACE(2 * 4))
    descriptors = array.array("i")
    for level, kind, data in rights:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) // 4 * 4])
    try:
        (length,) = _LENGTH.unpack(head) if len(head) == _LENGTH.size else (0,)
        if len(descriptors) != 2 or not 0 < length <= MOST_REQUEST:
            raise ValueError("no request")
        text = b""
        while len(text) < length:
            part = connection.recv(length - len(text))
            if not part:
                raise ValueError("a part of a request")
            text += part
        env = json.loads(text)
        if not isinstance(env, dict) or not all(isinstance(value, str) for value in env.values()):
            raise ValueError("no environment")
    except (OSError, ValueError, RecursionError):
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    return env, list(descriptors)


def _kill_group(pid: int) -> None:
    """The rank and its helpers. It leads its group from its first moments on."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)


def become_rank(env: dict[str, str], descriptors: list[int], parent: int) -> NoReturn:
    """In the fork: be as a new process of this environment would be, and run the rank."""
    try:
        os.setpgid(0, 0)
        die_with_parent(parent)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        nothing = os.open(os.devnull, os.O_RDWR)
        for number, descriptor in enumerate((nothing, *descriptors)):
            os.dup2(descriptor, number)
        os.closerange(3, 1 << 16)
        os.environ.clear()
        os.environ.update(env)
        show()  # as any other process of this user
        _name_as("python", "-m", "trainer")
        _prefer_as_victim()
        sys.argv = ["trainer"]
        gc.unfreeze()
        gc.enable()
        from trainer.__main__ import main

        main()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _prefer_as_victim() -> None:
    score = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
    os.write(score, PREFERRED_VICTIM)
    os.close(score)


def _name_as(*command: str) -> None:
    """Have this process listed with another command line, no longer than its own: proc_pid_stat(5), arg_start."""
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    text = b"".join(word.encode() + b"\0" for word in command)
    if start > 0 and len(text) <= end - start:
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, text, len(text))


def listen() -> socket.socket:
    """The socket, in place of whatever is there."""
    STATE.mkdir(parents=True, exist_ok=True)
    SOCKET.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(SOCKET))
    listener.listen(64)
    return listener


def warm_up() -> None:
    """Import what each rank imports, but for what reads a rank's environment when it is imported."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # its threads would not be in a fork
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # as trainer/environment.py settles it
    for module in ("trainer.__main__", "trainer.run.loop", "trainer.wire.collectives", "trainer.servers.server"):
        importlib.import_module(module)
    gc.collect()
    gc.disable()
    gc.freeze()  # collections in a fork would copy the pages of all that is here


def main() -> int:
    """Import, then listen."""
    hide()
    for pid, _ in started_by_docker(MODULE):
        if pid != os.getpid():
            os.kill(pid, signal.SIGKILL)  # a rank has stopped it, or it was started at the same moment
    warm_up()
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        print("warm: a library has started threads, which a fork would lack", file=sys.stderr)
        return 1
    Server(listen()).serve()
    SOCKET.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
