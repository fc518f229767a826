"""Every strategy, model and data set by name, without importing torch.

The monitor validates a spec and the trainer builds from it, so the names live here once, with the
place of the code as "module:attribute". Adding a strategy or a model is one file and one line in
this table. How a data set is prepared is the orchestrator's part: see monitor/data/catalogue.py.
Ranks only read what was prepared.
"""

from dataclasses import dataclass
from importlib import import_module

Shape = tuple[int, int, int]  # channels, height, width of an image
COLOUR, GREY = (3, 32, 32), (1, 28, 28)
MOST_CLASSES = 1000  # of a data set: a confusion matrix has the square of it


@dataclass(frozen=True)
class Strategy:
    place: str
    summary: str
    # Bytes that a rank sends per step: S is the bytes of all gradients, n the number of ranks. Cases are parted by
    # semicolons and begin with whom or what they are of. tests/unit/sync/test_formulas.py computes them.
    sends: str = ""
    use: str = ""  # when one would use it, for the documentation
    distributed: bool = True  # False: one replica, NODES must be 1
    repeatable: bool = True  # False: what it computes depends on which rank is faster
    shared_memory: bool = False  # ranks share the memory of one node: NODES must be 1, NPROC says how many they are
    servers: bool = False  # parameter servers take part beside the workers
    survives_lost_workers: bool = False  # goes on when a worker other than rank 0 is lost after its first step
    exact: bool = True  # equals SGD on the joined batch to float tolerance; the algebra tests then run on it
    batch_per_worker: bool = False  # workers do not share a batch: the batch of each decides what a step is worth
    settings: tuple[str, ...] = ()  # fields of the spec that this strategy takes and not all do

    @property
    def one_node(self) -> bool:
        return self.shared_memory or not self.distributed


@dataclass(frozen=True)
class Model:
    place: str  # "module:function", called with the number of classes and the shape of an image
    summary: str
    parameters: dict[Shape, int]  # by each shape it takes, the preferred first; at 10 classes, held against when built
    lr: float = 0.1  # the learning rate where none is named

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The image shapes this model takes, the preferred first."""
        return tuple(self.parameters)


@dataclass(frozen=True)
class DataSet:
    summary: str
    shape: Shape | None  # None: made in whatever shape the model takes
    classes: int

    def fits(self, model: Model) -> bool:
        """Whether the model takes these images."""
        return self.shape is None or self.shape in model.shapes


_COMPRESSION = ("compress", "ratio", "compress_rank")
_SERVERS = ("servers", "colocated", "evaluator")

SYNCS = {
    "single": Strategy(
        "trainer.sync.single:Single",
        "one replica, no wire",
        sends="0",
        use="the baseline: one replica",
        distributed=False,
    ),
    "ddp": Strategy(
        "trainer.sync.ddp:Ddp",
        "torch's DistributedDataParallel, all-reduce overlapped with backward",
        sends="2(n-1)/n · S",
        use="the default: DistributedDataParallel overlaps its all-reduce with backward",
        settings=("shares", "sync_bn"),
    ),
    "all_reduce": Strategy(
        "trainer.sync.all_reduce:AllReduce",
        "gradients summed by all-reduce after backward",
        sends="2(n-1)/n · S",
        use="to see what `ddp` hides: the same traffic, after backward",
        settings=("shares", "sync_bn", "granularity", "bucket_mb", *_COMPRESSION),
    ),
    "ring": Strategy(
        "trainer.sync.ring:Ring",
        "our own ring all-reduce from point-to-point sends",
        sends="2(n-1)/n · S",
        use="to read how an all-reduce works: reduce-scatter and all-gather from point-to-point sends",
        settings=("shares", "sync_bn", *_COMPRESSION),
    ),
    "gather_scatter": Strategy(
        "trainer.sync.gather_scatter:GatherScatter",
        "gradients gathered on rank 0, averaged, scattered back",
        sends="rank 0: (n-1) · S; others: S",
        use="the centralised way, whose cost the others avoid: rank 0's link is the bottleneck",
        settings=("shares", "sync_bn"),
    ),
    "local_sgd": Strategy(
        "trainer.sync.local_sgd:LocalSgd",
        "H local steps, then weights and momentum averaged",
        sends="2(n-1)/n · 2S/H; MOMENTUM=0: 2(n-1)/n · S/H",
        use="slow links: one average of weights and momentum every `H` steps",
        exact=False,
        settings=("local_steps",),
    ),
    "diloco": Strategy(
        "trainer.sync.diloco:Diloco",
        "H local steps, then an outer Nesterov step along the averaged change",
        sends="2(n-1)/n · S/H",
        use="slower links, `H` in the hundreds: an outer optimizer takes the averaged change",
        exact=False,
        settings=("local_steps", "outer_lr", "outer_momentum", *_COMPRESSION),
    ),
    "gossip": Strategy(
        "trainer.sync.gossip:Gossip",
        "after each step, weights averaged with the neighbours only",
        sends="TOPOLOGY=ring: 2S; TOPOLOGY=random: S",
        use="no rank waits for all others; training continues without a lost worker",
        survives_lost_workers=True,
        exact=False,
        settings=("topology",),
    ),
    "psgd": Strategy(
        "trainer.sync.psgd:Psgd",
        "each worker alone on its part of the data, weights averaged once at the end",
        sends="0; once at the end: 2(n-1)/n · S",
        use="hardly any link: workers train alone, and their weights are averaged once",
        exact=False,
        batch_per_worker=True,
        settings=("transport",),
    ),
    "hogwild": Strategy(
        "trainer.sync.hogwild:Hogwild",
        "lock-free workers on the shared memory of one node",
        sends="0",
        use="one node, `NPROC` processes (2 by default): updates of shared memory without locks",
        repeatable=False,
        shared_memory=True,
        exact=False,
        batch_per_worker=True,
    ),
    "ps_sync": Strategy(
        "trainer.sync.ps_sync:PsSync",
        "parameter servers in lock-step",
        sends="worker: S; server of the part P: n · P",
        use="parameter servers in lock-step: one SGD step on the joined batch",
        servers=True,
        settings=("shares", *_SERVERS, *_COMPRESSION),
    ),
    "ps_async": Strategy(
        "trainer.sync.ps_async:PsAsync",
        "parameter servers, each worker at its own pace up to STALENESS steps ahead",
        sends="worker: S; server of the part P: n · P",
        use="unequal nodes: no worker waits; training continues without a lost worker",
        servers=True,
        survives_lost_workers=True,
        repeatable=False,
        exact=False,
        settings=("staleness", *_SERVERS, *_COMPRESSION),
    ),
}

# What may travel in place of gradients (COMPRESS).
COMPRESSORS = {
    "none": "trainer.compress.none:Plain",
    "bf16": "trainer.compress.bf16:Bf16",
    "topk": "trainer.compress.topk:TopK",
    "powersgd": "trainer.compress.powersgd:PowerSgd",
}

MODELS = {
    "vgg11": Model("trainer.models.vgg:vgg11", "VGG-11 with batch norm for 32x32 images", {COLOUR: 9_231_114}),
    "vgg13": Model("trainer.models.vgg:vgg13", "VGG-13 with batch norm for 32x32 images", {COLOUR: 9_416_010}),
    "vgg16": Model("trainer.models.vgg:vgg16", "VGG-16 with batch norm for 32x32 images", {COLOUR: 14_728_266}),
    "vgg19": Model("trainer.models.vgg:vgg19", "VGG-19 with batch norm for 32x32 images", {COLOUR: 20_040_522}),
    "alexnet": Model(
        "trainer.models.alexnet:alexnet",
        "AlexNet with a stem for 32x32 images; most of it is linear",
        {COLOUR: 57_044_810},
        lr=0.01,
    ),
    "cnn3": Model(
        "trainer.models.cnn:cnn3", "6 and 16 filters of 5x5, a hidden layer of 64", {COLOUR: 29_186}, lr=0.01
    ),
    "cnn5": Model("trainer.models.cnn:cnn5", "two convolutions, three poolings, dropout", {GREY: 9_840}, lr=0.01),
    "logistic": Model(
        "trainer.models.logistic:logistic",
        "softmax regression, one linear layer",
        {GREY: 7_850, COLOUR: 30_730},
        lr=0.01,
    ),
}

DATA = {  # of two that fit a model, the first is its default
    "cifar10": DataSet("CIFAR-10: 50,000 + 10,000 colour photographs", COLOUR, 10),
    "svhn": DataSet("SVHN: 73,257 + 26,032 house numbers, cropped digits", COLOUR, 10),
    "mnist": DataSet("MNIST: 60,000 + 10,000 handwritten digits", GREY, 10),
    "fashion_mnist": DataSet("Fashion-MNIST: 60,000 + 10,000 pieces of clothing", GREY, 10),
    "synthetic": DataSet("learnable images made from the seed, nothing fetched", None, 10),
}


def shape_text(shape: Shape) -> str:
    """A shape as people write it: 3x32x32."""
    return "x".join(map(str, shape))


def image_shape(model: str, data: str) -> Shape:
    """The shape of the images that this model is trained on with this data."""
    return DATA[data].shape or MODELS[model].shapes[0]


def default_data(model: str) -> str:
    """The data set a model is trained on when none is named: the first that has its preferred shape."""
    return next(name for name, data in DATA.items() if data.shape in (None, MODELS[model].shapes[0]))


def load(place: str):
    """Import the object at "module:attribute"."""
    module, attribute = place.split(":")
    return getattr(import_module(module), attribute)
