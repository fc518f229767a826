"""RunSpec: everything that decides what a run computes.

Besides events, the only thing that both sides share.

spec = RunSpec.from_settings({"SYNC": "ddp", "BATCH": "128"})   # the words of `make run`
RunSpec.from_json(spec.to_json()) == spec
"""

import json
from dataclasses import MISSING, asdict, dataclass, field, fields, replace

from trainer.registry import COMPRESSORS, DATA, MODELS, SYNCS, Shape, default_data, image_shape, shape_text
from trainer.values import Check, SpecError, convert, number, one_of, unknown, whole

PRECISIONS = ("fp32", "bf16")
GRANULARITIES = ("tensor", "bucket", "flat")
TRANSPORTS = ("gloo", "mpi")
TOPOLOGIES = ("ring", "random")
MAX_NODES = 16
MAX_NPROC = 16
DEFAULT_BATCH = 256
SWITCH = whole(0, 1)


def setting(name: str, default, help: str, check: Check | None = None):
    """A field of the spec that the user sets as NAME=value.

    `check`: of its value, whatever the others are.
    """
    return field(default=default, metadata={"setting": name, "help": help, "check": check})


@dataclass(frozen=True)
class RunSpec:
    """One training job. Validated when built; raises SpecError."""

    sync: str = setting("SYNC", "ddp", "how replicas are kept together: " + ", ".join(SYNCS), one_of(SYNCS))
    model: str = setting("MODEL", "vgg11", "what is trained: " + ", ".join(MODELS), one_of(MODELS))
    data: str = setting(
        "DATA", "cifar10", "what it is trained on, by default what fits MODEL: " + ", ".join(DATA), one_of(DATA)
    )
    nodes: int = setting("NODES", 4, f"nodes that train together, 1..{MAX_NODES}", whole(1, MAX_NODES))
    nproc: int = setting("NPROC", 1, "worker processes per node", whole(1, MAX_NPROC))
    batch: int = setting("BATCH", DEFAULT_BATCH, "global batch: samples per step over all workers", whole(1))
    shares: tuple[int, ...] | None = setting("SHARES", None, "each worker's part of the batch, as 2,1,1,1")
    steps: int | None = setting("STEPS", 40, "optimizer steps")
    epochs: int | None = setting("EPOCHS", None, "passes over the training data, instead of STEPS")
    seed: int = setting("SEED", 42, "seed of weights, data order and augmentation", whole(0, 2**31 - 1))
    lr: float = setting("LR", 0.1, "learning rate; 0.01 for models without batch norm", number(0, strictly=True))
    momentum: float = setting("MOMENTUM", 0.9, "SGD momentum", number(0, below=1))
    weight_decay: float = setting("WEIGHT_DECAY", 1e-4, "L2 penalty", number(0))
    precision: str = setting(
        "PRECISION", "fp32", "arithmetic of forward and backward: " + ", ".join(PRECISIONS), one_of(PRECISIONS)
    )
    sync_bn: int = setting("SYNC_BN", 0, "1: batch-norm statistics are of the global batch", SWITCH)
    granularity: str = setting(
        "GRANULARITY", "bucket", "what is reduced at once: " + ", ".join(GRANULARITIES), one_of(GRANULARITIES)
    )
    bucket_mb: float = setting("BUCKET_MB", 25.0, "size of a bucket, MB of gradients", number(0, strictly=True))
    compress: str = setting(
        "COMPRESS", "none", "how what is sent is made smaller: " + ", ".join(COMPRESSORS), one_of(COMPRESSORS)
    )
    ratio: float = setting(
        "RATIO", 0.01, "share of the entries that COMPRESS=topk sends", number(0, strictly=True, most=1)
    )
    compress_rank: int = setting("RANK", 2, "rank of COMPRESS=powersgd", whole(1))
    servers: int = setting("SERVERS", 1, "parameter server shards", whole(1, MAX_NODES))
    colocated: int = setting("COLOCATED", 0, "1: servers share the nodes of workers; 0: nodes of their own", SWITCH)
    evaluator: int = setting(
        "EVALUATOR", 0, "1: one more process evaluates the servers' weights while workers train", SWITCH
    )
    staleness: int = setting("STALENESS", 4, "steps that the fastest worker may be ahead of the slowest", whole(0))
    local_steps: int = setting("H", 8, "local steps between synchronisations", whole(1))
    outer_lr: float = setting("OUTER_LR", 0.7, "learning rate of the outer optimizer", number(0, strictly=True))
    outer_momentum: float = setting(
        "OUTER_MOMENTUM", 0.9, "Nesterov momentum of the outer optimizer", number(0, below=1)
    )
    transport: str = setting(
        "TRANSPORT", "gloo", "what carries the average: " + ", ".join(TRANSPORTS), one_of(TRANSPORTS)
    )
    topology: str = setting(
        "TOPOLOGY", "ring", "who a node averages with: " + ", ".join(TOPOLOGIES), one_of(TOPOLOGIES)
    )
    every_steps: int = setting("EVERY", 0, "steps between checkpoints; 0: one at the end", whole(0))
    evaluate_steps: int = setting("EVALUATE", 0, "steps between scores on the test set; 0: one at the end", whole(0))
    tensorboard: int = setting(
        "TENSORBOARD", 0, "1: scalars of every rank and the model's graph for TensorBoard", SWITCH
    )
    deadline_seconds: float = setting(
        "DEADLINE", 30.0, "seconds within which a lost or silent rank ends the run", number(5)
    )

    def __post_init__(self):
        for f in fields(self):
            if check := f.metadata["check"]:
                check(f.metadata["setting"], getattr(self, f.name))
        self._check_length()
        self._check_places()
        self._check_evaluation()
        self._check_strategy_settings()
        self._check_companions()
        self._check_batch()
        self._check_fit()

    def _check_length(self) -> None:
        """Either STEPS or EPOCHS, and at least one of it."""
        if (self.steps is None) == (self.epochs is None):
            raise SpecError("EPOCHS", self.epochs, "give either STEPS or EPOCHS" + (", not both" if self.steps else ""))
        if self.steps is not None:
            whole(1)("STEPS", self.steps)
        else:
            whole(1)("EPOCHS", self.epochs)

    def _check_places(self) -> None:
        """Refuse nodes and processes that the strategy has no use for."""
        strategy = SYNCS[self.sync]
        for name, value in (("NODES", self.nodes), ("NPROC", self.nproc)):
            if not strategy.distributed and value != 1:
                raise SpecError(name, value, f"SYNC={self.sync} is one replica; leave {name} out or give 1")
        if strategy.shared_memory and self.nodes != 1:
            text = f"SYNC={self.sync} shares the memory of one node; leave NODES out or give 1, and NPROC=workers"
            raise SpecError("NODES", self.nodes, text)

    def _check_evaluation(self) -> None:
        """Refuse scores between two steps where workers do not take them together."""
        strategy = SYNCS[self.sync]
        if self.evaluate_steps and strategy.servers and strategy.survives_lost_workers:
            text = f"the workers of SYNC={self.sync} do not stop together; EVALUATOR=1 scores the servers' weights"
            raise SpecError("EVALUATE", self.evaluate_steps, text)

    def _check_strategy_settings(self) -> None:
        """Refuse a setting that this strategy would not look at."""
        settings = SYNCS[self.sync].settings
        for f in fields(self):
            users = [name for name, strategy in SYNCS.items() if f.name in strategy.settings]
            if users and f.name not in settings and getattr(self, f.name) != f.default:
                text = f"SYNC={self.sync} does not take it; {', '.join(users)} would"
                raise SpecError(f.metadata["setting"], getattr(self, f.name), text)

    def _check_companions(self) -> None:
        """Refuse a setting that only one value of another setting looks at."""
        for name, companion, value in (
            ("ratio", "compress", "topk"),
            ("compress_rank", "compress", "powersgd"),
            ("bucket_mb", "granularity", "bucket"),
        ):
            if getattr(self, name) != getattr(RunSpec, name) and getattr(self, companion) != value:
                names = self.setting_names()
                raise SpecError(names[name], getattr(self, name), f"goes with {names[companion]}={value}")

    def _check_batch(self) -> None:
        """Refuse a batch that does not divide over the workers, or no workers at all."""
        if self.servers_alone >= self.nodes:
            text = f"SERVERS={self.servers} leaves no node for a worker; COLOCATED=1 would do"
            raise SpecError("NODES", self.nodes, text)
        shares = self.shares or (1,) * self.workers
        if len(shares) != self.workers or min(shares) < 1:
            text = ",".join(map(str, shares))
            raise SpecError("SHARES", text, f"{self.workers} whole numbers from 1, one for each worker")
        parts = sum(shares)
        if self.batch % parts:
            low = self.batch - self.batch % parts
            near = f"{low} or {low + parts}" if low else f"{parts} or {2 * parts}"
            raise SpecError("BATCH", self.batch, f"does not divide over {self._parts_text()}; {near} would do")

    def _check_fit(self) -> None:
        """Refuse images in a shape that the model does not take, and say what goes with either of the two."""
        model, data = MODELS[self.model], DATA[self.data]
        if data.shape is None or data.fits(model):
            return
        has, takes = shape_text(data.shape), " or ".join(map(shape_text, model.shapes))
        this_model = " or ".join(name for name, d in DATA.items() if d.fits(model))
        this_data = " or ".join(name for name, m in MODELS.items() if data.fits(m))
        raise SpecError(
            "DATA",
            self.data,
            f"its images are {has} and MODEL={self.model} takes {takes}; "
            f"with this model DATA={this_model} would do, with this data MODEL={this_data}",
        )

    def _parts_text(self) -> str:
        if self.shares:
            return f"SHARES={','.join(map(str, self.shares))}"
        if SYNCS[self.sync].servers and not self.colocated:
            return f"{self.workers} workers (NODES={self.nodes} less SERVERS={self.servers})"
        return f"NODES={self.nodes}" + (f" x NPROC={self.nproc}" if self.nproc > 1 else "")

    @property
    def shape(self) -> Shape:
        """Channels, height and width of the images."""
        return image_shape(self.model, self.data)

    @property
    def servers_alone(self) -> int:
        """Nodes that hold a server and no worker."""
        return self.servers if SYNCS[self.sync].servers and not self.colocated else 0

    @property
    def workers(self) -> int:
        """Ranks that train."""
        return (self.nodes - self.servers_alone) * self.nproc

    def total_steps(self, steps_per_epoch: int) -> int:
        """Optimizer steps of the run."""
        return self.steps or (self.epochs or 0) * steps_per_epoch

    def samples_of(self, worker: int) -> int:
        """This worker's part of the global batch."""
        shares = self.shares or (1,) * self.workers
        return self.batch * shares[worker] // sum(shares)

    @classmethod
    def from_settings(cls, settings: dict[str, str]) -> "RunSpec":
        """Build from the words of `make run`, all values text.

        A word that is not a setting raises SpecError.
        """
        values = cls.values_of(settings)
        if "epochs" in values:
            values.setdefault("steps", None)
        if values.get("model") in MODELS:
            values.setdefault("data", default_data(values["model"]))
            values.setdefault("lr", MODELS[values["model"]].lr)
        strategy = SYNCS.get(values.get("sync", cls.sync), SYNCS[cls.sync])
        if strategy.one_node:
            values.setdefault("nodes", 1)
        if strategy.shared_memory:
            values.setdefault("nproc", 2)
        if "batch" not in values:
            values["batch"] = cls._default_batch(values)
        return cls(**values)

    @classmethod
    def values_of(cls, settings: dict[str, str]) -> dict:
        """Fields and their values from the words of `make run`.

        Raises SpecError; ranges are not checked yet.
        """
        by_setting = {f.metadata["setting"]: f for f in fields(cls)}
        values = {}
        for name, text in settings.items():
            if name not in by_setting:
                raise SpecError(name, text, unknown(name, by_setting))
            values[by_setting[name].name] = convert(name, text, by_setting[name].type)
        return values

    def changed(self, values: dict) -> "RunSpec":
        """This spec with other values; STEPS takes the place of EPOCHS and the other way round.

        Raises SpecError.
        """
        if values.keys() & {"steps", "epochs"}:
            values = {"steps": None, "epochs": None} | values
        return replace(self, **values)

    @classmethod
    def _default_batch(cls, values: dict) -> int:
        """The default, or the largest batch below it that divides over the workers asked for."""
        if values.get("shares"):
            parts = sum(values["shares"])
        else:
            nodes, nproc = values.get("nodes", cls.nodes), values.get("nproc", cls.nproc)
            strategy = SYNCS.get(values.get("sync", cls.sync))
            alone = strategy is not None and strategy.servers and not values.get("colocated", cls.colocated)
            parts = (nodes - (values.get("servers", cls.servers) if alone else 0)) * nproc
        return max(DEFAULT_BATCH // parts, 1) * parts if parts > 0 else DEFAULT_BATCH

    @classmethod
    def setting_names(cls) -> dict[str, str]:
        """The name of each field's setting, as BATCH, by the field's name."""
        return {f.name: f.metadata["setting"] for f in fields(cls)}

    @classmethod
    def settings_help(cls) -> dict[str, str]:
        """What each setting is for, by name."""
        help = {f.metadata["setting"]: f.metadata["help"] for f in fields(cls)}
        defaults = {f.metadata["setting"]: f.default for f in fields(cls)}
        # Where the field's default is not the whole truth:
        defaults |= {"NODES": "the cluster's, or 4", "EPOCHS": "none", "SHARES": "equal"}
        return {name: f"{help[name]}; default: {defaults[name]}" for name in help}

    def to_json(self) -> str:
        """One line of JSON; from_json reads it back."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "RunSpec":
        """Raises SpecError when a value cannot be run, and when a field is not known to this version."""
        values = json.loads(text)
        names = {f.name for f in fields(cls)}
        for name in values.keys() - names:
            raise SpecError(name, values[name], "not a field of this version's spec")
        if values.get("shares") is not None:
            values["shares"] = tuple(values["shares"])
        return cls(**values)


assert all(f.default is not MISSING for f in fields(RunSpec)), "every setting has a default"
