"""result.json as types: what was run, and what came of it. docs/result.md describes each field for users.

A result is written twice. When a run begins, it holds what is known then and lacks the rest: those fields are None or
empty. When the run has ended, it holds every field.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from monitor.results.parts import (
    MOST_LINES,
    CheckpointEntry,
    ClassScore,
    DataInfo,
    Error,
    Evaluation,
    FaultRecord,
    Few,
    Host,
    Limits,
    Line,
    Link,
    LostWorker,
    Many,
    Number,
    OfClasses,
    OfNodes,
    Part,
    Rank,
    Restart,
    ResumedFrom,
    Seconds,
    Spec,
)

SCHEMA = 2
RUNNING, FINISHED, FAILED = "running", "finished", "failed"
NEEDED = ("steps", "ranks", "seconds", "train_loss", "test_loss", "test_accuracy")  # fields of every finished run


class Result(Part):
    """One run. The order of the fields is that of result.json."""

    schema_: int = Field(validation_alias="schema", serialization_alias="schema")
    id: Line
    status: Literal["running", "finished", "failed"]
    error: Error | None
    runtime: Line
    spec: Spec
    limits: OfNodes[Limits]  # of each node
    links: OfNodes[Link]  # of each node; empty: as it was
    faults: Few[FaultRecord]
    resumed_from: ResumedFrom | None
    data: DataInfo
    orchestrator_pid: int | None = None  # while it runs
    orchestrator_start: str | None = None  # tells its process from a later one of that id
    host: Host
    versions: Annotated[dict[Line, Line], Field(max_length=MOST_LINES)] = Field(default={})
    parameters: int | None = None
    gradient_bytes: int | None = None
    steps: int | None = None  # number of the last one asked for
    ranks: OfNodes[Rank] = Field(default=[])
    train_loss: Number | None = None  # of the last step's global batch
    test_loss: Number | None = None
    test_accuracy: Number | None = None
    test_samples_counted: int | None = None
    classes: OfClasses[Line] | None = None
    per_class: OfClasses[ClassScore] | None = None
    confusion_matrix: OfClasses[OfClasses[int]] | None = None  # [true class][predicted class]
    distinct_samples: int | None = None
    samples_seen: int | None = None
    synchronisations: int | None = None
    lost_workers: OfNodes[LostWorker] = Field(default=[])
    evaluations: Many[Evaluation] = Field(default=[])
    checkpoints: Many[CheckpointEntry] = Field(default=[])
    warnings: Few[Line] = Field(default=[])
    restarts: Few[Restart] = Field(default=[])
    seconds: Seconds = Seconds()

    @model_validator(mode="after")
    def _is_whole(self) -> "Result":
        lacking = [name for name in NEEDED if name not in self.model_fields_set]
        if self.status == FINISHED and lacking:
            raise PydanticCustomError("missing", "a finished run has {name}", {"name": lacking[0]})
        return self

    @model_validator(mode="after")
    def _shares_are_of_the_workers(self) -> "Result":
        shares = self.spec.shares
        if shares and self.ranks and len(shares) != sum(rank.is_worker for rank in self.ranks):
            raise PydanticCustomError("shares", "spec.shares has a share for each worker")
        return self

    @model_validator(mode="after")
    def _links_are_of_the_nodes(self) -> "Result":
        if 0 < len(self.links) < len(self.limits):
            raise PydanticCustomError("links", "links has a link for each node, or none")
        return self

    @model_validator(mode="after")
    def _scores_are_of_the_classes(self) -> "Result":
        if self.per_class is None:
            return self
        matrix = self.confusion_matrix or []
        sizes = {len(self.per_class), len(matrix), *(len(row) for row in matrix)}
        if sizes != {len(self.classes or ())}:
            raise PydanticCustomError("classes", "per_class and confusion_matrix have a row for each of classes")
        return self

    @property
    def workers(self) -> list[Rank]:
        """The ranks that trained: workers that did a step."""
        return [rank for rank in self.ranks if rank.is_worker and rank.steps]

    def document(self) -> dict[str, Any]:
        """The JSON document: every field that is set, in the order of result.json."""
        return self.model_dump(exclude_unset=True, by_alias=True)
