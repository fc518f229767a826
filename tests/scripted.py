"""Ranks that say what a script says, for tests of what the supervisor makes of it. No process is started."""

import time
from pathlib import Path
from queue import Queue
from types import SimpleNamespace

from monitor.capabilities import RUNTIMES
from monitor.run import supervise as supervise_module
from monitor.run.rank_stream import DISK, LAUNCHERS
from monitor.run.supervise import Supervisor
from monitor.runtime.base import Job, Output, RankHandle
from trainer import events
from trainer.spec import RunSpec

NOW = time.time()


def step(rank, number=3):
    phases = dict.fromkeys(events.PHASES, 0.1)
    return events.Step(
        rank=rank,
        step=number,
        epoch=1,
        loss=1.0,
        accuracy=0.5,
        samples=4,
        seconds=phases,
        step_seconds=0.5,
        sent_bytes=1,
        received_bytes=1,
    )


def ready(rank):
    return events.Ready(
        rank=rank,
        parameters=1,
        gradient_bytes=4,
        train_samples=8,
        test_samples=2,
        steps=3,
        steps_per_epoch=2,
        versions={},
        bf16_hint=False,
    )


def exited(rank, code=0, signal=None, oom=False):
    return events.Exited(rank=rank, code=code, signal=signal, out_of_memory=oom)


def failed(rank, kind, message, suspect=None, after=0.0):
    return events.Failed(rank=rank, kind=kind, message=message, suspect_rank=suspect, time=NOW + after)


def proxies(size):
    """What Hydra prints (`mpiexec -launcher manual`)."""
    hydra = "--control-port trainer-0:42587 --rmk user --launcher manual --demux poll --pgid 0 --retries 10 --usize -1"
    gpus = "--pmi-port 0 --gpus-per-proc -2 --gpu-subdevs-per-proc -2 --proxy-id"
    flags = f"{hydra} {gpus}".split()
    lines = [["/opt/venv/bin/hydra_pmi_proxy", *flags, str(rank)] for rank in range(size)]
    return events.Proxies(rank=0, commands=lines)


def finished(rank):
    return [ready(rank), step(rank), events.Finished(rank=rank, peak_memory_bytes=1, cpu_seconds=1.0), exited(rank)]


class Clock:
    """The supervisor's time: it stands still but while that waits for ranks to speak, which takes none of ours."""

    def __init__(self):
        self.now, self._due = 1000.0, []

    def monotonic(self) -> float:
        return self.now

    def after(self, seconds: float, do) -> None:
        """Have this done when the supervisor has waited for so long from now."""
        self._due.append((self.now + seconds, do))
        self._due.sort(key=lambda due: due[0])

    def go_on(self, until: float) -> bool:
        """Let time pass, at most until then; returns whether something was due before."""
        if self._due and self._due[0][0] <= until:
            when, do = self._due.pop(0)
            self.now = max(self.now, when)
            do()
            return True
        self.now = until
        return False


class Waits(Queue):
    """The queue on which the supervisor waits for what ranks say."""

    def __init__(self, clock: Clock):
        super().__init__()
        self.clock = clock

    def get(self, block=True, timeout=None):
        if timeout is None:
            return super().get(block)
        until = self.clock.now + timeout
        while self.empty() and self.clock.go_on(until):
            pass
        return super().get(block=False)


def no_waiting(monkeypatch) -> Clock:
    """Supervisors that are made from now on have such a clock. Not for scripts that threads of their own carry out."""
    clock = Clock()
    monkeypatch.setattr(supervise_module, "time", clock)
    monkeypatch.setattr(supervise_module, "Queue", lambda: Waits(clock))
    return clock


def output_of(rank, event):
    """As the one says this event who says such events: the rank or its launcher."""
    is_launchers = isinstance(event, LAUNCHERS) or getattr(event, "kind", None) == DISK
    return Output(rank, "launcher" if is_launchers else "stdout", events.to_line(event))


class Scripted(RankHandle):
    """Says its lines at once; when `holds`, its stream ends only when it is signalled, like a process that hangs.

    Rank 0 says first that it holds its node, unless its script is about just that.
    """

    def __init__(self, rank, output, script, holds):
        self.rank, self.output, self.signals, self.closed = rank, output, [], False
        if rank == 0 and not (script and isinstance(script[0], (events.Busy, events.Held, events.Proxies))):
            script = [events.Held(rank=0), *script]
        for item in script:
            self.say(item)
        self.holds = holds
        if not holds:
            self.say(None)

    def say(self, item):
        """An event, a line on standard error, or None: the end of the stream."""
        match item:
            case events.Event():
                self.output.put(output_of(self.rank, item))
            case str():
                self.output.put(Output(self.rank, "stderr", item))
            case None:
                self.output.put(Output(self.rank, "stdout", None))

    def signal(self, name):
        self.signals.append(name)
        if self.holds and name == "KILL":
            self.say(exited(self.rank, None, "SIGKILL"))
            self.say(None)
            self.holds = False

    def go(self):
        self.went = True

    def end_reason(self):
        return "its node stopped or the engine went away"

    def close(self, vanished=False):
        self.closed, self.vanished = True, vanished


def runtime_of(name, nodes=4):
    """As much of a runtime as a plan of runs asks for."""
    return SimpleNamespace(name=name, default_nodes=nodes, capabilities=RUNTIMES[name])


class ScriptedRuntime:
    """`fetched` is called with the path of every checkpoint; `later`: scripts of the attempts after the first."""

    name, limits, links, faults = "scripted", [{"cpus": 0.5, "memory_bytes": 2**30}], [], ()

    def __init__(self, scripts, holding=(), fetched=lambda path: None, later=()):
        self.later, self.pushed = list(later), []
        self.scripts, self.holding, self.handles = scripts, holding, {}
        self.limits = [{"cpus": None, "memory_bytes": None}]
        self.fetched, self.released = fetched, False

    def node_name(self, rank):
        return f"trainer-{rank}"

    def start(self, job, seat, output):
        rank = seat.rank
        self.handles[rank] = Scripted(rank, output, self.scripts[rank], rank in self.holding)
        return self.handles[rank]

    def apply_conditions(self, job, warn):
        self.held_after = sorted(self.handles)

    def fetch(self, job, path):
        self.fetched(path)
        return path

    def push_checkpoint(self, job, folder):
        self.pushed.append(folder and folder.name)

    def prepare_restart(self, job, seconds, stop):
        self.scripts, self.holding = self.later.pop(0), ()

    def rows(self, job, start, end, warn):
        return []

    def release(self, job):
        self.released = True


def supervise(scripts, holding=(), deadline=5.0, on_event=lambda event: None, **changes):
    runtime = ScriptedRuntime(scripts, holding)
    values = {"nodes": len(scripts), "batch": 4 * len(scripts), "deadline_seconds": deadline} | changes
    supervisor = Supervisor(runtime, Job("r", RunSpec(**values), "key", Path()), on_event)
    return supervisor, supervisor.run(), runtime
