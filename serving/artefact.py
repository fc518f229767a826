"""An exported model: a folder that says all there is to know to run it, without pickle and without the data set.

model.safetensors   weights and buffers by the names of the module's state
model.json          About: model, classes, normalisation, spec, metrics, and the weights' digest; written last
"""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save

from trainer.checkpoint_folder import sha256
from trainer.data.batches import normalise
from trainer.files import write_whole
from trainer.models.build import autocast
from trainer.names import is_run, is_sha256
from trainer.received import load_json, refuse_special
from trainer.registry import MODELS, MOST_CLASSES, Shape
from trainer.registry import load as load_place
from trainer.spec import RunSpec, SpecError

SCHEMA = 1
WEIGHTS, ABOUT = "model.safetensors", "model.json"
MOST_ABOUT, MOST_HEADER = 1 << 20, 1 << 20  # bytes of model.json, and of the weights' file besides the weights
MOST_LETTERS = 200


class ArtefactError(Exception):
    """A model that cannot be exported or loaded. str() is one line."""


@dataclass(frozen=True)
class About:
    """What model.json says."""

    model: str  # a name of trainer.registry.MODELS
    data: str
    shape: list[int]  # channels, height, width of an image
    classes: list[str]
    mean: list[float]  # of each channel of the training pixels, scaled to 0..1
    std: list[float]
    spec: dict  # fields of the RunSpec it was trained by
    metrics: dict  # test_accuracy, test_loss; None where they are not known
    run: str
    step: int
    syncbed: str  # the version that exported it
    sha256: str = ""  # of the weights' file
    schema: int = SCHEMA

    @property
    def image_shape(self) -> Shape:
        """Channels, height and width of an image. `read` has seen to it that there are three."""
        channels, height, width = self.shape
        return channels, height, width


class Predictor:
    """A loaded model.

    Called with uint8 images (b, C, H, W), or float32 in 0..255, it computes what training's
    evaluation computes of them: float32 (b, 2, classes), logits and their softmax. Threads may
    share it.
    """

    def __init__(self, module: torch.nn.Module, about: About):
        self.about = about
        self._module = module.to(memory_format=torch.channels_last).eval()
        self._autocast = RunSpec(**about.spec)

    def __call__(self, images: np.ndarray) -> np.ndarray:
        with torch.inference_mode(), autocast(self._autocast):
            logits = self._module(normalise(images, self.about.mean, self.about.std)).float()
            return torch.stack([logits, logits.softmax(1)], 1).numpy()


def write(folder: Path, module_state: dict[str, torch.Tensor], about: About) -> None:
    """Write the artefact into an existing folder.

    Raises OSError, and ArtefactError for weights that are not finite or not this model's.
    """
    check_state(module_state, about)
    broken = next((n for n, v in module_state.items() if v.is_floating_point() and not v.isfinite().all()), None)
    if broken:
        raise ArtefactError(f"{broken} is not finite: training diverged; a smaller LR= would do")
    weights = save({name: value.contiguous() for name, value in module_state.items()})
    write_whole(folder / WEIGHTS, weights)  # save_file would let nobody else read it
    document = asdict(about) | {"sha256": sha256(folder / WEIGHTS)}
    write_whole(folder / ABOUT, json.dumps(document, indent=1, allow_nan=False) + "\n")


def read(folder: Path) -> About:
    """What model.json says. Raises ArtefactError."""
    path = folder / ABOUT
    try:
        values = load_json(path, MOST_ABOUT)
        if values["schema"] != SCHEMA:
            raise ArtefactError(f"{path}: schema {values['schema']}, this syncbed reads {SCHEMA}; export the run again")
        about = About(**values)
        _check(about)
    except FileNotFoundError:
        raise ArtefactError(f"{folder}: no exported model, it has no {ABOUT}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtefactError(f"{path}: cannot be read ({error})") from None
    if about.model not in MODELS or tuple(about.shape) not in MODELS[about.model].shapes:
        raise ArtefactError(f"{path}: model {about.model} of {about.shape} is not known here; export the run again")
    if not len(about.mean) == len(about.std) == about.shape[0]:
        raise ArtefactError(f"{path}: mean and std are not one for each channel; export the run again")
    return about


def _check(about: About, is_written: bool = True) -> None:
    """Raise ValueError for names, counts and digests of forms that we do not write."""
    if not is_run(about.run) or (is_written and not is_sha256(about.sha256)):
        raise ValueError("run is no name of a run, or sha256 no digest")
    names = about.classes
    if not isinstance(names, list) or not 1 <= len(names) <= MOST_CLASSES:
        raise ValueError(f"classes is no list of 1 to {MOST_CLASSES} names")
    if not all(isinstance(name, str) and len(name) <= MOST_LETTERS for name in (*names, about.data, about.syncbed)):
        raise ValueError(f"a name is text of at most {MOST_LETTERS} letters")
    numbers = [*about.mean, *about.std, *about.shape]
    if not all(isinstance(number, int | float) for number in numbers) or not isinstance(about.model, str):
        raise ValueError("mean, std and shape are numbers, model is text")
    if not all(map(math.isfinite, numbers)) or min(about.std, default=1) <= 0:
        raise ValueError("mean and std are finite, std is above 0")
    if type(about.step) is not int or about.step < 0:
        raise ValueError("step is a whole number")
    RunSpec(**about.spec)  # raises SpecError, which is a ValueError


def check_state(module_state: dict[str, torch.Tensor], about: About) -> None:
    """Raise ArtefactError unless these are the weights of the model that is named: a checkpoint may say anything."""
    try:
        _check(about, is_written=False)
        if about.model not in MODELS or tuple(about.shape) not in MODELS[about.model].shapes:
            raise ValueError(f"model {about.model[:80]} of {about.shape} is not known here")
        with torch.device("meta"):  # of no memory
            module = load_place(MODELS[about.model].place)(len(about.classes), about.image_shape)
        shapes = {name: (value.shape, value.dtype) for name, value in module.state_dict().items()}
        if {name: (value.shape, value.dtype) for name, value in module_state.items()} != shapes:
            raise ValueError(f"its weights are not those of {about.model} with {len(about.classes)} classes")
    except (ValueError, TypeError, AttributeError) as error:
        raise ArtefactError(f"this checkpoint cannot be exported: {error}; train again") from None


def _check_weights(path: Path, module: torch.nn.Module) -> None:
    """Raise ValueError unless the file is as large as weights of this model are: a small header describes them."""
    size, most = path.stat().st_size, sum(value.nbytes for value in module.state_dict().values()) + MOST_HEADER
    if size > most:
        raise ValueError(f"{path.name} has {size} bytes, this model's weights have at most {most}")


def load(folder: Path) -> Predictor:
    """The model, ready to predict; its digest is checked and no code of the artefact is run.

    Raises ArtefactError.
    """
    about = read(folder)
    try:
        refuse_special(folder / WEIGHTS)
        module = load_place(MODELS[about.model].place)(len(about.classes), about.image_shape)
        _check_weights(folder / WEIGHTS, module)
        if sha256(folder / WEIGHTS) != about.sha256:
            raise ArtefactError(f"{folder / WEIGHTS}: damaged, it is not what {ABOUT} says; export the run again")
        module.load_state_dict(load_file(folder / WEIGHTS))
        return Predictor(module, about)
    except (OSError, RuntimeError, SpecError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ArtefactError(f"{folder}: cannot be loaded ({reason})") from None
