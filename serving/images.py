"""An image file as the pixels a model was trained on: uint8 (channels, height, width).

What training data are already, this leaves as it is; so a test image sent as PNG is the very sample
of the evaluation.
"""

import io

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from serving.errors import Refused, bad

FORMATS = ("JPEG", "PNG", "WEBP")
MOST_PIXELS = 25_000_000  # of an image before it is resized; while that is done it takes up to 15 bytes a pixel
MOST_SIDE = 1 << 16  # JPEG and WebP end there; resizing takes 16 bytes for each pixel of a row
MOST_SCANS = 100  # of a JPEG: each is a pass over all of it, and takes a dozen bytes; encoders make about ten
SMALL = 1 << 16  # bytes, and pixels, of an image that is decoded at once
_COMPRESSED = (b"zTXt", b"iTXt", b"iCCP")  # chunks of PNG that may be large without being an image
Image.MAX_IMAGE_PIXELS = None  # Pillow only warns above its own limit; ours is checked before a pixel is read


def is_small(body: bytes) -> bool:
    """Whether decoding takes about a millisecond, less than a change of threads on a busy machine."""
    if len(body) > SMALL or any(name in body for name in _COMPRESSED):
        return False
    try:
        with Image.open(io.BytesIO(body), formats=FORMATS) as image:
            return image.width * image.height <= SMALL
    except Exception:  # Pillow's readers raise of all kinds, as in `decode`, which refuses it as soon
        return True


def decode(body: bytes, shape: tuple[int, int, int]) -> np.ndarray:
    """The image, upright, without transparency (on white), in the colours and size of `shape`.

    Raises Refused (400, one line) for anything but a whole JPEG, PNG or WebP image of at most
    MOST_PIXELS.
    """
    channels, height, width = shape
    if not body:
        raise bad("the body is empty")
    try:
        with Image.open(io.BytesIO(body), formats=FORMATS) as image:
            if image.width * image.height > MOST_PIXELS:
                raise bad(f"the image has {image.width}x{image.height} pixels, {MOST_PIXELS:,} are the most")
            if max(image.size) > MOST_SIDE:
                raise bad(f"the image is {image.width}x{image.height} pixels, {MOST_SIDE} are the most on a side")
            if body.startswith(b"\xff\xd8") and body.count(b"\xff\xda") > MOST_SCANS:
                raise bad(f"the image has more than {MOST_SCANS} scans")
            image.load()
            pixels = _coloured(ImageOps.exif_transpose(image), "L" if channels == 1 else "RGB")
            if pixels.size != (width, height):
                pixels = pixels.resize((width, height), Image.Resampling.BILINEAR)
            array = np.asarray(pixels)
    except Refused:
        raise
    except Exception as error:  # Pillow's readers raise of all kinds on bytes that are wrong
        why = "" if isinstance(error, UnidentifiedImageError) else f" ({str(error) or type(error).__name__})"
        raise bad(f"not a whole JPEG, PNG or WebP image{why}") from None
    return array[None] if channels == 1 else np.ascontiguousarray(array.transpose(2, 0, 1))


def _coloured(image: Image.Image, mode: str) -> Image.Image:
    if image.mode.startswith("I"):  # 16 bits of grey; Pillow would cut them off at 255
        grey = np.asarray(image).astype(np.uint32)
        grey[grey == image.info.get("transparency", -1)] = 0xFFFF  # the one that is transparent: white
        image = Image.fromarray((grey >> 8).clip(0, 255).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image if image.mode == mode else image.convert(mode)
