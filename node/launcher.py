"""Inside a node, between the orchestrator and a rank. Four commands, all started through the runtime:

    python -m node.launcher check    print one JSON object: what this node is, as seen from inside
    python -m node.launcher run      read one JSON request on stdin, run one rank, forward its output, end with `exited`
    python -m node.launcher hold ID  hold the node as a run does, until stdin ends; print held or busy
    python -m node.launcher end ID   kill the launchers and ranks of run ID: for launchers that do not listen any more

`run` holds the node's lock for as long as the rank lives, so two runs never share a node, and the kernel lets go of it
whatever happens. Its stdin is the orchestrator's hand: a line TERM, KILL, STOP or CONT is passed on to the rank, and
end of file (the orchestrator is gone, even by kill -9) kills the rank at once. No rank outlives the command that asked
for it.
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

from node import cgroup, limits, mpi
from node import lock as node_lock
from node.facts import check, shaped
from node.leftovers import LAUNCHER, kill_marked
from node.lock import await_holder, lock_holder, take_lock
from trainer.events import Busy, Exited, Failed, Held, write

PR_SET_PDEATHSIG = 1  # prctl(2)


def main() -> int:
    match sys.argv[1:]:
        case ["check"]:
            print(json.dumps(check()))
            return 0
        case ["run"]:
            return run(json.loads(sys.stdin.readline()))
        case ["hold", who]:
            with take_lock(who) or contextlib.nullcontext() as lock:
                print("held" if lock else "busy", flush=True)
                if lock:
                    sys.stdin.read()
            return 0 if lock else 3
        case ["end", run_id]:
            kill_marked(lambda variables: f"{LAUNCHER}={run_id}".encode() in variables)
            return 0
    print("usage: python -m node.launcher check|run|hold ID|end ID", file=sys.stderr)
    return 2


def run(request: dict) -> int:
    """Run one rank to its end. `request`: run (id), rank, local_rank, env (added to this process's), argv; wait: start
    the rank only on a line GO; limits, shaped: what must be in force in this node; mpi: for a rank that takes part in
    MPI, see node/mpi.py.

    The launcher of the node's first rank (local_rank 0) takes the lock for its run; those of the others wait for that.
    Prints Held; or Busy, and returns 3, when another run holds the node. Otherwise returns 0 or 1 as the rank ended.
    """
    rank, metrics = request["rank"], node_lock.STATE / "metrics"
    lock = take_lock(request["run"], metrics) if request["local_rank"] == 0 else None
    if lock is None and await_holder(request["run"]) != request["run"]:
        write(Busy(rank=rank, run=lock_holder() or "unknown"))
        return 3
    write(Held(rank=rank))
    started: list[subprocess.Popen] = []  # the rank, once there is one
    go = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: _signal(started, signal.SIGTERM))
    threading.Thread(target=_obey, args=(started, go), daemon=True).start()
    if request.get("wait"):
        go.wait()
    problem = limits.await_inside(request["limits"]) if "limits" in request else None
    if not problem and (there := request.get("shaped")) is not None and shaped() != there:
        problem = "its link is not shaped any more" if there else "its link is shaped, which was not asked for"
    if problem:
        write(Failed(rank=rank, kind="own", message=problem))
        return 1
    kills_before = cgroup.read().oom_kills or 0
    # Whatever is started from here on belongs to this run and this node.
    os.environ.update(SYNCBED_RUN_ID=request["run"], SYNCBED_STATE=str(node_lock.STATE))
    env = os.environ | request["env"] | {"PROMETHEUS_MULTIPROC_DIR": str(metrics)}
    manager = mpi.Manager(rank, _spawn) if "mpi" in request else None
    try:
        if manager:
            place, connection = manager.start(request["mpi"])
            started.append(_spawn(request["argv"], env | place, pass_fds=[connection]))
            os.close(connection)
        else:
            started.append(_spawn(request["argv"], env))
        code = started[0].wait()
    except mpi.ManagerFault as fault:
        write(Failed(rank=rank, kind="own", message=str(fault)))
        code = 1
    write(exited(rank, code, kills_before, cgroup.read()))
    if manager:
        manager.end(orderly=code == 0)
    return 0 if code == 0 else 1


def exited(rank: int, code: int, kills_before: int, usage: cgroup.Usage) -> Exited:
    """How a rank ended; `code`: as subprocess gives it; `kills_before`: what the node had counted when it started."""
    out_of_memory = (usage.oom_kills or 0) > kills_before
    limit, peak = usage.memory_limit_bytes, usage.memory_peak_bytes
    if limit is not None and peak is not None and peak > limit:
        peak = limit  # the peak is of a time when the limit was another; now it was reached, else nothing was killed
    memory = {"memory_limit_bytes": limit, "memory_peak_bytes": peak} if out_of_memory else {}
    ended = {"code": code, "signal": None} if code >= 0 else {"code": None, "signal": signal.Signals(-code).name}
    return Exited(rank=rank, out_of_memory=out_of_memory, **ended, **memory)


def _obey(started: list[subprocess.Popen], go: threading.Event) -> None:
    """Pass on what the orchestrator says until it is gone; then end the rank, frozen or not."""
    for line in sys.stdin:
        if line.strip() == "GO":
            go.set()
        if line.strip() in ("TERM", "KILL"):
            _signal(started, signal.Signals["SIG" + line.strip()])
        if line.strip() in ("STOP", "CONT") and started:
            _signal(started, signal.Signals["SIG" + line.strip()])
    _signal(started, signal.SIGKILL)


def _signal(started: list[subprocess.Popen], number: int) -> None:
    if not started:  # no rank yet, or one that has not come as far as to die with this process
        import psutil

        for child in psutil.Process().children():
            child.kill()
        os._exit(1)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(started[0].pid, number)


def _spawn(argv: list[str], env: dict[str, str], **more) -> subprocess.Popen:
    """Start a process that dies with this one, in a group of its own: signals reach its helpers too."""
    how = {"stdin": subprocess.DEVNULL, "start_new_session": True, "preexec_fn": partial(_die_with, os.getpid())}
    return subprocess.Popen(argv, env=env, **how | more)


def _die_with(parent: int) -> None:
    """The kernel kills this process should its parent be killed. prctl(2)."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was killed before the kernel knew
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
