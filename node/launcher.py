"""Inside a node, between the orchestrator and a rank. Four commands, all started through the runtime:

    python -m node.launcher check     print one JSON object: what this node is, as seen from inside
    python -m node.launcher run MARK  read one JSON request on stdin, run one rank, end with `exited`
    python -m node.launcher hold ID   hold the node as a run does, until stdin ends; print held or busy
    python -m node.launcher end ID    kill the launchers and ranks of run ID: for launchers that do not listen any more

`run` holds the node's lock for as long as the rank lives, so two runs never share a node, and the kernel lets go of it
whatever happens. Its stdin is the orchestrator's hand: a line TERM, KILL, STOP or CONT is passed on to the rank, and
end of file (the orchestrator is gone, even by kill -9) kills the rank at once. No rank outlives the command that asked
for it.

The rank writes to the launcher's standard output, and is the same user's. So the launcher signs what it says, under a
key that it reads with the request, and hides its memory and descriptors from its own user. MARK is by what others find
the process then (node/leftovers.py).
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from functools import partial
from typing import Any, TypedDict

from node import cgroup, disk, limits, mpi
from node import lock as node_lock
from node.facts import node_facts, shaped
from node.leftovers import end_run
from node.lock import await_holder, lock_holder, take_lock
from node.signature import Signer
from node.strays import end_strays
from trainer.events import Busy, Exited, Failed, Held

PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4  # prctl(2)
BUSY = 3  # exit code: another run holds the node


class _Rank(TypedDict):
    run: str  # its id
    key: str  # under which this process signs what it says
    rank: int
    local_rank: int  # its number within the node
    env: dict[str, str]  # added to this process's
    argv: list[str]


class Request(_Rank, total=False):
    """What `run` reads."""

    wait: bool  # start the rank only on a line GO
    limits: limits.Limits  # that must be in force in this node
    shaped: bool  # whether this node's link must be shaped; without it either will do
    disk: disk.Bound  # of the volume of runs, where this node has one
    mpi: dict  # for a rank that takes part in MPI, see node.mpi.Manager.start


def main() -> int:
    hide()  # before anything is read
    match sys.argv[1:]:
        case ["check"]:
            return check()
        case ["run", _]:
            return run(json.loads(sys.stdin.readline()))
        case ["hold", who]:
            return hold(who)
        case ["end", run_id]:
            return end(run_id)
    print("usage: python -m node.launcher check|run MARK|hold ID|end ID", file=sys.stderr)
    return 2


def hide() -> None:
    """Keep this process's memory, descriptors and environment from its own user: prctl(2), ptrace(2), proc(5).

    What it starts is hidden until it is another program.
    """
    if ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        sys.exit("this kernel does not hide a process from its user")


def check() -> int:
    """Print this node's facts as one JSON object. Ends ranks that no launcher holds."""
    print(json.dumps(node_facts()))
    return 0


def hold(who: str) -> int:
    """Hold the node until stdin ends. `who`: shown to runs that want it meanwhile. Returns BUSY when one has it."""
    lock = take_lock(who)
    print("held" if lock else "busy", flush=True)
    if lock is None:
        return BUSY
    with lock:
        sys.stdin.read()
    return 0


def end(run_id: str) -> int:
    """Kill the launchers and ranks of a run, and wait until they have ended."""
    end_run(run_id)
    end_strays()
    return 0


def run(request: Request) -> int:
    """Run one rank to its end.

    The launcher of the node's first rank (local_rank 0) takes the lock for its run; those of the others wait for that.
    Says Held; or Busy, and returns BUSY, when another run holds the node. Otherwise returns 0 or 1 as the rank ended.
    """
    rank, metrics, signer = request["rank"], node_lock.STATE / "metrics", Signer(request["key"])
    if request["local_rank"] == 0:
        end_strays()  # of an earlier run; one of them may hold the lock
    lock = take_lock(request["run"], metrics, partial(_clear, request)) if request["local_rank"] == 0 else None
    if lock is None and await_holder(request["run"]) != request["run"]:
        signer.write(Busy(rank=rank, run=lock_holder() or "unknown"))
        return BUSY
    signer.write(Held(rank=rank))
    process = RankProcess()
    signal.signal(signal.SIGTERM, lambda *_: process.send(signal.SIGTERM))
    threading.Thread(target=process.obey, daemon=True).start()
    if request.get("wait"):
        process.go.wait()
    if problem := _problem(request):
        signer.write(Failed(rank=rank, kind="own", message=problem))
        return 1
    # Whatever is started from here on belongs to this run and this node.
    os.environ.update(SYNCBED_RUN_ID=request["run"], SYNCBED_STATE=str(node_lock.STATE))
    env = os.environ | request["env"] | {"PROMETHEUS_MULTIPROC_DIR": str(metrics)}
    return 0 if _run_to_end(process, request, env, signer) == 0 else 1


def _clear(request: Request) -> None:
    """In a node of its own: begin with nothing of an earlier run."""
    if "disk" in request:
        disk.clear(request["disk"], request["run"], request["rank"] == 0)


def _problem(request: Request) -> str | None:
    """What in this node is not as the request wants it, in one line."""
    problem = limits.await_inside(request["limits"]) if "limits" in request else None
    if problem or "shaped" not in request or shaped() == request["shaped"]:
        return problem
    if request["shaped"]:
        return "its link is not shaped any more"
    return "its link is shaped, which was not asked for"


def _run_to_end(process: "RankProcess", request: Request, env: dict[str, str], signer: Signer) -> int:
    """Start the rank, and MPI's process manager beside it where it needs one; report its end. Returns its exit code."""
    rank, kills_before = request["rank"], cgroup.read().oom_kills or 0
    proxy = request.get("mpi")
    manager = mpi.Manager(rank, _spawn, signer.write) if proxy else None
    watch = disk.Watch(request.get("disk"), partial(process.send, signal.SIGKILL))
    try:
        if manager and proxy:
            variables, connection = manager.start(proxy)
            process.start(request["argv"], env | variables, pass_fds=[connection])
            os.close(connection)
        else:
            process.start(request["argv"], env)
        with watch:
            code = process.wait()
    except mpi.ManagerFault as fault:
        signer.write(Failed(rank=rank, kind="own", message=str(fault)))
        code = 1
    end_strays()  # what the rank started and left
    if watch.problem:
        signer.write(Failed(rank=rank, kind="disk", message=watch.problem))
        code = 1
    signer.write(exited(rank, code, kills_before, cgroup.read()))
    if manager:
        manager.end(orderly=code == 0)
    return code


def exited(rank: int, code: int, kills_before: int, usage: cgroup.Usage) -> Exited:
    """How a rank ended.

    `code`: as subprocess gives it, negative for a signal. `kills_before`: out-of-memory kills that the node had counted
    when the rank started.
    """
    out_of_memory = (usage.oom_kills or 0) > kills_before
    limit, peak = usage.memory_limit_bytes, usage.memory_peak_bytes
    if limit is not None and peak is not None and peak > limit:
        peak = limit  # the peak is of a time when the limit was another; now it was reached, else nothing was killed
    return Exited(
        rank=rank,
        code=code if code >= 0 else None,
        signal=signal.Signals(-code).name if code < 0 else None,
        out_of_memory=out_of_memory,
        memory_limit_bytes=limit if out_of_memory else None,
        memory_peak_bytes=peak if out_of_memory else None,
    )


class RankProcess:
    """The rank's process, once there is one, under the orchestrator's hand. `go` is set by a line GO."""

    def __init__(self):
        self.go = threading.Event()
        self._process: subprocess.Popen | None = None
        self._lock = threading.RLock()  # a signal's handler may interrupt its holder

    def start(self, argv: list[str], env: dict[str, str], **options: Any) -> None:
        """`options`: of subprocess.Popen."""
        process = _spawn(argv, env, **options)
        with self._lock:  # never had where `send` is ending this process
            self._process = process

    def wait(self) -> int:
        """Its exit code, as subprocess gives it; the rank must have been started."""
        assert self._process is not None
        return self._process.wait()

    def obey(self) -> None:
        """Pass on what the orchestrator says until it is gone; then end the rank, frozen or not."""
        for line in sys.stdin:
            match line.strip():
                case "GO":
                    self.go.set()
                case "TERM" | "KILL" as word:
                    self.send(signal.Signals["SIG" + word])
                case "STOP" | "CONT" as word if self._process:
                    self.send(signal.Signals["SIG" + word])
        self.send(signal.SIGKILL)

    def send(self, number: int) -> None:
        """Send it to the rank and its helpers. Where there is none yet, this process ends with all it has started."""
        with self._lock:
            if self._process is None:
                _end_at_once()
            else:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, number)


def _end_at_once() -> None:
    """A child that has not come as far as to die with this process is killed first."""
    import psutil

    for child in psutil.Process().children():
        child.kill()
    os._exit(1)


def _spawn(argv: list[str], env: dict[str, str], **options: Any) -> subprocess.Popen:
    """Start a process that dies with this one, in a group of its own: signals reach its helpers too."""
    return subprocess.Popen(
        argv,
        env=env,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=partial(_die_with, os.getpid()),
        **options,
    )


def _die_with(parent: int) -> None:
    """The kernel kills this process should its parent be killed. prctl(2)."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was killed before the kernel knew
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
