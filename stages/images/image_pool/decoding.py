"""Decodes hostile image files to plain RGB pixels; runs in a confined worker, for `run.py`.

The format is read from the first bytes, never from the name. The size is read before any pixel is decoded,
because a file of some kilobytes can declare gigabytes. Colour profiles are not applied.

It imports little, so that a worker is small: no numpy, no pydantic.
"""

from __future__ import annotations

import base64
import io
import struct
import warnings
from typing import Any

from PIL import Image, ImageOps, UnidentifiedImageError

# EXIF's tag for how the camera was held; 1 is upright, 2 to 8 are turned or mirrored.
_ORIENTATION = 0x0112
_SIXTEEN_BITS = ("I", "I;16", "I;16B", "I;16L", "I;16N")

Decoded = dict[str, Any]
"""`width`, `height`, `rgb` (base64) and `changes`; or `reason` and `detail`."""


class _Refused(Exception):
    """Reason and detail."""


def prepare() -> None:
    """Loads Pillow's readers of the three formats, so that the first image is not slower than others."""
    Image.preinit()
    from PIL import WebPImagePlugin  # noqa: F401


def decode(content: str, max_pixels: int, min_side: int) -> Decoded:
    """Decodes one PNG, JPEG or WebP, given as base64.

    `changes` lists what was not plain RGB before: `alpha` (put on white), `sixteen_bits`, `cmyk`, `grey`, `palette`,
    `turned` (by its EXIF), and `format` has the file's real format.
    Reasons: image_not_allowed, image_too_large, image_too_small, image_animated, image_truncated, image_broken.
    """
    data = base64.b64decode(content)
    try:
        form = _format(data)
        image = _opened(data, form, max_pixels)
        # MPO is not an animation: it is a photograph and its small copies.
        if image.format != "MPO" and getattr(image, "n_frames", 1) > 1:
            raise _Refused("image_animated", f"{image.n_frames} frames")
        if min(image.size) < min_side:
            raise _Refused("image_too_small", f"{image.width} x {image.height} pixels, at least {min_side}")
        # This reads all checksums and makes the image unusable, so the file is opened again.
        image.verify()
        image, changes = _plain(_opened(data, form, max_pixels), data)
    except _Refused as refused:
        return dict(zip(("reason", "detail"), refused.args, strict=True))
    # The worker answers this one itself and ends, because the state of its memory is unknown.
    except MemoryError:
        raise
    # Pillow passes on the errors of its readers, including SyntaxError and struct.error.
    except Exception as error:
        reason = "image_truncated" if _is_cut_off(data, form) else "image_broken"
        return {"reason": reason, "detail": f"{type(error).__name__}: {error}"[:200]}
    rgb = base64.b64encode(image.tobytes()).decode()
    return {"width": image.width, "height": image.height, "rgb": rgb, "changes": changes, "format": form.lower()}


def _format(data: bytes) -> str:
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if data.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    raise _Refused("image_not_allowed", "neither PNG nor JPEG nor WebP, by its first bytes")


def _opened(data: bytes, form: str, max_pixels: int) -> Image.Image:
    Image.MAX_IMAGE_PIXELS = max_pixels
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Up to twice the limit Pillow only warns.
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            image = Image.open(io.BytesIO(data), formats=(form,))
        except (Image.DecompressionBombError, Image.DecompressionBombWarning):
            raise _Refused("image_too_large", f"more than {max_pixels} pixels") from None
        except UnidentifiedImageError:
            # Pillow's own message has an address in memory, so equal runs would write unequal drops.
            raise UnidentifiedImageError(f"no {form} that Pillow can read") from None
    return image


def _plain(image: Image.Image, data: bytes) -> tuple[Image.Image, list[str]]:
    changes = []
    # Pillow silently reduces 16-bit colour to 8 bits. Byte 24 of a PNG, in its header, is the depth.
    is_deep = image.format == "PNG" and data[24] == 16
    if image.getexif().get(_ORIENTATION, 1) in range(2, 9):
        changes.append("turned")
        image = ImageOps.exif_transpose(image)
    if is_deep:
        changes.append("sixteen_bits")
    # 65,535 / 257 is 255. Pillow's conversion from 16 bits to 8 cuts values off at 255.
    if image.mode in _SIXTEEN_BITS:
        image = image.convert("I").point(lambda value: value * (1 / 257)).convert("L")
    # Grey and palette files may store their transparency beside the pixels, and not in the mode.
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        changes.append("alpha")
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    if image.mode == "CMYK":
        changes.append("cmyk")
    elif image.mode in ("1", "L"):
        changes.append("grey")
    elif image.mode == "P":
        changes.append("palette")
    return image.convert("RGB"), changes


def _is_cut_off(data: bytes, form: str) -> bool:
    """The end marker of the format, which every complete file has, is missing."""
    if form == "PNG":
        return b"IEND" not in data
    if form == "JPEG":
        return not data.rstrip(b"\0").endswith(b"\xff\xd9")
    # The length in a RIFF header excludes the first eight bytes.
    return len(data) < struct.unpack("<I", data[4:8])[0] + 8
