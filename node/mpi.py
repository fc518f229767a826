"""MPI without ssh, inside a node: MPICH's process manager, Hydra, beside our launcher.

    mpiexec            one a run, beside rank 0. With `-launcher manual` it starts nothing on other hosts: it prints one
                       command line per host and waits until somebody has run them. Every rank counts as a host.
    hydra_pmi_proxy    one a rank: that command line, run by the rank's own launcher
    python -m node.mpi    what the proxy takes for the MPI process. It hands its connection to the proxy (PMI_FD) to
                       the launcher, and waits for the end.
    python -m trainer  the rank, the launcher's child as in every other run. MPI_Init speaks PMI over that connection.

So Hydra does what MPI needs a process manager for (rank, size, exchange of addresses), and everything else of a rank's
life is as without MPI: its own output, lock, signals, exit code, out-of-memory. -disable-auto-cleanup: who is ended
when a rank is lost is the supervisor's decision. Sources: MPICH's "Using the Hydra Process Manager" (the options);
"PMI: A Scalable Parallel Process-Management Interface" (Balaji et al., EuroMPI 2010); `mpiexec -help` of MPICH 5.0.
"""

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer.events import Event, Failed, Proxies

PROXY = "hydra_pmi_proxy"
LINE, LAST_LINE = "HYDRA_LAUNCH: ", "HYDRA_LAUNCH_END"  # what `-launcher manual` prints
START_SECONDS = 20.0  # the supervisor takes longer silence of a launcher for its death
END_SECONDS = 3.0
HAND = "SYNCBED_MPI_HAND"  # the descriptor on which the connection is handed over
OURS = ("HYDRA_", "MPIEXEC_", "PMI_", "MPI_")  # what the environment may hold of another MPI's settings


class ManagerFault(Exception):
    """MPI's process manager did not come up. str() is one line."""


class Manager:
    """Hydra's processes beside one rank. They die with this process, which must have started them in its main thread.

    `spawn(argv, env, **options)` starts a process so that it does, and returns the Popen. `say`: writes an event as the
    launcher.
    """

    def __init__(self, rank: int, spawn: Callable[..., subprocess.Popen], say: Callable[[Event], None]):
        self.rank, self._spawn, self._say = rank, spawn, say
        self._processes: dict[str, subprocess.Popen] = {}
        self._hand: socket.socket | None = None
        self._ending = False
        self._env = {k: v for k, v in os.environ.items() if not k.startswith(OURS)}

    def start(self, request: dict) -> tuple[dict[str, str], int]:
        """The environment, and the descriptor in it, with which the rank may call MPI_Init.

        `request`: {"proxy": the command line}, or for rank 0 {"world_size", "host"}: then mpiexec is started, known to
        the others by the name `host`, and the proxies' command lines are said as an event. Raises ManagerFault.
        """
        proxy = request.get("proxy") or self._mpiexec(request["world_size"], request["host"])
        program, *flags = proxy
        if Path(program).resolve() != proxy_program().resolve():
            raise ManagerFault(f"{program[:200]!r} is not {proxy_program()}, the one proxy of MPI that is run here")
        self._hand, theirs = socket.socketpair()
        with theirs:
            descriptor = theirs.fileno()
            self._run(PROXY, [str(proxy_program()), *flags], {HAND: str(descriptor)}, stdout=2, pass_fds=[descriptor])
        self._hand.settimeout(START_SECONDS)
        try:
            variables, descriptors, _, _ = socket.recv_fds(self._hand, 1 << 16, 1)
        except TimeoutError:
            raise ManagerFault(f"MPI's process manager did not come up within {START_SECONDS:.0f} s") from None
        if not descriptors:
            raise ManagerFault("MPI's process manager ended before the rank was started")
        return json.loads(variables) | {"PMI_FD": str(descriptors[0])}, descriptors[0]

    def _mpiexec(self, world_size: int, host: str) -> list[str]:
        """Start mpiexec, say the proxies' command lines as an event, return rank 0's."""
        hosts = ",".join(f"rank-{rank}" for rank in range(world_size))  # names for Hydra only; nobody resolves them
        flags = f"-launcher manual -rmk user -genvnone -disable-auto-cleanup -localhost {host} -hosts {hosts} -ppn 1"
        command = [str(mpiexec()), *flags.split(), "-n", str(world_size), sys.executable, "-m", "node.mpi"]
        process = self._run("mpiexec", command, {}, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None  # a pipe
        proxies = []
        for line in process.stdout:
            if line.startswith(LAST_LINE):
                break
            if line.startswith(LINE):
                proxies.append(shlex.split(line.removeprefix(LINE)))
            else:
                sys.stderr.write(line)
        if len(proxies) != world_size:
            raise ManagerFault(f"mpiexec named {len(proxies)} proxies, {world_size} were asked for")
        threading.Thread(target=sys.stderr.writelines, args=(process.stdout,), daemon=True).start()
        self._say(Proxies(rank=self.rank, commands=proxies))
        return proxies[0]

    def _run(self, name: str, command: list[str], variables: dict[str, str], **options: Any) -> subprocess.Popen:
        process = self._processes[name] = self._spawn(command, self._env | variables, **options)
        threading.Thread(target=self._watch, args=(name, process), daemon=True).start()
        return process

    def _watch(self, name: str, process: subprocess.Popen) -> None:
        """Say so when somebody kills it. Ranks would go on until their next call of MPI_Finalize, and hang there."""
        code = process.wait()
        if code < 0 and not self._ending:
            text = f"MPI's process manager ({name}) was killed by {signal.Signals(-code).name}"
            self._say(Failed(rank=self.rank, kind="own", message=text))

    def end(self, orderly: bool) -> None:
        """Let Hydra's processes end, which takes them milliseconds when all ranks are done; kill what has not."""
        from node import ending

        self._ending = True
        _, *everything = ending.tree(os.getpid())  # Hydra's processes have one of their own beside them
        if self._hand:
            self._hand.close()
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS if orderly else 0)
        ending.kill(everything)


def mpiexec() -> Path:
    """MPICH's mpiexec of this Python's environment; never another MPI's that PATH may hold."""
    return Path(sys.executable).parent / "mpiexec"


def proxy_program() -> Path:
    """The proxy of that MPICH. The command line comes from another node, the program does not."""
    return mpiexec().with_name(PROXY)


def main() -> None:
    """The process that Hydra starts: hand over its connection, and stay until the launcher is done or gone."""
    with socket.socket(fileno=int(os.environ[HAND])) as launcher:
        connection = int(os.environ["PMI_FD"])
        variables = {k: v for k, v in os.environ.items() if k.startswith(("PMI_", "MPI_"))}
        socket.send_fds(launcher, [json.dumps(variables).encode()], [connection])
        os.close(connection)  # so that the proxy sees when the rank is gone
        launcher.recv(1)


if __name__ == "__main__":
    main()
