"""RunSpec: everything that decides what a run computes. Besides events, the only thing that both sides share.

spec = RunSpec.from_settings({"SYNC": "ddp", "BATCH": "128"})   # the words of `make run`
RunSpec.from_json(spec.to_json()) == spec
"""

import json
import math
from dataclasses import MISSING, asdict, dataclass, field, fields
from difflib import get_close_matches

from trainer.registry import DATA, MODELS, SYNCS

PRECISIONS = ("fp32", "bf16")
MAX_NODES = 16


class SpecError(ValueError):
    """A value that cannot be run: which setting, what was given, what would do. str() is one line."""

    def __init__(self, setting: str, value: object, hint: str):
        self.setting, self.value, self.hint = setting, value, hint
        super().__init__(f"{setting}={value}: {hint}")


def setting(name: str, default, help: str):
    """A field of the spec that the user sets as NAME=value."""
    return field(default=default, metadata={"setting": name, "help": help})


@dataclass(frozen=True)
class RunSpec:
    """One training job. Validated when built; raises SpecError."""

    sync: str = setting("SYNC", "ddp", "how replicas are kept together: " + ", ".join(SYNCS))
    model: str = setting("MODEL", "vgg11", "what is trained: " + ", ".join(MODELS))
    data: str = setting("DATA", "cifar10", "what it is trained on: " + ", ".join(DATA))
    nodes: int = setting("NODES", 4, f"nodes that train together, 1..{MAX_NODES}")
    batch: int = setting("BATCH", 256, "global batch: samples per step over all nodes")
    steps: int | None = setting("STEPS", 40, "optimizer steps")
    epochs: int | None = setting("EPOCHS", None, "passes over the training data, instead of STEPS")
    seed: int = setting("SEED", 42, "seed of weights, data order and augmentation")
    lr: float = setting("LR", 0.1, "learning rate")
    momentum: float = setting("MOMENTUM", 0.9, "SGD momentum")
    weight_decay: float = setting("WEIGHT_DECAY", 1e-4, "L2 penalty")
    precision: str = setting("PRECISION", "fp32", "arithmetic of forward and backward: " + ", ".join(PRECISIONS))
    every_steps: int = setting("EVERY", 0, "steps between checkpoints; 0: one at the end")
    deadline_seconds: float = setting("DEADLINE", 30.0, "seconds within which a lost or silent rank ends the run")

    def __post_init__(self):
        _one_of("SYNC", self.sync, SYNCS)
        _one_of("MODEL", self.model, MODELS)
        _one_of("DATA", self.data, DATA)
        _one_of("PRECISION", self.precision, PRECISIONS)
        _whole("NODES", self.nodes, 1, MAX_NODES)
        _whole("BATCH", self.batch, 1)
        _whole("SEED", self.seed, 0, 2**31 - 1)
        _whole("EVERY", self.every_steps, 0)
        _number("LR", self.lr, 0, strictly=True)
        _number("MOMENTUM", self.momentum, 0, below=1)
        _number("WEIGHT_DECAY", self.weight_decay, 0)
        _number("DEADLINE", self.deadline_seconds, 5)
        if (self.steps is None) == (self.epochs is None):
            raise SpecError("EPOCHS", self.epochs, "give either STEPS or EPOCHS" + (", not both" if self.steps else ""))
        if self.steps is not None:
            _whole("STEPS", self.steps, 1)
        else:
            _whole("EPOCHS", self.epochs, 1)
        if not SYNCS[self.sync].distributed and self.nodes != 1:
            raise SpecError("NODES", self.nodes, f"SYNC={self.sync} is one replica; leave NODES out or give 1")
        if self.batch % self.nodes:
            low = self.batch - self.batch % self.nodes
            near = f"{low} or {low + self.nodes}" if low else f"{self.nodes} or {2 * self.nodes}"
            raise SpecError("BATCH", self.batch, f"does not divide over NODES={self.nodes}; {near} would do")
        wants, has = MODELS[self.model].input_shape, DATA[self.data].shape
        if wants != has:
            fits = ", ".join(name for name, d in DATA.items() if d.shape == wants)
            raise SpecError("DATA", self.data, f"images are {has}, MODEL={self.model} takes {wants}: {fits} would do")

    @classmethod
    def from_settings(cls, settings: dict[str, str]) -> "RunSpec":
        """Build from the words of `make run`, all values text. A word that is not a setting raises SpecError."""
        by_setting = {f.metadata["setting"]: f for f in fields(cls)}
        values = {}
        for name, text in settings.items():
            if name not in by_setting:
                raise SpecError(name, text, unknown(name, by_setting))
            values[by_setting[name].name] = _convert(name, text, by_setting[name].type)
        if "epochs" in values:
            values.setdefault("steps", None)
        if not SYNCS.get(values.get("sync", cls.sync), SYNCS["ddp"]).distributed:
            values.setdefault("nodes", 1)
        return cls(**values)

    def to_json(self) -> str:
        """One line of JSON; from_json reads it back."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "RunSpec":
        """Raises SpecError when a value cannot be run, and when a field is not known to this version."""
        values = json.loads(text)
        known = {f.name for f in fields(cls)}
        for name in values.keys() - known:
            raise SpecError(name, values[name], "not a field of this version's spec")
        return cls(**values)


def unknown(name: str, known) -> str:
    """The hint for a setting that does not exist."""
    near = get_close_matches(name.upper(), list(known), n=1)
    return f"no such setting; did you mean {near[0]}?" if near else "no such setting; one of: " + ", ".join(known)


def _one_of(name, value, allowed):
    if value not in allowed:
        raise SpecError(name, value, "one of: " + ", ".join(allowed))


def _whole(name, value, low, high=None):
    span = f"a whole number from {low}" + (f" to {high}" if high is not None else "")
    if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
        raise SpecError(name, value, span)


def _number(name, value, low, strictly=False, below=math.inf):
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not good or value < low or (strictly and value == low) or value >= below:
        most = f" and below {below}" if below != math.inf else ""
        raise SpecError(name, value, f"a number {'above' if strictly else 'from'} {low}{most}")


def _convert(name, text, kind):
    """Text to the field's type; what is not even a number raises SpecError here, ranges are checked when built."""
    if kind is str:
        return text
    whole = kind is not float
    try:
        return int(text) if whole else float(text)
    except ValueError:
        raise SpecError(name, text, "a whole number" if whole else "a number") from None


assert all(f.default is not MISSING for f in fields(RunSpec)), "every setting has a default"
