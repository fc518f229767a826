"""Data sets: found, fetched, checked and prepared once, beside the nodes. Ranks only read what was prepared.

prepared = prepare("cifar10", seed=42, data_dir=Path("~/cifar").expanduser(), cache=CACHE)
prepared.path / "train_images.npy"        # uint8 (N, channels, height, width)
prepared.manifest["mean"]                 # per channel, of training pixels scaled to 0..1
"""

from dataclasses import replace
from pathlib import Path

from monitor.data.store import Prepared, Unavailable
from monitor.errors import UserError
from trainer.registry import COLOUR, DATA, Shape, load

PREPARERS = {  # by the names of trainer.registry.DATA: the function that prepares it, as "module:function"
    "cifar10": "monitor.data.cifar10:prepare",
    "svhn": "monitor.data.svhn:prepare",
    "mnist": "monitor.data.mnist:mnist",
    "fashion_mnist": "monitor.data.mnist:fashion_mnist",
    "synthetic": "monitor.data.synthetic:prepare",
}
CACHE = Path("data")  # beside runs/, in the folder where syncbed is run


def prepare(
    name: str,
    *,
    seed: int,
    data_dir: Path | None,
    cache: Path,
    say=print,
    verify: bool = False,
    shape: Shape | None = None,
    or_synthetic: bool = False,
) -> Prepared:
    """The prepared folder of the data set `name`, a key of trainer.registry.DATA: at once when the cache has it whole.

    `shape` (channels, height, width) is for data made in any shape; without it that is 3x32x32.
    `verify` compares the checksums of what the cache has too, not only sizes; what is damaged is prepared anew.
    `or_synthetic`: the user named no DATA, so synthetic images, with a warning, take the place of
    what cannot be fetched. A DATA_DIR was named by the user: nothing takes its place.
    Raises UserError when it cannot be had (the line says what would do), RunFailed when the disk is full.
    """
    how = {"seed": seed, "cache": cache, "say": say, "verify": verify}
    try:
        return _prepare(name, shape, data_dir=data_dir, **how)
    except Unavailable as error:
        if not or_synthetic:
            raise UserError(
                f"DATA={name} cannot be fetched ({error}); "
                f"a network (then `make data DATA={name}`), DATA_DIR=folder with its files, or DATA=synthetic would do"
            ) from error
        say(
            f"warning: {name} cannot be fetched ({error}), so synthetic images are used instead; "
            "DATA_DIR=folder with its files or a network would do, DATA=synthetic silences this"
        )
    prepared = _prepare("synthetic", shape, data_dir=None, **how)
    label = f"{prepared.label} (no DATA named, {name} could not be fetched)"
    return replace(prepared, label=label, manifest=prepared.manifest | {"label": label})


def _prepare(name: str, shape: Shape | None, **how) -> Prepared:
    dataset = DATA[name]
    if dataset.shape is None:
        dataset = replace(dataset, shape=shape or COLOUR)
    return load(PREPARERS[name])(dataset, **how)


def folder(settings: dict[str, str]) -> Path | None:
    """The folder that DATA_DIR= names, if any. Raises UserError for the home of a user who is not known here."""
    text = settings.get("DATA_DIR")
    try:
        return Path(text).expanduser() if text is not None else None
    except RuntimeError:
        raise UserError(f"DATA_DIR={text}: there is no such user here; give the folder's whole path") from None
