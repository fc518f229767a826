"""Every strategy, model and data set by name, without importing torch.

The monitor validates a spec and the trainer builds from it, so the names live here once, with the place of the code as
"module:attribute". Adding a strategy, a model or a data set is one file and one line in this table.
"""

from dataclasses import dataclass
from importlib import import_module


@dataclass(frozen=True)
class Strategy:
    place: str
    summary: str
    distributed: bool = True  # False: one replica, NODES must be 1


@dataclass(frozen=True)
class Model:
    place: str
    summary: str
    input_shape: tuple[int, int, int]  # channels, height, width
    parameters: int  # at 10 classes; asserted when the model is built


@dataclass(frozen=True)
class DataSet:
    place: str  # "module:function" in monitor/, which prepares it; ranks only read what was prepared
    summary: str
    shape: tuple[int, int, int]  # channels, height, width
    classes: int


SYNCS = {
    "single": Strategy("trainer.sync.single:Single", "one replica, no wire", distributed=False),
    "ddp": Strategy("trainer.sync.ddp:Ddp", "torch's DistributedDataParallel, all-reduce overlapped with backward"),
}

MODELS = {
    "vgg11": Model("trainer.models.vgg:vgg11", "VGG-11 with batch norm for 32x32 images", (3, 32, 32), 9_231_114),
}

DATA = {
    "cifar10": DataSet("monitor.data.cifar10:prepare", "CIFAR-10: 50,000 + 10,000 colour photographs", (3, 32, 32), 10),
    "synthetic": DataSet(
        "monitor.data.synthetic:prepare", "learnable images made from the seed, nothing fetched", (3, 32, 32), 10
    ),
}


def load(place: str):
    """Import the object at "module:attribute"."""
    module, attribute = place.split(":")
    return getattr(import_module(module), attribute)
