"""Image files of every kind that an image pool must reject, or accept with a note; generated here, none is stored."""

import io
import struct
import zlib

import numpy
from PIL import Image

LIMITS = {
    "max_pixels": 65_536,
    "max_file_mib": 1.0,
    "min_side": 8,
    "timeout_seconds": 5.0,
    "memory_mib": 512,
    "workers": 1,
    "images_per_shard": 3,
}
"""Section `images`."""

GRADIENT = numpy.stack(
    [numpy.add.outer(numpy.arange(40), numpy.arange(32)) * step % 256 for step in (1, 3, 7)], axis=2
).astype(numpy.uint8)
"""uint8[40, 32, 3]"""


def saved(image, form="PNG", **options) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def png(pixels=GRADIENT) -> bytes:
    return saved(Image.fromarray(pixels))


def huge_png(side=60_000) -> bytes:
    """Returns a few hundred bytes that decode to gigabytes."""

    def chunk(kind, content):
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(999))) + chunk(b"IEND", b"")


def text_bomb() -> bytes:
    """Returns a text chunk of 10 kB that becomes 10 MB: ten times the text size that Pillow allows."""
    body = b"zTXt" + b"Comment\0\0" + zlib.compress(bytes(10 << 20))
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    whole = png()
    return whole[:33] + chunk + whole[33:]


def animated(form) -> bytes:
    frames = [Image.fromarray(GRADIENT), Image.fromarray(255 - GRADIENT)]
    return saved(frames[0], form, save_all=True, append_images=frames[1:])


def changed_byte(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :]


REFUSED = {
    "image_not_allowed": [b"", b"<svg onload='alert(1)'/>", animated("GIF"), saved(Image.fromarray(GRADIENT), "TIFF")],
    "image_too_large": [huge_png(), png(numpy.zeros((300, 300, 3), dtype=numpy.uint8)), b"\0" * 2_000_000],
    "image_too_small": [png(GRADIENT[:3])],
    "image_animated": [animated("PNG"), animated("WEBP")],
    "image_truncated": [
        png()[: len(png()) // 2],
        saved(Image.fromarray(GRADIENT), "JPEG")[:-200],
        saved(Image.fromarray(GRADIENT), "WEBP")[:-60],
    ],
    "image_broken": [
        changed_byte(png(), 60),
        b"\xff\xd8\xff" + bytes(50) + b"\xff\xd9",
        b"RIFF\x04\0\0\0WEBP",
        text_bomb(),
    ],
}
"""Reason -> files."""


def turned() -> bytes:
    """Returns a JPEG whose EXIF requests a rotation by 90 degrees."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return saved(Image.fromarray(GRADIENT), "JPEG", exif=exif, quality=95)


def transparent() -> bytes:
    alpha = numpy.zeros((40, 32, 1), dtype=numpy.uint8)
    alpha[:20] = 255
    return saved(Image.fromarray(numpy.concatenate([GRADIENT, alpha], axis=2)))


TAKEN = {
    "alpha": transparent(),
    "sixteen_bits": saved(Image.fromarray(GRADIENT[:, :, 0].astype(numpy.uint16) * 257)),
    "cmyk": saved(Image.fromarray(GRADIENT).convert("CMYK"), "JPEG"),
    "grey": saved(Image.fromarray(GRADIENT).convert("L")),
    "palette": saved(Image.fromarray(GRADIENT).quantize(16)),
    "turned": turned(),
}
"""Change -> a file that this change turns into RGB."""
