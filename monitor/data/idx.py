"""IDX files, the format of MNIST: http://yann.lecun.com/exdb/mnist/ ("file formats"), plain or compressed by gzip.

Two zero bytes, the element type (8: unsigned byte), the number of dimensions, each dimension as a big-endian 32-bit
number, then the elements, last dimension fastest.
"""

import gzip
import zlib
from pathlib import Path

import numpy as np

from monitor.errors import UserError
from trainer.received import open_received

GZIP, ZEROS_AND_UBYTE = b"\x1f\x8b", b"\x00\x00\x08"
MOST = 300_000  # items in a file; a file that unpacks to more than it should hold is never unpacked whole


def read(path: Path, item: tuple[int, ...]) -> np.ndarray:
    """The array uint8 (n, *item) in the file. Raises UserError, in one line, for any other content, OSError as open."""
    with open_received(path, may_be_link=True) as file:
        packed = file.read(2) == GZIP
        file.seek(0)
        try:
            return _array(gzip.GzipFile(fileobj=file) if packed else file, path, item)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UserError(f"{path}: truncated or corrupted ({error}); copy the file anew") from error


def _array(file, path: Path, item: tuple[int, ...]) -> np.ndarray:
    dimensions = 1 + len(item)
    want = f"unsigned bytes (n{''.join(f', {size}' for size in item)})"
    start = file.read(4)
    if start != ZEROS_AND_UBYTE + bytes([dimensions]):
        raise UserError(f"{path}: starts with {start.hex() or 'nothing'}; an IDX file of {want} would do")
    header = file.read(4 * dimensions)
    if len(header) < 4 * dimensions:
        raise UserError(f"{path}: truncated or corrupted (its header ends early); copy the file anew")
    count, *sizes = np.frombuffer(header, ">u4").tolist()
    if tuple(sizes) != item:
        raise UserError(f"{path}: holds items of {'x'.join(map(str, sizes))}; {want} would do")
    if not 1 <= count <= MOST:
        raise UserError(f"{path}: says it holds {count} items; 1 to {MOST} would do")
    size = count * int(np.prod(item, dtype=np.int64))
    raw = file.read(size)
    if len(raw) < size:
        raise UserError(f"{path}: truncated or corrupted ({len(raw)} of {size} bytes); copy the file anew")
    if file.read(1):
        raise UserError(f"{path}: more follows after the {count} items it says it holds; copy the file anew")
    return np.frombuffer(raw, np.uint8).reshape(count, *item)
