"""A run that is ready to begin: its spec is checked, its data is prepared, its checkpoint is read."""

from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from monitor.data import catalogue
from monitor.data.store import Prepared
from monitor.run.request import Request
from monitor.run.resume import Source
from trainer.spec import RunSpec, SpecError

WARNING = "warning: "


@dataclass(frozen=True)
class Plan:
    """What one run is going to do. `warnings`: lines that its result repeats."""

    spec: RunSpec
    prepared: Prepared
    runs: Path
    source: Source | None = None
    restarts: int = 0
    warnings: tuple[str, ...] = ()

    @property
    def steps_before(self) -> int:
        """Steps that its checkpoint has done already."""
        return self.source.step if self.source else 0

    @property
    def last_step(self) -> int:
        """The number of its last step."""
        return self.spec.steps or (self.spec.epochs or 0) * (self.train_samples // self.spec.batch)

    @property
    def train_samples(self) -> int:
        """Images of the training set."""
        return self.prepared.manifest["train_samples"]


def make_plan(request: Request, spec: RunSpec, source: Source | None, console: Console) -> Plan:
    """Prepare the data of a request. Raises UserError when it cannot be had, SpecError when it is too small."""
    warnings = []

    def tell(line: str) -> None:
        console.print(line, markup=False, highlight=False)
        if line.startswith(WARNING):
            warnings.append(line.removeprefix(WARNING))

    data = request.data
    if source:
        prepared = source.data(data.folder, data.cache, tell)
        source.check_length(spec, prepared.manifest["train_samples"])
    else:
        prepared = catalogue.prepare(
            spec.data,
            seed=spec.seed,
            data_dir=data.folder,
            cache=data.cache,
            say=tell,
            shape=spec.shape,
            or_synthetic=not data.is_named,
        )
        spec = replace(spec, data=prepared.manifest["name"])
    plan = Plan(spec, prepared, request.runs, source, request.restarts, tuple(warnings))
    if spec.batch > plan.train_samples:
        raise SpecError("BATCH", spec.batch, f"the training set has {plan.train_samples} images")
    return plan
