"""One rank: `python -m trainer`, started once per rank by `syncbed run`, or by torchrun.

Reads RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT as torch.distributed programs do, and
    SYNCBED_SPEC  the RunSpec as JSON        SYNCBED_DATA  folder of a prepared data set
    SYNCBED_OUT   folder for checkpoints and TensorBoard's files (optional)
    SYNCBED_RESUME  folder of a complete checkpoint to go on from (optional)
Standard output carries events and nothing else. Exit code 0: done. 1: failed. 2: bad input.
"""

import os
import socket
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from trainer import environment, events, layout
from trainer.layout import seats
from trainer.rank import DONE, Rank
from trainer.registry import SYNCS
from trainer.run.metrics import metrics
from trainer.spec import RunSpec, SpecError
from trainer.wire.peers import Peers

if TYPE_CHECKING:  # torch is imported once threads and the network interface are settled
    from trainer.wire.collectives import Wire


def run(rank: Rank) -> None:
    """The rank's life. Raises whatever goes wrong."""
    text, data = os.environ.get("SYNCBED_SPEC"), _folder("SYNCBED_DATA")
    if not text or not data:
        raise environment.EnvironmentFault("SYNCBED_SPEC and SYNCBED_DATA are not set: `syncbed run` sets them")
    spec, place = RunSpec.from_json(text), environment.place()
    if len(seats(spec)) != place.world_size:
        raise environment.EnvironmentFault(f"WORLD_SIZE={place.world_size}: the spec asks for {len(seats(spec))} ranks")
    threads = settle(rank, place)
    rank.metrics = metrics(place.rank)
    if place.rank == 0:
        rank.metrics.run(os.environ.get("SYNCBED_RUN_ID", ""), spec)

    import torch  # from here on it takes seconds

    from trainer import torch_start

    torch.set_num_threads(threads)
    wire = connect(rank, spec, place)
    torch_start.without_compiler()
    with wire.party.errors("the run"):  # torch talks to other ranks in places of its own too, as in DDP's forward
        take_part(rank, spec, data, wire)
    rank.tell(events.Finished(rank=place.rank, peak_memory_bytes=peak_memory(), cpu_seconds=sum(os.times()[:2])))
    wire.close()


def settle(rank: Rank, place: environment.Place) -> int:
    """Settle threads, network interface and memory, and tell Started.

    Returns the number of compute threads.
    """
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
    return threads


def take_part(rank: Rank, spec: RunSpec, folder: Path, wire: "Wire") -> None:
    """Do this rank's part in the run, by its role. `folder`: of the prepared data."""
    from trainer.data import prepared
    from trainer.run.loop import Run
    from trainer.servers.evaluator import watch
    from trainer.servers.server import Server

    out, resume = _folder("SYNCBED_OUT"), _folder("SYNCBED_RESUME")
    data = prepared.load(folder)
    match seats(spec)[wire.rank].role:
        case layout.WORKER:
            job = Run(spec, data, wire, rank.tell, out, environment.has_bf16(), resume, rank.metrics)
            job.train()
            job.evaluate()
        case layout.SERVER:
            Server(spec, data, wire, rank.tell).run()
        case layout.EVALUATOR:
            watch(spec, data, wire, rank.tell)


def _folder(name: str) -> Path | None:
    return Path(os.environ[name]) if os.environ.get(name) else None


def connect(rank: Rank, spec: RunSpec, place: environment.Place) -> "Wire":
    """Start the heartbeat and form the process group, where the strategy is distributed.

    Raises WireError.
    """
    from trainer.wire.alone import AloneWire
    from trainer.wire.collectives import Wire
    from trainer.wire.gloo import PrefixStore, open_stores
    from trainer.wire.party import Party

    if not SYNCS[spec.sync].distributed:
        return AloneWire()
    store, beats = (PrefixStore("syncbed", store) for store in open_stores(place))
    rank.peers = Peers(beats, place.rank, place.world_size, spec.deadline_seconds)
    rank.peers.start()
    wire = Wire(Party(place.rank, place.world_size, store, rank.peers, spec.deadline_seconds))
    wire.connect()
    return wire


def peak_memory() -> int:
    """Peak resident set of this process in bytes.

    Not getrusage's, which inherits that of the process before exec.
    """
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
    except BaseException as error:  # all there are: `classify` says whose fault each is
        rank.fail(*classify(error), traceback.format_exc())
    rank.finish_telling()
    sys.stderr.flush()
    os._exit(DONE)  # all is written; taking torch apart in order would cost another second


def classify(error: BaseException) -> tuple[str, str, int | None]:
    """An error's kind, message and suspect, in the words of events.Failed."""
    if isinstance(error, (SpecError, environment.EnvironmentFault)):
        return "input", str(error), None
    from trainer.checkpoint.files import CheckpointError
    from trainer.data.prepared import InputError
    from trainer.wire.errors import WireError

    if isinstance(error, InputError):
        return "input", str(error), None
    if isinstance(error, WireError):
        return error.kind, str(error), error.suspect_rank
    if isinstance(error, CheckpointError):
        return "own", str(error), None
    return "own", f"{type(error).__name__}: {error}", None


if __name__ == "__main__":
    main()
