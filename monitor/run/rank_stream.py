"""What a rank and its launcher may say, and how often. A rank's user can write what it likes.

    RankStream(spec, rank, base).event(output)    # the event; None for a line that is none; EventFault for one that is
                                                 # not its speaker's to send

An EventFault is that rank's fault: the run fails and names it.
"""

import re
from collections import Counter

from monitor.runtime.base import Output
from monitor.runtime.streams import most_steps
from trainer import events
from trainer.checkpoint_folder import FOLDER, name_of
from trainer.events import EventFault
from trainer.layout import seats
from trainer.registry import MOST_CLASSES
from trainer.spec import RunSpec

ALL = "this run's"
WORD, NUMBER = re.compile(r"[a-z]{1,20}"), re.compile(r"-?[0-9]{1,9}")
PROXY_PROGRAM = re.compile(r"(/[^/\s\0]+)+/bin/hydra_pmi_proxy")
PROXY_FLAGS = {
    "--control-port": re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,99}:[0-9]{1,5}"),
    "--rmk": WORD,
    "--launcher": WORD,
    "--demux": WORD,
    "--pgid": NUMBER,
    "--retries": NUMBER,
    "--usize": NUMBER,
    "--pmi-port": NUMBER,
    "--gpus-per-proc": NUMBER,
    "--gpu-subdevs-per-proc": NUMBER,
    "--proxy-id": NUMBER,
}
ORCHESTRATORS = (events.Restart, events.Fault)
LAUNCHERS = (events.Held, events.Busy, events.Proxies, events.Exited)
ONCE = (
    *LAUNCHERS,
    *(events.Started, events.Ready, events.Trained, events.Served, events.Watched, events.Evaluated, events.Finished),
)
WARNINGS, VERSIONS = 1000, 100
DISK = "disk"
FAILURES = ("own", "peer", "deadline", "mismatch", "input", DISK)  # a Failed's kinds


class RankStream:
    """A rank's stream during one attempt, with its launcher's words. `base`: the step that the attempt goes on from."""

    def __init__(self, spec: RunSpec, rank: int, base: int = 0):
        self._spec, self._rank = spec, rank
        self._last_step = base + most_steps(spec)
        self._world_size = len(seats(spec))
        self._counts: Counter[type[events.Event]] = Counter()
        self._checkpoints: set[int] = set()

    def event(self, output: Output) -> events.Event | None:
        """The event on this line, None when it is none. Raises EventFault when its speaker may not send it."""
        event = events.decode(output.line) if output.line and output.stream != "stderr" else None
        if event:
            self._check_speaker(event, output.stream == "launcher")
            self._check_facts(event)
            self._counts[type(event)] += 1
        return event

    def _check_speaker(self, event: events.Event, is_launchers: bool) -> None:
        """Whether such an event may come from this stream, and now."""
        kind, name = type(event), type(event).__name__.lower()
        if event.rank != self._rank:
            raise EventFault(f"it sent the event {name} as rank {event.rank}")
        if kind in ORCHESTRATORS:
            raise EventFault(f"it sent the event {name}, which the orchestrator alone writes")
        if kind in LAUNCHERS and not is_launchers:
            raise EventFault(f"it sent the event {name}, which its launcher alone sends")
        if isinstance(event, events.Failed) and event.kind == DISK and not is_launchers:
            raise EventFault("it sent a failure for space on the disk, which its launcher alone sends")
        if is_launchers and kind not in (*LAUNCHERS, events.Failed):
            raise EventFault(f"its launcher sent the event {name}, which the rank alone sends")
        if kind is events.Busy and self._counts:
            raise EventFault("it sent the event busy after others; a launcher sends it first or not at all")
        if kind in ONCE and self._counts[kind]:
            raise EventFault(f"it sent the event {name} twice")
        if kind is events.Warning and self._counts[kind] >= WARNINGS:
            raise EventFault(f"it sent more than {WARNINGS} warnings")

    def _check_facts(self, event: events.Event) -> None:
        """Whether what it says can be so in this run."""
        match event:
            case events.Step() if not 1 <= event.step <= self._last_step or set(event.seconds) != set(events.PHASES):
                raise EventFault(f"it sent step {event.step}, which this run does not have, or one without its phases")
            case events.Step() if event.step_seconds <= 0:
                raise EventFault(f"it sent step {event.step} of {event.step_seconds:g} s")
            case events.Ready() if len(event.versions) > VERSIONS:
                raise EventFault(f"it sent versions of {len(event.versions)} packages; {VERSIONS} are the most")
            case events.Failed() if event.kind not in FAILURES or not self._is_rank(event.suspect_rank):
                raise EventFault(f"it sent a failure of no kind that there is, or that suspects no rank of {ALL}")
            case events.Trained() if not all(map(self._is_rank, event.lost_workers)):
                raise EventFault(f"it went on without a rank that is none of {ALL}")
            case events.Evaluated():
                self._check_scores(event)
            case events.Proxies():
                self._check_proxies(event)
            case events.Checkpoint():
                self._check_checkpoint(event)

    def _is_rank(self, rank: int | None) -> bool:
        return rank is None or 0 <= rank < self._world_size

    def _check_scores(self, evaluated: events.Evaluated) -> None:
        """Tables are made of its matrix, a row and a column a class."""
        size = len(evaluated.classes)
        if size > MOST_CLASSES:
            raise EventFault(f"it sent scores of {size} classes; {MOST_CLASSES} are the most")
        if self._rank != 0 or any(
            len(row) != size for row in (evaluated.confusion_matrix, *evaluated.confusion_matrix)
        ):
            raise EventFault(
                "it sent the event evaluated, not as rank 0 or with a matrix that does not fit its classes"
            )

    def _check_proxies(self, proxies: events.Proxies) -> None:
        """The other ranks' launchers run these command lines, so that only Hydra's own will do."""
        if self._spec.transport != "mpi" or self._rank != 0:
            raise EventFault("it sent the event proxies, which rank 0's launcher alone sends, with TRANSPORT=mpi")
        if len(proxies.commands) != self._world_size or len({tuple(line[:1]) for line in proxies.commands}) != 1:
            raise EventFault("it sent proxies that are not one a rank, all of the same program")
        if not all(is_proxy(line, rank) for rank, line in enumerate(proxies.commands)):
            raise EventFault("it sent a proxy that is not a command line of MPICH's hydra_pmi_proxy")

    def _check_checkpoint(self, checkpoint: events.Checkpoint) -> None:
        """Its path is joined to the run's folder, so that only the one that we write ourselves will do."""
        step = checkpoint.step
        if self._rank != 0:
            raise EventFault("it sent a checkpoint, which rank 0 alone does")
        if checkpoint.path != f"{FOLDER}/{name_of(step)}":
            raise EventFault(f"its checkpoint of step {step} is not in {FOLDER}/{name_of(step)}")
        if step in self._checkpoints:
            raise EventFault(f"it sent the checkpoint of step {step} twice")
        self._checkpoints.add(step)


def is_proxy(command: list[str], rank: int) -> bool:
    """Whether it is the command line that Hydra (`mpiexec -launcher manual`) prints for this rank."""
    program, flags = command[:1], command[1:]
    return (
        bool(program)
        and bool(PROXY_PROGRAM.fullmatch(program[0]))
        and "/../" not in program[0]
        and flags[0::2] == list(PROXY_FLAGS)
        and len(flags) == 2 * len(PROXY_FLAGS)
        and all(value.fullmatch(flag) for value, flag in zip(PROXY_FLAGS.values(), flags[1::2], strict=True))
        and flags[-1] == str(rank)
    )
