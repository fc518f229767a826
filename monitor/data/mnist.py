"""MNIST (LeCun et al., 1998) and Fashion-MNIST (Xiao et al., arXiv:1708.07747): 28x28 grey images in four IDX files.

The files come from DATA_DIR, for Fashion-MNIST from Debian's package where it is installed, or from a public mirror.
The two sets differ in nothing but their contents, so a folder known to hold the other set's images is refused.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from monitor.data import folders, idx
from monitor.data.store import Content, Prepared, Unavailable, image_shape, prepare_once
from monitor.errors import UserError
from trainer.files import remove_folder
from trainer.names import in_folder
from trainer.registry import DataSet

STEMS = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
SPELLINGS = ("{}-ubyte.gz", "{}-ubyte")


@dataclass(frozen=True)
class Source:
    name: str
    title: str
    classes: tuple[str, ...]
    below: tuple[str, ...]  # folders in which a DATA_DIR may have the files
    mirrors: tuple[str, ...]  # tried in this order
    packed: tuple[str, ...]  # SHA-256 of the public files, by STEMS
    unpacked: tuple[str, ...]  # and of what is in them
    package: Path | None = None  # where a package of the system puts the files


MNIST = Source(
    "mnist",
    "MNIST",
    tuple("0123456789"),
    ("raw", "MNIST/raw", "mnist", "MNIST"),
    ("https://storage.googleapis.com/cvdf-datasets/mnist/", "https://ossci-datasets.s3.amazonaws.com/mnist/"),
    (
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
    (
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
)
FASHION_MNIST = Source(
    "fashion_mnist",
    "Fashion-MNIST",
    (
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
    ("raw", "FashionMNIST/raw", "fashion-mnist"),
    (
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    ),
    (
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
    (
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    Path("/usr/share/datasets/fashion-mnist"),  # of dataset-fashion-mnist
)


def mnist(dataset: DataSet, **how) -> Prepared:
    """MNIST from DATA_DIR or a public mirror; see `_prepare`."""
    return _prepare(MNIST, dataset, **how)


def fashion_mnist(dataset: DataSet, **how) -> Prepared:
    """Fashion-MNIST from DATA_DIR, Debian's package or a public mirror; see `_prepare`."""
    return _prepare(FASHION_MNIST, dataset, **how)


def _prepare(
    source: Source, dataset: DataSet, *, seed: int, data_dir: Path | None, cache: Path, say, verify: bool = False
) -> Prepared:
    """The folder `<name>` of the cache (public files) or `<name>-<digest of the files>` (a folder). No use of the seed.

    Raises UserError for a folder or file that cannot be used, Unavailable when no mirror has the files.
    """
    if data_dir is None and source.package and source.package.is_dir():
        data_dir = source.package
    if data_dir is None:
        return _from_mirrors(source, dataset, cache, say, verify)
    folder, names = _layout(source, data_dir)
    digest = folders.digest(folder, names)

    def make() -> Content:
        say(f"preparing {source.title} from {folder}")
        paths = [folder / name for name in names]
        return _content(source, dataset, paths, f"a folder of {len(names)} files, digest {digest}")

    return prepare_once(cache, f"{source.name}-{digest[:12]}", make, say, verify)


def _from_mirrors(source: Source, dataset: DataSet, cache: Path, say, verify: bool) -> Prepared:
    downloads = in_folder(cache, f".{source.name}.download")

    def make() -> Content:
        from monitor.data.download import fetch  # its libraries take a third of a second to import, rarely needed

        reasons = []
        for mirror in source.mirrors:
            try:
                paths = [
                    fetch(f"{mirror}{stem}-ubyte.gz", sum_, downloads / stem, say)
                    for stem, sum_ in zip(STEMS, source.packed, strict=True)
                ]
                break
            except Unavailable as error:
                reasons.append(str(error))
        else:
            raise Unavailable("; ".join(reasons))
        content = _content(source, dataset, paths, mirror)
        remove_folder(downloads)
        return content

    return prepare_once(cache, source.name, make, say, verify)


def _layout(source: Source, data_dir: Path) -> tuple[Path, list[str]]:
    """The folder that holds the files and their names in the order of STEMS."""
    looked_for = f"{STEMS[0]}-ubyte and its three companions, .gz or not, there or in {' or '.join(source.below)} below"
    places = folders.listing(data_dir, source.below, looked_for)
    for folder, names in places.items():
        files = [[s.format(stem) for s in SPELLINGS if s.format(stem) in names] for stem in STEMS]
        missing = [f"{stem}-ubyte" for stem, spellings in zip(STEMS, files, strict=True) if not spellings]
        if len(missing) == len(STEMS):
            continue
        if missing:
            raise UserError(f"DATA_DIR={data_dir}: {', '.join(missing)} missing in {folder}; copy the whole folder")
        return folder, [spellings[0] for spellings in files]
    raise folders.not_here(data_dir, source.title, looked_for, places[data_dir])


def _content(source: Source, dataset: DataSet, paths: list[Path], where: str) -> Content:
    """Read and check the four files, given in the order of STEMS."""
    shape = image_shape(dataset)
    items = (shape[1:], (), shape[1:], ())
    arrays = [
        folders.readable(path, lambda p, item=item: idx.read(p, item)) for path, item in zip(paths, items, strict=True)
    ]
    for images, labels, path in ((arrays[0], arrays[1], paths[1]), (arrays[2], arrays[3], paths[3])):
        if len(images) != len(labels):
            raise UserError(f"{path}: {len(labels)} labels for {len(images)} images; one label an image would do")
        if labels.max() >= dataset.classes:
            raise UserError(f"{path}: label {labels.max()}; whole numbers from 0 to {dataset.classes - 1} would do")
    sums = tuple(map(_unpacked_sum, arrays))
    for other in (MNIST, FASHION_MNIST):
        if other is not source and sums[0] == other.unpacked[0]:
            raise UserError(f"{paths[0]}: holds the images of {other.title}; DATA={other.name} would do")
    train_images, train_labels, test_images, test_labels = arrays
    counts = f" ({len(train_images)} + {len(test_images)} images from a folder)" if sums != source.unpacked else ""
    return Content(
        source.name,
        train_images.reshape(-1, *shape),
        train_labels.astype(np.int64),
        test_images.reshape(-1, *shape),
        test_labels.astype(np.int64),
        list(source.classes),
        where,
        f"{source.name}{counts}",
        augment=False,  # a mirrored digit is another one or none
    )


def _unpacked_sum(array: np.ndarray) -> str:
    """SHA-256 of the IDX file that holds this array."""
    header = idx.ZEROS_AND_UBYTE + bytes([array.ndim]) + np.array(array.shape, ">u4").tobytes()
    return hashlib.sha256(header + array.tobytes()).hexdigest()
