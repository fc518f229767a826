"""Inside a node, between the orchestrator and a rank. Four commands, all started through the runtime:

    python -m monitor.node check    print one JSON object: what this node is, as seen from inside
    python -m monitor.node run      read one JSON request on stdin, run one rank, forward its output, end with `exited`
    python -m monitor.node hold ID  hold the node as a run does, until stdin ends; print held or busy
    python -m monitor.node end ID   kill the launchers and ranks of run ID: for launchers that do not listen any more

`run` holds the node's lock for as long as the rank lives, so two runs never share a node, and the kernel lets go of it
whatever happens. Its stdin is the orchestrator's hand: a line TERM, KILL, STOP or CONT is passed on to the rank, and
end of file (the orchestrator is gone, even by kill -9) kills the rank at once. No rank outlives the command that asked
for it.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from monitor import cgroup, limits, mpi
from trainer.events import Busy, Exited, Failed, Held, write

STATE = Path(os.environ.get("SYNCBED_STATE", "/run/syncbed"))  # the node's own tmpfs: lock and live metrics
DATA = Path("/data")
PR_SET_PDEATHSIG = 1  # prctl(2)
LOCK_SECONDS = 30.0  # how long a node's other ranks wait for its first
LOOK_SECONDS = 0.5  # longer than anyone takes to look who holds the lock, for which it is held for a moment
STARTING = "starting"
LAUNCHER = "SYNCBED_LAUNCHER"  # in the environment of a launcher, and so of all it starts: its run's id


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
            _kill(lambda variables: f"{LAUNCHER}={run_id}".encode() in variables)
            return 0
    print("usage: python -m monitor.node check|run|hold ID|end ID", file=sys.stderr)
    return 2


def check() -> dict:
    """The node's facts. Kills nothing, changes nothing but `leftovers`: ranks that no launcher holds, which it ends."""
    usage = cgroup.read()
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    hostname = socket.gethostname()
    holder = lock_holder()
    shm = os.statvfs("/dev/shm")
    return {
        "hostname": hostname,
        "addresses": _addresses(hostname),
        "peers": {name: _addresses(name) for name in (f"trainer-{rank}" for rank in range(world_size))},
        "rank": int(os.environ.get("RANK", "0")),
        "world_size": world_size,
        "cpu_limit_cores": usage.cpu_limit_cores,
        "memory_limit_bytes": usage.memory_limit_bytes,
        "shm_bytes": shm.f_frsize * shm.f_blocks,
        "code": os.environ.get("SYNCBED_CODE", ""),
        "data": sorted(path.parent.name for path in DATA.glob("*/manifest.json")),
        "free_port": free_port(),
        "shaped": shaped(),
        "run": holder,
        "leftovers": [] if holder else end_leftovers(),
    }


def shaped() -> bool:
    """Whether a run has shaped what this node sends or cut it off, or one that was killed has left it so. tc-qdisc(8),
    ip-route(8).
    """
    with contextlib.suppress(OSError):
        shown = subprocess.run(["tc", "qdisc", "show"], capture_output=True, text=True).stdout
        routes = subprocess.run(["ip", "route", "show"], capture_output=True, text=True).stdout
        kinds = [line.split()[1] for line in shown.splitlines() if line.startswith("qdisc ")]
        changed = any(word in ("blackhole", "congctl") for word in routes.split())
        return changed or any(kind in ("tbf", "netem") for kind in kinds)
    return False


def run(request: dict) -> int:
    """Run one rank to its end. `request`: run (id), rank, local_rank, env (added to this process's), argv; wait: start
    the rank only on a line GO; limits, shaped: what must be in force in this node; mpi: for a rank that takes part in
    MPI, see monitor/mpi.py.

    The launcher of the node's first rank (local_rank 0) takes the lock for its run; those of the others wait for that.
    Prints Held; or Busy, and returns 3, when another run holds the node. Otherwise returns 0 or 1 as the rank ended.
    """
    rank, metrics = request["rank"], STATE / "metrics"
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
    os.environ.update(SYNCBED_RUN_ID=request["run"], SYNCBED_STATE=str(STATE))
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


def take_lock(run_id: str, metrics: Path | None = None):
    """The node's lock, held until this process ends; None when another run holds it. Empties the folder of metrics."""
    STATE.mkdir(parents=True, exist_ok=True)
    lock = (STATE / "lock").open("a+")
    until = time.monotonic() + LOOK_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > until:
                return None
            time.sleep(0.02)
    lock.truncate(0)
    if metrics:
        shutil.rmtree(metrics, ignore_errors=True)  # the figures of an earlier run are not this one's
        metrics.mkdir(parents=True)
    lock.write(run_id)  # from here on the node's other ranks may start
    lock.flush()
    return lock


def await_holder(run_id: str) -> str | None:
    """Who holds the node, once that is `run_id`, another run, or still nobody after a while."""
    until = time.monotonic() + LOCK_SECONDS
    while (holder := lock_holder()) in (None, STARTING) and time.monotonic() < until:
        time.sleep(0.02)
    return holder


def lock_holder() -> str | None:
    """The id of the run that holds this node; None when it is free."""
    try:
        with (STATE / "lock").open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return lock.read() or STARTING
    except FileNotFoundError:
        pass
    return None


def end_leftovers() -> list[int]:
    """Kill ranks of this node that nobody holds (their launcher died while they were frozen). Returns their ids.

    A rank carries its node's STATE in its environment: where one kernel shows the processes of several nodes, those of
    the others are left alone.
    """
    mark = f"SYNCBED_STATE={STATE}".encode()
    return _kill(lambda variables: mark in variables and any(v.startswith(b"SYNCBED_RUN_ID=") for v in variables))


def _kill(theirs: Callable[[list[bytes]], bool]) -> list[int]:
    """Kill the processes with such an environment ("NAME=value" each), but for this one, and wait until they have
    ended: what they hold is free then. Returns their ids.
    """
    killed = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        pid = int(environ.parent.name)
        try:
            if theirs(environ.read_bytes().split(b"\0")) and pid != os.getpid():
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
        except OSError:
            continue  # gone already, or not ours to see
    if killed:
        from monitor import ending  # not before: what it loads takes time, and mostly there is nothing to kill

        ending.kill(ending.processes(killed))
    return killed


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


def _addresses(name: str) -> list[str]:
    try:
        return sorted({info[4][0] for info in socket.getaddrinfo(name, None, socket.AF_INET)})
    except OSError:
        return []


def free_port() -> int:
    """A port nothing listens on, below the range that the kernel takes for outgoing connections on its own."""
    while True:
        port = random.randint(20000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
                return port
            except OSError:
                continue


if __name__ == "__main__":
    sys.exit(main())
