"""RESUME=: which checkpoint a run goes on from, and whether it may.

RESUME=latest   RESUME=20260301-101500-ddp-vgg11-4n-3f9a1c   RESUME=runs/<id>   RESUME=runs/<id>/checkpoints/step-000040
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from monitor.data import catalogue
from monitor.data.store import complete
from monitor.errors import UserError
from monitor.results import store
from trainer.checkpoint_folder import FOLDER, DamagedError, complete_ones, verify
from trainer.names import is_run
from trainer.spec import RunSpec, SpecError

# Fields that may differ: they change nothing that is computed.
FREE = ("steps", "epochs", "every_steps", "evaluate_steps", "deadline_seconds", "tensorboard")


@dataclass(frozen=True)
class Source:
    """A checkpoint that is whole, and the run that it is of."""

    run_id: str
    folder: Path
    step: int
    spec: RunSpec
    data_key: str
    data_label: str

    def spec_of(self, settings: Mapping[str, str]) -> RunSpec:
        """The old run's spec with these settings in place of its own. Raises SpecError where one may not differ."""
        values = RunSpec.values_of(dict(settings))
        for field in fields(RunSpec):
            old = getattr(self.spec, field.name)
            new = values.get(field.name, old)
            if new != old and field.name not in FREE:
                free = ", ".join(f.metadata["setting"] for f in fields(RunSpec) if f.name in FREE)
                text = f"run {self.run_id} was computed with {old}; going on, only {free} may differ"
                raise SpecError(field.metadata["setting"], new, text)
        return self.spec.changed(values)

    def data(self, data_dir: Path | None, cache: Path, say) -> catalogue.Prepared:
        """The data set of the old run: what the cache has of it, or prepared again. Raises UserError for another."""
        if data_dir is None and is_run(self.data_key) and (prepared := complete(cache / self.data_key)):
            return prepared
        spec = self.spec
        prepared = catalogue.prepare(
            spec.data, seed=spec.seed, data_dir=data_dir, cache=cache, say=say, shape=spec.shape
        )
        if prepared.key != self.data_key:
            raise UserError(
                f"RESUME={self.run_id}: it was trained on {self.data_label} ({self.data_key}), "
                f"this is {prepared.label} ({prepared.key}); name its folder with DATA_DIR="
            )
        return prepared

    def check_length(self, spec: RunSpec, train_samples: int) -> None:
        """Raise UserError when the run would have no step left to do."""
        steps = spec.steps or (spec.epochs or 0) * (train_samples // spec.batch)
        if steps <= self.step:
            length = f"STEPS={spec.steps}" if spec.steps else f"EPOCHS={spec.epochs}, {steps} steps"
            raise UserError(
                f"RESUME={self.run_id}: it has done {self.step} steps already, {length} leaves none; "
                f"STEPS={2 * self.step} would go on"
            )


def find(name: str, runs: Path) -> Source:
    """The last complete checkpoint of a run, or the one that the path names. Raises UserError in one line."""
    try:
        folder = runs / name if name and (runs / name).is_dir() else Path(name)
        exists = name and folder.is_dir()
    except OSError as error:
        raise UserError(f"RESUME={name}: cannot be read ({error.strerror or error})") from None
    if not exists:
        newest = ", ".join(path.name for path in store.folders(runs)[:3]) or "none yet"
        raise UserError(f"RESUME={name}: no such run in {runs} (newest: {newest}), and no folder of that name")
    folder = _without_links(Path(os.path.abspath(folder)))  # noqa: PTH100 (resolve would follow them)
    if folder.parent.name == FOLDER:
        run, checkpoints = folder.parents[1], [folder]
    else:
        run, checkpoints = folder, complete_ones(folder / FOLDER)
    if not checkpoints:
        raise UserError(f"RESUME={name}: run {run.name} has no complete checkpoint{_one_that_has(runs)}")
    try:
        checkpoint = verify(checkpoints[-1])
        spec = RunSpec.from_json(json.dumps(checkpoint.spec))
    except DamagedError as error:
        earlier = f"; RESUME={checkpoints[-2]} is an earlier one" if len(checkpoints) > 1 else ""
        raise UserError(f"RESUME={name}: {error}{earlier}") from None
    except SpecError as error:
        raise UserError(f"RESUME={name}: its spec is of another version of syncbed: {error}") from None
    data = store.load(run.name, run.parent).data
    return Source(run.name, checkpoints[-1], checkpoint.step, spec, data.key, data.label)


def _without_links(folder: Path) -> Path:
    """The folder of a run or checkpoint. `latest` may be received: it leads to a run beside it or it is refused."""
    if folder.parent.name == FOLDER:
        run = folder.parents[1]
        return store.folder_of(run.name, run.parent) / FOLDER / folder.name
    return store.folder_of(folder.name, folder.parent)


def _one_that_has(runs: Path) -> str:
    newest = next((path.name for path in store.folders(runs) if complete_ones(path / FOLDER)), None)
    return f"; RESUME={newest} has" if newest else "; EVERY= makes some as a run goes on"
