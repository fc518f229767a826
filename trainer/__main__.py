"""One rank: `python -m trainer`, started once per rank by `syncbed run`, or by torchrun.

Reads RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT as torch.distributed programs do, and
    SYNCBED_SPEC  the RunSpec as JSON        SYNCBED_DATA  folder of a prepared data set
    SYNCBED_OUT   folder for checkpoints and TensorBoard's files (optional)
    SYNCBED_RESUME  folder of a complete checkpoint to go on from (optional)
Standard output carries events and nothing else. Exit code 0: done. 1: failed. 2: bad input.
"""

import os
import signal
import socket
import sys
import threading
import traceback
from datetime import timedelta
from pathlib import Path
from queue import SimpleQueue
from typing import NoReturn

from trainer import environment, events, layout
from trainer.layout import seats
from trainer.metrics import Metrics, NoMetrics, metrics
from trainer.peers import BEAT_SECONDS, START_SECONDS, Peers
from trainer.registry import SYNCS
from trainer.spec import RunSpec, SpecError

DONE, FAILED, BAD_INPUT = 0, 1, 2
TELL_SECONDS = 10.0  # how long a rank that failed waits for its last words to be read


class Rank:
    """This process as its launcher sees it: what it says, its heartbeat, and how it ends.

    What it says is written by a thread of its own: whoever reads it may be stopped (Ctrl-Z), and training goes on.
    """

    def __init__(self, stream):
        self._untold: SimpleQueue[events.Event | threading.Event] = SimpleQueue()
        threading.Thread(target=self._write, args=(stream,), daemon=True, name="events").start()
        self.number = int(os.environ["RANK"]) if os.environ.get("RANK", "").isdecimal() else 0
        self.peers: Peers | None = None
        self.metrics: Metrics | NoMetrics = NoMetrics()
        self._ending = threading.Lock()

    def tell(self, event: events.Event) -> None:
        """Say one event. Does not wait until it is written."""
        self._untold.put(event)

    def finish_telling(self, seconds: float | None = None) -> None:
        """Wait until all that was told is written, or for so many seconds."""
        told = threading.Event()
        self._untold.put(told)
        told.wait(seconds)

    def _write(self, stream) -> None:
        try:
            while True:
                match self._untold.get():
                    case threading.Event() as told:
                        told.set()
                    case event:
                        events.write(event, stream)
        except OSError:
            os._exit(FAILED)  # nobody will ever read it: who started this rank is gone

    def begin(self) -> None:
        """Start the heartbeat, and the thread that ends this process on a signal.

        Both are threads because the main one may be deep in a collective, where no Python handler would run.
        """
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing)  # written to by Python's C handler, in whichever thread the signal arrives
        for wanted in (signal.SIGTERM, signal.SIGINT):
            signal.signal(wanted, lambda *_: None)
        threading.Thread(target=self._signals, args=(reading,), daemon=True, name="signals").start()
        threading.Thread(target=self._heartbeat, daemon=True, name="heartbeat").start()

    def _signals(self, reading: int) -> None:
        number = os.read(reading, 1)[0]
        self.fail("own", f"stopped by {signal.Signals(number).name}", quietly=True)

    def _heartbeat(self) -> None:
        beats = 0
        while not threading.Event().wait(BEAT_SECONDS):
            beats += 1
            if beats % round(events.HEARTBEAT_SECONDS / BEAT_SECONDS) == 0:
                self.tell(events.Alive(rank=self.number))
            if self.peers and (found := self.peers.overdue()):
                silent = f"rank {found[0]} has shown no sign of life for {found[1]:.0f} s"
                self.fail("peer", silent, found[0], overdue=True)

    def fail(
        self, kind: str, message: str, suspect: int | None = None, trace: str = "", quietly=False, overdue=False
    ) -> None:
        """Say Failed, tell the peers, end the process at once: Gloo's threads may hang on a peer that is gone.

        `quietly`: leave without waiting for the peers to read the farewell. `overdue`: a peer missed DEADLINE. Never
        returns.
        """
        if not self._ending.acquire(blocking=False):
            threading.Event().wait()  # another thread is ending the process
        try:
            if overdue or kind == "deadline":
                self.metrics.deadline_missed()
            message = " ".join(message.split())
            self.tell(
                events.Failed(rank=self.number, kind=kind, message=message, suspect_rank=suspect, traceback=trace)
            )
            if self.peers:
                self.peers.leave(kind, message, suspect, linger=not quietly)
            self.finish_telling(TELL_SECONDS)
        finally:
            os._exit(BAD_INPUT if kind == "input" else FAILED)


def run(rank: Rank) -> None:
    """The rank's life. Raises whatever goes wrong."""
    text = os.environ.get("SYNCBED_SPEC")
    folder = os.environ.get("SYNCBED_DATA")
    if not text or not folder:
        raise environment.EnvironmentFault("SYNCBED_SPEC and SYNCBED_DATA are not set: `syncbed run` sets them")
    spec, place = RunSpec.from_json(text), environment.place()
    if len(seats(spec)) != place.world_size:
        raise environment.EnvironmentFault(f"WORLD_SIZE={place.world_size}: the spec asks for {len(seats(spec))} ranks")
    threads = environment.threads()
    interface = environment.interface(place.master_addr, place.master_port)
    environment.settle(threads, interface)
    environment.keep_freed_memory()
    rank.tell(
        events.Started(
            rank=place.rank,
            world_size=place.world_size,
            host=socket.gethostname(),
            pid=os.getpid(),
            threads=threads,
            interface=interface,
        )
    )

    rank.metrics = metrics(place.rank)
    if place.rank == 0:
        rank.metrics.run(os.environ.get("SYNCBED_RUN_ID", ""), spec)

    import torch  # from here on it takes seconds

    from trainer import torch_start
    from trainer.data import prepared
    from trainer.evaluator import watch
    from trainer.loop import Run
    from trainer.server import Server

    torch.set_num_threads(threads)
    wire = connect(rank, spec, place)
    torch_start.without_compiler()
    out, resume = (_folder(name) for name in ("SYNCBED_OUT", "SYNCBED_RESUME"))
    data = prepared.load(Path(folder))
    with wire.errors("the run"):  # torch talks to the other ranks in places of its own too, DDP's forward among them
        match seats(spec)[place.rank].role:
            case layout.WORKER:
                job = Run(spec, data, wire, rank.tell, out, environment.has_bf16(), resume, rank.metrics)
                job.train()
                job.evaluate()
            case layout.SERVER:
                Server(spec, data, wire, rank.tell).run()
            case layout.EVALUATOR:
                watch(spec, data, wire, rank.tell)
    rank.tell(events.Finished(rank=place.rank, peak_memory_bytes=peak_memory(), cpu_seconds=sum(os.times()[:2])))
    wire.close()


def _folder(name: str) -> Path | None:
    return Path(os.environ[name]) if os.environ.get(name) else None


def connect(rank: Rank, spec: RunSpec, place: environment.Place):
    """Join the store and the process group, where the strategy is distributed. Returns the Wire."""
    import torch.distributed as dist

    from trainer.wire import Wire
    from trainer.wire_errors import PeerLost

    if not SYNCS[spec.sync].distributed:
        return Wire()
    # torchrun holds the store itself; otherwise rank 0's process does.
    host = place.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    where, patience = (place.master_addr, place.master_port), timedelta(seconds=START_SECONDS)
    try:
        mine = dist.TCPStore(*where, None, host, patience, wait_for_workers=False)
        beats = dist.TCPStore(*where, None, False, patience, wait_for_workers=False)
    except RuntimeError as error:
        if host:
            raise
        address = f"{place.master_addr}:{place.master_port}"
        raise PeerLost(f"rank 0 does not answer at {address} ({str(error).splitlines()[0]})", 0) from error
    rank.peers = Peers(dist.PrefixStore("syncbed", beats), place.rank, place.world_size, spec.deadline_seconds)
    rank.peers.start()
    wire = Wire(place.rank, place.world_size, dist.PrefixStore("syncbed", mine), rank.peers, spec.deadline_seconds)
    wire.connect()
    return wire


def peak_memory() -> int:
    """Peak resident set of this process in bytes. Not getrusage's, which inherits that of the process before exec."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise LookupError("no VmHWM in /proc/self/status")


def main() -> NoReturn:
    """Run this rank and end the process: with 0, or with 1 or 2 after a Failed event."""
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints goes to standard error, also from C++
    sys.stdout = sys.stderr
    rank = Rank(stream)
    rank.begin()
    try:
        run(rank)
    except BaseException as error:
        rank.fail(*classify(error), traceback.format_exc())
    rank.finish_telling()
    sys.stderr.flush()
    os._exit(DONE)  # all is written; taking torch apart in order would cost another second


def classify(error: BaseException) -> tuple[str, str, int | None]:
    """An error's kind, message and suspect, in the words of events.Failed."""
    if isinstance(error, (SpecError, environment.EnvironmentFault)):
        return "input", str(error), None
    from trainer.checkpoint import CheckpointError
    from trainer.data.prepared import InputError
    from trainer.wire_errors import WireError

    if isinstance(error, InputError):
        return "input", str(error), None
    if isinstance(error, WireError):
        return error.kind, str(error), error.suspect_rank
    own = str(error) if isinstance(error, CheckpointError) else f"{type(error).__name__}: {error}"
    return "own", own, None


if __name__ == "__main__":
    main()
