"""Images as models take them: what training has is left as it is, all else becomes that, or is refused."""

import io
import random
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from serving_client import png

from serving.errors import Refused
from serving.images import MOST_PIXELS, MOST_SCANS, decode, is_small

RNG = np.random.default_rng(1)
COLOUR, GREY = (3, 32, 32), (1, 28, 28)
RED, HALF = (255, 0, 0), (255, 0, 0, 128)


def save(image: Image.Image, kind: str, **how) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **how)
    return file.getvalue()


@pytest.mark.parametrize("shape", [COLOUR, GREY])
def test_what_training_has_is_left_as_it_is(shape):
    pixels = RNG.integers(0, 256, shape, np.uint8)
    found = decode(png(pixels), shape)
    assert found.dtype == np.uint8 and np.array_equal(found, pixels)


@pytest.mark.parametrize(
    ("image", "kind", "how", "colour"),
    [
        (Image.new("RGB", (32, 32), RED), "PNG", {}, RED),
        (Image.new("RGB", (300, 7), RED), "PNG", {}, RED),
        (Image.new("RGB", (1, 1), RED), "WEBP", {"lossless": True}, RED),
        (Image.new("RGB", (40, 40), RED), "JPEG", {"quality": 95}, (254, 0, 0)),
        (Image.new("CMYK", (40, 40), (0, 255, 255, 0)), "JPEG", {"quality": 95}, (255, 0, 0)),
        (Image.new("L", (40, 40), 77), "PNG", {}, (77, 77, 77)),
        (Image.new("L", (40, 40), 77), "JPEG", {}, (77, 77, 77)),
        (Image.new("1", (40, 40), 1), "PNG", {}, (255, 255, 255)),
        (Image.new("LA", (40, 40), (0, 0)), "PNG", {}, (255, 255, 255)),
        (Image.new("RGBA", (40, 40), HALF), "PNG", {}, (255, 127, 127)),
        (Image.new("RGBA", (40, 40), HALF), "WEBP", {"lossless": True}, (255, 127, 127)),
        (Image.new("RGB", (40, 40), RED).quantize(4), "PNG", {}, RED),
        (Image.new("RGBA", (40, 40), (1, 2, 3, 0)).quantize(4), "PNG", {}, (255, 255, 255)),
        (Image.new("P", (40, 40), 0), "PNG", {"transparency": 0}, (255, 255, 255)),
        (Image.fromarray(np.full((40, 40), 0x8000, np.uint16)), "PNG", {}, (128, 128, 128)),
        (Image.fromarray(np.full((40, 40), 0x8000, np.uint16)), "PNG", {"transparency": 0x8000}, (255, 255, 255)),
        (Image.new("L", (40, 40), 77), "PNG", {"transparency": 77}, (255, 255, 255)),
        (Image.new("RGB", (40, 40), RED), "PNG", {"transparency": RED}, (255, 255, 255)),
        (Image.new("1", (40, 40), 0), "PNG", {"transparency": 0}, (255, 255, 255)),
    ],
)
def test_any_mode_and_size_becomes_what_training_had(image, kind, how, colour):
    found = decode(save(image, kind, **how), COLOUR)
    assert found.shape == COLOUR and found.flags.c_contiguous
    assert np.abs(found.astype(int) - np.array(colour)[:, None, None]).max() <= 3
    grey = decode(save(image, kind, **how), GREY)
    assert grey.shape == GREY


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation_is_undone(orientation, kind):
    """The bright corner is upper left when the picture is upright, whatever way it was stored."""
    upright = np.zeros((64, 64, 3), np.uint8)
    upright[:16, :32] = 255
    stored = {
        1: lambda a: a, 2: np.fliplr, 3: lambda a: np.rot90(a, 2), 4: np.flipud, 5: lambda a: a.transpose(1, 0, 2),
        6: lambda a: np.rot90(a), 7: lambda a: np.rot90(a.transpose(1, 0, 2), 2), 8: lambda a: np.rot90(a, -1),
    }[orientation](upright)  # fmt: skip
    exif = Image.Exif()
    exif[0x0112] = orientation
    found = decode(save(Image.fromarray(np.ascontiguousarray(stored)), kind, quality=95, exif=exif), COLOUR)
    assert found[:, 2:6, 2:14].min() > 200 and found[:, 12:, :].max() < 60 and found[:, :, 20:].max() < 60


def exif_with(*entries: bytes) -> bytes:
    """Orientation 3, and these entries of 12 bytes."""
    right = struct.pack(">HHIHH", 0x0112, 3, 1, 3, 0)
    return b"Exif\0\0MM\0*\0\0\0\x08" + struct.pack(">H", 1 + len(entries)) + right + b"".join(entries) + bytes(4)


@pytest.mark.parametrize(
    "exif",
    [
        exif_with(struct.pack(">HHII", 0x011A, 5, 1, 8)),  # a rational that is no number of its kind
        exif_with(struct.pack(">HHII", 0x011A, 10, 1, 10)),
        exif_with(struct.pack(">HHIHH", 0x011A, 3, 1, 72, 0)),  # a resolution that is a short
        exif_with(struct.pack(">HHII", 0x8769, 4, 1, 0xFFFFFFF0)),  # a part that is beyond the end
        exif_with(struct.pack(">HHII", 0x8825, 2, 4, 0x41414141)),  # a part that is text
        exif_with(struct.pack(">HHII", 0x9286, 99, 1, 0)),  # of no known type
        exif_with(struct.pack(">HHII", 0x010F, 2, 0xFFFFFFFF, 8)),
        exif_with()[:20],
        b"Exif\0\0",
        b"Exif\0\0nonsense",
    ],
)
def test_wrong_exif_is_no_reason_to_refuse_a_picture(exif):
    upright = np.zeros((64, 64, 3), np.uint8)
    upright[:16] = 255
    found = decode(save(Image.fromarray(upright), "JPEG", quality=95, exif=exif), COLOUR)
    top, bottom = found[:, 1:6].mean(), found[:, -6:-1].mean()
    assert {round(top, -2), round(bottom, -2)} == {300, 0}
    if len(exif) > 30 and b"AAAA" not in exif:
        assert bottom > top, "where its orientation can be read it counts"


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def scans(count) -> bytes:
    """A progressive JPEG whose last scan is repeated."""
    body = save(Image.new("RGB", (64, 64), RED), "JPEG", progressive=True)
    last = body[body.rindex(b"\xff\xda") : -2]
    return body[:-2] + last * count + body[-2:]


def test_a_progressive_jpeg_is_an_image():
    assert np.abs(decode(scans(0), COLOUR).astype(int) - np.array([254, 0, 0])[:, None, None]).max() <= 3


@pytest.mark.parametrize("name", [b"zTXt", b"iTXt", b"iCCP"])
def test_chunks_that_may_unfold_to_megabytes_are_not_read_on_the_loop(name):
    body = png(np.zeros(COLOUR, np.uint8))
    assert is_small(body) and not is_small(body[:33] + chunk(name, b"k\0\0" + zlib.compress(bytes(1000))) + body[33:])


def bomb(width, height) -> bytes:
    """A PNG of a few bytes that claims to be this large."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "the body is empty"),
        (b"hello", "not a whole JPEG, PNG or WebP image"),
        (save(Image.new("RGB", (9, 9)), "GIF"), "not a whole JPEG, PNG or WebP image"),
        (save(Image.new("RGB", (9, 9)), "TIFF"), "not a whole JPEG, PNG or WebP image"),
        (png(np.zeros(COLOUR, np.uint8))[:60], "not a whole JPEG, PNG or WebP image"),
        (save(Image.new("RGB", (99, 99), RED), "JPEG")[:500], "not a whole JPEG, PNG or WebP image"),
        (bomb(10_000, 10_000), f"{MOST_PIXELS:,} are the most"),
        (bomb(60_000, 60_000), f"{MOST_PIXELS:,} are the most"),
        (bomb(25_000_000, 1), "65536 are the most on a side"),
        (bomb(1, 25_000_000), "65536 are the most on a side"),
        (scans(MOST_SCANS), f"more than {MOST_SCANS} scans"),
    ],
)
def test_what_is_no_image_is_one_line(body, says):
    with pytest.raises(Refused, match=says) as refused:
        decode(body, COLOUR)
    assert (
        refused.value.status == 400 and "\n" not in refused.value.message and "object at" not in refused.value.message
    )


SEEDS = [
    save(Image.fromarray(RNG.integers(0, 256, (24, 20, 3), np.uint8)), "JPEG"),
    save(Image.fromarray(RNG.integers(0, 256, (24, 20, 4), np.uint8)), "PNG"),
    save(Image.fromarray(RNG.integers(0, 256, (24, 20, 4), np.uint8)), "WEBP"),
    save(Image.new("P", (24, 20)), "PNG", transparency=b"\0\1\2"),
]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(SEEDS), st.integers(0, 2**32), st.integers(1, 12), st.integers(0, 40))
def test_mutated_images_are_decoded_or_refused(seed, number, changes, cut):
    draw = random.Random(number)
    body = bytearray(seed)
    for _ in range(changes):
        body[draw.randrange(len(body))] = draw.randrange(256)
    try:
        found = decode(bytes(body[: len(body) - cut]), COLOUR)
    except Refused as refused:
        assert refused.status == 400 and "\n" not in refused.message
    else:
        assert found.shape == COLOUR and found.dtype == np.uint8


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused(body):
    with pytest.raises(Refused):
        decode(body, GREY)
