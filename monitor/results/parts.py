"""The parts of a result: what was run, what each rank did, and what happened meanwhile."""

import json
import re
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_serializer, model_validator
from pydantic_core import PydanticCustomError

from monitor.text import one_line
from trainer.events import PHASES
from trainer.layout import WORKER
from trainer.registry import MOST_CLASSES
from trainer.spec import RunSpec

# More than any run has. A document is small, and tables and plots of what it says are not.
MOST_RANKS, MOST_SETTINGS = 1024, 200
MOST, MOST_LINES, MOST_LETTERS = 100_000, 1000, 2000

_HALVES = re.compile(r"[\ud800-\udfff]")  # halves of letters, which no text can hold


def _text(value):
    return _HALVES.sub("\ufffd", value) if isinstance(value, str) and not value.isascii() else value


def _line(value):
    is_line = not isinstance(value, str) or (len(value) <= MOST_LETTERS and value.isprintable())
    return value if is_line else one_line(_text(value), MOST_LETTERS)


T = TypeVar("T")
OfNodes = Annotated[list[T], Field(max_length=MOST_RANKS)]  # of each node or rank
OfClasses = Annotated[list[T], Field(max_length=MOST_CLASSES)]
Few = Annotated[list[T], Field(max_length=MOST_LINES)]
Many = Annotated[list[T], Field(max_length=MOST)]
Text = Annotated[str, BeforeValidator(_text)]  # from events, files or names of files: of any letters
Line = Annotated[str, BeforeValidator(_line)]  # the same, on one line
Age = Annotated[str, Field(pattern=r"\A[0-9]{1,9}\z")]  # a count of updates
Number = int | float  # finite; an integer stays one


class Part(BaseModel):
    """A part of a result. Values are of exactly these types; fields that are not known here are ignored."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False, populate_by_name=True)


class Spec(Part):
    """Every setting of a run, those of other versions included: a result outlives the strategies that it names."""

    model_config = ConfigDict(extra="allow")

    sync: Line
    model: Line
    data: Line
    nodes: int
    nproc: int = 1
    batch: int  # samples per step over all workers
    shares: OfNodes[int] | None = None  # of each worker; None: all alike
    lr: Number | None = None
    precision: Line = "fp32"

    @model_validator(mode="after")
    def _has_few_settings(self) -> "Spec":
        if len(self.model_extra or {}) > MOST_SETTINGS:
            raise PydanticCustomError("settings", "a spec has at most {most} settings", {"most": MOST_SETTINGS})
        return self

    @classmethod
    def of(cls, spec: RunSpec) -> "Spec":
        """The settings of a run that begins now."""
        return cls.model_validate(json.loads(spec.to_json()))

    @model_serializer
    def values(self) -> dict[str, Any]:
        """Every setting by the name of its field, in the order of RunSpec; those of other versions follow."""
        values = self.__dict__ | (self.model_extra or {})
        return {name: values[name] for name in dict.fromkeys((*RunSpec.setting_names(), *values)) if name in values}


class Error(Part):
    """Why a run failed."""

    kind: Line
    message: Line
    rank: int | None = None  # the one to blame
    last_lines: Few[Line] = []  # what it printed besides events
    traceback: Text = ""


class Limits(Part):
    """What a node was held to; None: no limit."""

    cpus: Number | None  # cores
    memory_bytes: Number | None


class Measured(Part):
    """A link before the first step."""

    rate_bits: Number  # bits per second to the next node, headers included
    round_trip_ms: Number


class Link(Part):
    """What was asked of a node's interface, and what it was measured at."""

    rate_bits: Number | None = None  # bits per second; None: any
    delay_ms: Number = 0  # one way
    jitter_ms: Number = 0
    loss_percent: Number = 0
    congestion: Line | None = None  # TCP's congestion control; None: the machine's own
    measured: Measured | None = None


class FaultRecord(Part):
    """What became of a fault. Seconds count from the beginning of the first step; None: the run did not come to it."""

    fault: Line  # in the words of FAULT=
    step: int | None  # the last that any worker had done by then
    began_seconds: Number | None
    ended_seconds: Number | None
    error: Line | None


class ResumedFrom(Part):
    """The checkpoint that a run went on from."""

    run: Line
    step: int


class DataInfo(Part):
    """The images that were used."""

    label: Line
    key: Line  # the same key is the same bytes
    train_samples: int | None = None
    test_samples: int | None = None


class Host(Part):
    """The machine that held the nodes, as the orchestrator saw it."""

    system: Line
    cpu: Line
    cores: int | None
    memory_bytes: int


class StepSeconds(Part):
    """Wall time of a rank's steps, the first left out; None for a rank without a second one."""

    mean: Number | None
    median: Number | None
    p95: Number | None


class PhaseSeconds(Part):
    """Mean seconds of each phase of a rank's steps, the first left out."""

    data: Number | None
    forward: Number | None
    backward: Number | None
    sync: Number | None  # the exposed part: what backward did not hide
    optimizer: Number | None

    def by_phase(self) -> dict[str, Number | None]:
        """The seconds by the phase's name, in the order of a step."""
        return {phase: getattr(self, phase) for phase in PHASES}


class Staleness(Part):
    """Updates that servers made between a worker's pull and its push, mean over the servers."""

    mean: Number
    max: Number
    histogram: Annotated[dict[Age, int], Field(max_length=MOST)]  # whole updates: steps that had as many


class Rank(Part):
    """What one rank did. Figures of its node are the same for each rank there."""

    rank: int
    node: Line
    role: Line  # worker, server or evaluator
    steps: int  # of this run that count
    step_seconds: StepSeconds
    phase_seconds: PhaseSeconds
    sent_bytes: int  # payload
    received_bytes: int
    interface_sent_bytes: int | None = None
    interface_received_bytes: int | None = None
    updates: int | None = None  # of a parameter server
    staleness: Staleness | None = None
    peak_memory_bytes: int | None = None  # resident set of its process
    cpu_seconds: Number | None = None
    peak_cpu_percent: Number | None = None  # of one core, over 1 s; the node's, as all that follows
    throttled_seconds: Number | None = None
    node_peak_memory_bytes: Number | None = None  # working set
    network_received_bytes: Number | None = None
    network_sent_bytes: Number | None = None

    @property
    def is_worker(self) -> bool:
        """Whether it trains, however far it came."""
        return self.role == WORKER


class ClassScore(Part):
    """How well one class was predicted."""

    name: Line = Field(validation_alias="class", serialization_alias="class")
    precision: Number
    recall: Number
    f1: Number
    support: int  # test samples of this class


class LostWorker(Part):
    """A worker that the others went on without."""

    rank: int
    step: int  # its last
    reason: Line


class Evaluation(Part):
    """A score on the whole test set while training went on."""

    step: int
    updates: int | None = None  # of the first server, by then
    loss: Number | None
    accuracy: Number
    seconds: Number  # since the command


class CheckpointEntry(Part):
    """A complete checkpoint."""

    step: int
    path: Line  # of its folder, in the run's
    bytes: int
    seconds: Number  # that it took to write


class Restart(Part):
    """A failure that was overcome from a checkpoint. What was lost is counted over all ranks."""

    attempt: int  # from 1
    kind: Line
    message: Line
    from_step: int  # 0: from the start
    lost_steps: int
    lost_samples: int
    lost_sent_bytes: int
    lost_seconds: Number  # since `from_step`, or since the attempt's first step began
    startup_seconds: Number | None  # from the restart to the next step's beginning; None: there was none


class StartupParts(Part):
    """Where the seconds before the first step went."""

    prepare_and_launch: Number
    import_and_build: Number


class Seconds(Part):
    """Where the time went; None: it did not come to that."""

    startup: Number | None = None  # from the command to the first step
    startup_parts: StartupParts | None = None
    training: Number | None = None  # from the first step to the end of the last
    recovery: Number | None = None  # of training, what restarts took
    evaluation: Number | None = None
    total: Number | None = None
