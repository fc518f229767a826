"""What a rank says: one JSON object a line on its standard output, and nothing else is said there.

Its node's launcher says some events on the same stream, signed (node/signature.py).

Every event carries `event` (its kind), `rank` and `time` (Unix seconds). The monitor makes progress
bars, results and error reports from this stream alone. Fields carry their unit in their name.

    write(Step(rank=0, step=1, ...), stream)  # in the rank
    parse('{"event": "step", ...}')           # in the monitor: the dataclass, None for a line that is no event
"""

import json
import math
import threading
import time as clock
from dataclasses import asdict, dataclass, field
from typing import Any, TextIO

from trainer.field_types import EventFault, checks_of

PHASES = ("data", "forward", "backward", "sync", "optimizer")


@dataclass(frozen=True, kw_only=True)
class Event:
    rank: int
    time: float = field(default_factory=clock.time)


@dataclass(frozen=True, kw_only=True)
class Started(Event):
    """The rank's process runs; nothing heavy is imported yet."""

    world_size: int
    host: str
    pid: int
    threads: int
    interface: str  # the network interface Gloo uses


@dataclass(frozen=True, kw_only=True)
class Ready(Event):
    """Process group, data and model are there; the first step comes next."""

    parameters: int
    gradient_bytes: int  # S in the formulas
    train_samples: int
    test_samples: int
    steps: int  # number of the last one, whether asked for as STEPS or EPOCHS
    steps_per_epoch: int
    versions: dict[str, str]
    bf16_hint: bool  # fp32 was asked for and this CPU has bf16 instructions
    steps_before: int = 0  # done by the run that this one goes on with


@dataclass(frozen=True, kw_only=True)
class Step(Event):
    """One optimizer step.

    `loss` and `accuracy` are of this rank's share of the batch, before the update.
    """

    step: int  # from 1
    epoch: int  # from 1
    loss: float | None  # None: not finite
    accuracy: float
    samples: int  # of this rank
    seconds: dict[str, float]  # by phase, see PHASES; sync is the exposed part, what backward did not hide
    step_seconds: float  # wall time of the whole step
    sent_bytes: int  # payload of the collectives of this step
    received_bytes: int
    staleness: float | None = None  # of its update: updates between its pull and push, mean over servers


@dataclass(frozen=True, kw_only=True)
class Checkpoint(Event):
    """Rank 0: a checkpoint is complete."""

    step: int
    path: str  # of its folder, in the run's folder
    bytes: int  # of all its files
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Trained(Event):
    """The last step is done; evaluation comes next."""

    seconds: float  # from before the first step to after the last
    distinct_samples: int  # training samples seen by any rank
    synchronisations: int
    interface_sent_bytes: int  # by the network interface over the same time, headers and heartbeats included; locally
    interface_received_bytes: int  # the loopback's, which all ranks share
    sent_bytes: int = 0  # after the last step, in bringing together what was still apart
    received_bytes: int = 0
    lost_workers: list[int] = field(default_factory=list)  # ranks that the others went on without


@dataclass(frozen=True, kw_only=True)
class Evaluated(Event):
    """Rank 0, once: the whole test set, each sample counted once over all ranks."""

    samples: int
    loss: float | None
    accuracy: float
    confusion_matrix: list[list[int]]  # [true class][predicted class]
    classes: list[str]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Served(Event):
    """A parameter server, once every worker has taken its last weights."""

    updates: int  # SGD steps on its part
    sent_bytes: int  # payload to workers and evaluator, from the first push to the last pull
    received_bytes: int
    interface_sent_bytes: int  # by the network interface over the same time, as in Trained
    interface_received_bytes: int


@dataclass(frozen=True, kw_only=True)
class Monitored(Event):
    """A score on the whole test set while training is not done: by the workers, or by the evaluator beside them."""

    step: int  # of the slowest worker
    samples: int
    loss: float | None
    accuracy: float
    updates: int | None = None  # by the evaluator: SGD steps so far, of the first server


@dataclass(frozen=True, kw_only=True)
class Watched(Event):
    """The evaluator, once there are no newer weights to come."""

    sent_bytes: int  # payload: what it asked the servers for
    received_bytes: int  # and what they answered


@dataclass(frozen=True, kw_only=True)
class Finished(Event):
    """The rank's last word when all went well."""

    peak_memory_bytes: int  # this process's peak resident set
    cpu_seconds: float  # user + system of this process


@dataclass(frozen=True, kw_only=True)
class Failed(Event):
    """The rank's last word when something went wrong. `kind`: whose fault it looks like from here.

    own: this rank's error. peer: another rank is gone. deadline: a collective took longer than
    DEADLINE. mismatch: ranks disagree about a collective. input: data or spec cannot be used. disk:
    from the launcher, its node holds more in the volume of runs than it may.
    """

    kind: str
    message: str  # one line
    suspect_rank: int | None = None
    traceback: str = ""


@dataclass(frozen=True, kw_only=True)
class Alive(Event):
    """Each HEARTBEAT_SECONDS from a thread of its own, so that a frozen process is told from a slow step."""


@dataclass(frozen=True, kw_only=True)
class Warning(Event):
    message: str


@dataclass(frozen=True, kw_only=True)
class Exited(Event):
    """From the node's launcher, after the rank's process ended."""

    code: int | None  # exit status, None when a signal ended it
    signal: str | None  # "SIGKILL", ...
    out_of_memory: bool  # the node's memory limit killed it
    memory_limit_bytes: int | None = None  # of its node, when it ran out of memory
    memory_peak_bytes: int | None = None  # the most that the node has used


@dataclass(frozen=True, kw_only=True)
class Held(Event):
    """From the node's launcher: the node is this run's."""


@dataclass(frozen=True, kw_only=True)
class Busy(Event):
    """From the node's launcher: another run holds this node, the rank was not started."""

    run: str


@dataclass(frozen=True, kw_only=True)
class Proxies(Event):
    """From the launcher of rank 0 where MPI is used: the other ranks' launchers may start."""

    commands: list[list[str]]  # by rank: the command line of its MPI proxy


@dataclass(frozen=True, kw_only=True)
class Restart(Event):
    """From the orchestrator: the run goes on from a checkpoint (RESTARTS=).

    `rank`: the one that was lost, if known.

    Steps beyond `from_step` that stand before this event are lost, and are done again after it.
    """

    attempt: int  # restarts so far, this one included
    kind: str  # of the failure: killed, frozen, ...
    message: str  # its one line
    from_step: int  # 0: from the start
    lost_steps: int
    lost_seconds: float  # since step `from_step` was done, or the first step of the attempt began


@dataclass(frozen=True, kw_only=True)
class Fault(Event):
    """From the orchestrator: a fault (FAULT=) was brought about, or taken back.

    `rank`: its target, 0 for a node's.
    """

    fault: str  # in the words of FAULT=
    moment: str  # begin or end
    step: int  # the last that any worker has done
    seconds: float  # that it took to bring about, or to take back
    error: str | None = None  # why it could not be done


HEARTBEAT_SECONDS = 2.0
_KINDS: dict[str, type[Event]] = {kind.__name__.lower(): kind for kind in Event.__subclasses__()}
_CHECKS = {name: checks_of(kind) for name, kind in _KINDS.items()}
LINE_BYTES = 1 << 20  # the longest line
MOST = 10**10  # the largest rank, step and time (Unix seconds)
_lock = threading.Lock()


def to_line(event: Event) -> str:
    """The event as one line of JSON, without the newline.

    JSON has no NaN: a number that is not finite becomes null.
    """
    values = {"event": type(event).__name__.lower()} | asdict(event)
    return json.dumps(finite(values), allow_nan=False)


def finite(value: Any) -> Any:
    """The value with every float that is not finite, however deep, replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    return [finite(v) for v in value] if isinstance(value, (list, tuple)) else value


def write(event: Event, stream: TextIO) -> None:
    """Write one event, whole and at once: threads of a rank share the stream."""
    with _lock:
        stream.write(to_line(event) + "\n")
        stream.flush()


def parse(line: str) -> Event | None:
    """As `decode`; None for what that refuses as well."""
    try:
        return decode(line)
    except EventFault:
        return None


def decode(line: str) -> Event | None:
    """The event on this line; None when the line is no event (a library printed it).

    Unknown fields are passed over. Raises EventFault for an event whose fields are not of their types.
    """
    if len(line) > LINE_BYTES:
        raise EventFault(f"it sent a line of {len(line)} characters; {LINE_BYTES} are the most")
    try:
        values = json.loads(line)
        name = values.pop("event")
        kind, checks = _KINDS[name], _CHECKS[name]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, MemoryError):
        return None
    values = {key: value for key, value in values.items() if key in checks}
    for key, value in values.items():
        if not checks[key](value):
            raise EventFault(f"it sent the event {name} with a value of {key} that is not of its type")
    try:
        event = kind(**values)
    except TypeError:  # a field is missing
        return None
    if not (0 <= event.rank <= MOST and 0 <= getattr(event, "step", 0) <= MOST and 0 <= event.time <= MOST):
        raise EventFault(f"it sent the event {name} with a rank, step or time that cannot be")
    return event
