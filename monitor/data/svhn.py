"""SVHN, cropped digits (Netzer et al., 2011, "Reading Digits in Natural Images"): 32x32 colour images in MATLAB files.

train_32x32.mat and test_32x32.mat hold X, uint8 (32, 32, 3, n), and y, (n, 1), classes from 1, where 10 is the digit 0.
The larger set of easy extra images is not used.
"""

from pathlib import Path

import numpy as np

from monitor.data import folders
from monitor.data.store import Content, Prepared, image_shape, prepare_once
from monitor.errors import UserError
from trainer.files import remove_folder
from trainer.received import open_received
from trainer.registry import DataSet

MIRROR = "http://ufldl.stanford.edu/housenumbers/"
SHA256 = {  # as torchvision has them
    "train_32x32.mat": "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
    "test_32x32.mat": "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
}
BELOW = ("svhn", "SVHN")
MOST = 100_000  # images in a file, of 3 kB each; the larger one has 73,257
NUMBERS = {"single", "double", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))}  # of labels


def prepare(dataset: DataSet, *, seed: int, data_dir: Path | None, cache: Path, say, verify: bool = False) -> Prepared:
    """The folder `svhn` of the cache (public files) or `svhn-<digest of the files>` (DATA_DIR). No use of the seed.

    Raises UserError for a folder or file that cannot be used, Unavailable when the files cannot be fetched.
    """
    if data_dir is None:
        return _from_mirror(dataset, cache, say, verify)
    folder = _layout(data_dir)
    digest = folders.digest(folder, SHA256)

    def make() -> Content:
        say(f"preparing SVHN from {folder}")
        where = f"a folder of {len(SHA256)} files, digest {digest}"
        return _content(dataset, [folder / name for name in SHA256], where, from_folder=True)

    return prepare_once(cache, f"svhn-{digest[:12]}", make, say, verify)


def _from_mirror(dataset: DataSet, cache: Path, say, verify: bool) -> Prepared:
    downloads = cache / ".svhn.download"

    def make() -> Content:
        from monitor.data.download import fetch  # its libraries take a third of a second to import, rarely needed

        paths = [fetch(f"{MIRROR}{name}", SHA256[name], downloads / name, say) for name in SHA256]
        content = _content(dataset, paths, MIRROR, from_folder=False)
        remove_folder(downloads)
        return content

    return prepare_once(cache, "svhn", make, say, verify)


def _layout(data_dir: Path) -> Path:
    """The folder that holds both files."""
    looked_for = f"{' and '.join(SHA256)} there or in {' or '.join(BELOW)} below"
    places = folders.listing(data_dir, BELOW, looked_for)
    for folder, names in places.items():
        missing = [name for name in SHA256 if name not in names]
        if len(missing) == 1:
            raise UserError(f"DATA_DIR={data_dir}: {missing[0]} missing in {folder}; copy the whole folder")
        if not missing:
            return folder
    raise folders.not_here(data_dir, "SVHN", looked_for, places[data_dir])


def _content(dataset: DataSet, paths: list[Path], where: str, from_folder: bool) -> Content:
    (train_images, train_labels), (test_images, test_labels) = (
        folders.readable(path, lambda p: read(p, dataset)) for path in paths
    )
    counts = f" ({len(train_images)} + {len(test_images)} images from a folder)" if from_folder else ""
    digits, label = [str(digit) for digit in range(10)], f"svhn{counts}"
    return Content(
        "svhn", train_images, train_labels, test_images, test_labels, digits, where, label, augment=False
    )  # a mirrored digit is another one or none


def read(path: Path, dataset: DataSet) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 (n, channels, height, width) and digits int64 (n,) of one file. Raises UserError, OSError as open.

    What a file says of its arrays is checked before they are read, so that it cannot ask for any amount of memory.
    """
    from scipy.io import loadmat, whosmat  # takes a while to import

    with open_received(path, may_be_link=True) as file:
        try:
            listed = whosmat(file)
        except Exception as error:  # broken files raise nearly anything: scipy's reader checks little
            raise _broken(path, error) from error
        shapes, kinds = {name: shape for name, shape, _ in listed}, {name: kind for name, _, kind in listed}
        channels, height, width = image_shape(dataset)
        count = shapes.get("y", (0, 0))[0]
        if shapes.get("X") != (height, width, channels, count) or shapes["y"] != (count, 1) or not 1 <= count <= MOST:
            content = ", ".join(f"{name} {shape}" for name, shape in sorted(shapes.items())) or "nothing"
            raise UserError(f"{path}: holds {content}; X ({height}, {width}, {channels}, n) and y (n, 1) would do")
        if kinds["X"] != "uint8" or kinds["y"] not in NUMBERS:  # cells and structures take hundreds of bytes each
            raise UserError(f"{path}: X is {kinds['X']}, y is {kinds['y']}; uint8 and whole numbers would do")
        file.seek(0)
        try:
            arrays = loadmat(file, variable_names=["X", "y"])
            pixels, labels = arrays["X"], arrays["y"]
            if pixels.shape != shapes["X"] or labels.shape != shapes["y"]:
                raise ValueError("its arrays are not what its header says")
        except Exception as error:  # as above
            raise _broken(path, error) from error
    if pixels.dtype != np.uint8 or labels.dtype.kind not in "iuf":
        raise UserError(f"{path}: X is {pixels.dtype}, y is {labels.dtype}; uint8 and whole numbers would do")
    wrong = labels[~np.isin(labels, range(11))]
    if len(wrong):
        raise UserError(f"{path}: label {wrong[0]}; whole numbers from 1 to 10, which is the digit 0, would do")
    return np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)), labels[:, 0].astype(np.int64) % 10


def _broken(path: Path, error: Exception) -> UserError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return UserError(f"{path}: truncated or no MATLAB file ({reason}); copy the file anew")
