"""An encoded image as 8-bit RGB of one size, and what is white in a file of more than 8 bits.

Microscopes, X-rays and satellites store 10, 12 or 14 bits in pixels of 16: the file does not say
which of its values is white. The largest value of the whole set tells it, or the user does.
Shapes: h, w height and width of the result.
"""

import contextlib
import io
import math
import struct
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mhprobe.errors import UserError, quoted
from mhprobe.io.written import counted

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

# Of Pillow's formats those that are pixels alone: PostScript would be run by Ghostscript.
NUMPY = b"\x93NUMPY"  # how a .npy file begins
PNG = b"\x89PNG"
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
THINNEST = 100  # times as long as wide: scaling its short side up would take gigabytes
DEPTHS = (8, 10, 12, 14, 16)  # bits that cameras and scanners give
SIXTEEN, WHOLE, FLOATS = "16 bits", "whole numbers of 32 bits", "floating-point numbers"
# raw modes of Pillow that keep the upper of two bytes, and the one that gives the lower
_LOWER = {
    **{f"{mode};16B": f"{mode};16L" for mode in ("RGB", "RGBA", "RGBX")},
    **{f"{mode};16L": f"{mode};16B" for mode in ("RGB", "RGBA", "RGBX")},
    **{f"{mode};16N": f"{mode};16B" for mode in ("RGB", "RGBA", "RGBX")},
}

Size = int | tuple[int, int]


class Levels(NamedTuple):
    """The values of a file's pixels that are black and white."""

    black: float
    white: float


class Range(NamedTuple):
    """The values of pixels of more than 8 bits in a file or a set.

    kind: what they are, in words. white: the value that the file itself calls white, or None.
    """

    least: float
    largest: float
    kind: str
    white: float | None = None

    @property
    def open(self) -> bool:
        """True for 16 bits that do not say which value is white: the largest of a set tells it."""
        return self.kind == SIXTEEN and self.white is None

    def joined(self, other: "Range | None") -> "Range":
        """Return the range of both, which are of one kind."""
        if other is None:
            return self
        return self._replace(
            least=min(self.least, other.least), largest=max(self.largest, other.largest)
        )


def levels_given(levels: float | Sequence[float] | None, where: str) -> Levels | None:
    """Return the levels that a user gave: white, or black and white; None for None.

    where: the option, for the UserError about what is neither.
    """
    if levels is None:
        return None
    pair = [0, levels] if isinstance(levels, int | float) else levels
    fits = (
        isinstance(pair, Sequence)
        and not isinstance(pair, str)
        and len(pair) == 2
        and all(type(one) in (int, float) and math.isfinite(one) for one in pair)
    )
    if not fits or isinstance(levels, bool) or not pair[0] < pair[1]:
        raise UserError(
            f"{where}: expected the value of a white pixel, e.g. 4095 for 12 bits, or those of a "
            f"black and a white one, e.g. [-1024, 3071], got {quoted(levels)}."
        )
    return Levels(float(pair[0]), float(pair[1]))


def levels_of(values: Range, where: str) -> Levels:
    """Return the levels that a range of 16-bit pixels suggests: the fewest bits that hold it.

    Raises UserError for pixels of other kinds, whose range suggests none.
    """
    if values.white is not None:
        return Levels(0, values.white)
    if values.kind == SIXTEEN:
        bits = next(bits for bits in DEPTHS if values.largest < 2**bits)
        return Levels(0, 2**bits - 1)
    raise UserError(
        f"root: {where} has {values.kind} for pixels, from {values.least:g} to "
        f"{values.largest:g}, which do not say what is white; expected 8 or 16 bits. Give "
        "levels=[<black>, <white>] (--levels <black>,<white> after look, diff and shrink), or save it "
        "as one of these."
    )


def in_words(values: Range, levels: Levels) -> str:
    """Say how pixels of more than 8 bits are read."""
    if values.kind == SIXTEEN and levels.black == 0 and levels.white + 1 in [2**d for d in DEPTHS]:
        return f"{round(math.log2(levels.white + 1))} of 16 bits, white is {levels.white:g}"
    return f"{values.kind}, black is {levels.black:g} and white is {levels.white:g}"


def certain(values: Range, levels: Levels) -> bool:
    """Return True if the levels follow from the range: no smaller number of bits would hold it."""
    return values.white is not None or levels.white == 2**16 - 1


def refuse_bombs() -> None:
    """Refuse where PIL would only warn: nothing that large is an image for a transformer, and a bomb looks like it."""
    from PIL import Image

    warnings.filterwarnings("error", category=Image.DecompressionBombWarning)


def decode(
    data: bytes,
    size: Size,
    resize: bool,
    where: str,
    levels: Levels | Callable[[], Levels] | None = None,
) -> np.ndarray:
    """Return an encoded image as (h, w, 3) uint8 RGB, upright; an array of NumPy's with the channels that it has.

    size: of the result, h and w, or both; the image is scaled to cover it, and its middle is cut
    out. resize: False refuses an image of another size.
    levels: black and white of its values; a function gives those of an image of 16 bits, and is not
        called for others; None takes the fewest bits that hold its largest value.
    where: for errors. Raises UserError for what is damaged, no image, too large, or of another form.
    """
    height, width = (size, size) if isinstance(size, int) else size
    if data.startswith(NUMPY):
        array = _array_bytes(data, where, levels)
        return _sized(array, (height, width), resize, where)
    with _told(data, where):
        opened, wide = _opened(data, where, (width, height) if resize else None)
        if wide is not None:
            values, spread = wide
            _refuse_no_numbers(values, where)
            if callable(levels):
                levels = levels() if spread.open else None
            image = _eight_bits(values, levels or levels_of(spread, where))
        else:
            image = opened.convert("RGB")
            if isinstance(levels, Levels):
                image = _eight_bits(np.asarray(image), levels)
    return np.asarray(_sized(image, (height, width), resize, where))


def _sized(image: Any, size: tuple[int, int], resize: bool, where: str) -> Any:
    """A picture, or each channel of an array (h, w, C), scaled to cover the size and cut.

    UserError for another size without ``resize``.
    """
    from PIL import Image

    channels = [image]
    if isinstance(image, np.ndarray):
        channels = [Image.fromarray(np.ascontiguousarray(of)) for of in np.moveaxis(image, -1, 0)]
    height, width = size
    if channels[0].size == (width, height):
        return image
    if not resize:
        raise UserError(
            f"root: {where} has {channels[0].width} x {channels[0].height} pixels, expected {width} "
            f"x {height}."
        )
    scaled = [_covering(of, width, height) for of in channels]
    if isinstance(image, np.ndarray):
        return np.stack([np.asarray(of) for of in scaled], -1)
    return scaled[0]


def channels_in(data: bytes, where: str) -> int:
    """Return the number of channels of an array of NumPy's; 3 of a picture. UserError as of ``decode``."""
    return _array(data, where).shape[-1] if data.startswith(NUMPY) else 3


def _array(data: bytes, where: str) -> np.ndarray:
    """(h, w, C) numbers of a .npy file, whose channels stand first or last. UserError for anything else."""
    file = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(file)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else None
        shape, _, dtype = (header or np.lib.format.read_array_header_2_0)(file)
        room = math.prod(shape) * dtype.itemsize
        if dtype.kind not in "buif" or room != len(data) - file.tell():
            raise ValueError(f"{shape} of {dtype} in {len(data):,} bytes")
        values = np.load(io.BytesIO(data), allow_pickle=False)
    except Exception as error:  # a damaged header can raise nearly anything
        raise UserError(
            f"root: {where} is no whole array of numbers ({error}). Copy it again."
        ) from None
    values = values.astype(values.dtype.newbyteorder("="), copy=False)
    values = values[..., None] if values.ndim == 2 else values
    if values.ndim != 3 or not values.size:
        raise UserError(
            f"root: {where}: expected (height, width, channels), got {values.shape}. Save it so."
        )
    first = values.shape[0] < min(values.shape[1:])
    values = np.moveaxis(values, 0, -1) if first else values
    _refuse_thin((values.shape[1], values.shape[0]), where)
    return values


def _array_bytes(
    data: bytes, where: str, levels: Levels | Callable[[], Levels] | None
) -> np.ndarray:
    """(h, w, C) uint8 of a .npy file, with ``levels`` as for ``decode``."""
    values = _array(data, where)
    if values.dtype == np.uint8 and not isinstance(levels, Levels):
        return values
    _refuse_no_numbers(values, where)
    spread = _range(values, *_kind_of_numbers(values))
    if callable(levels):
        levels = levels() if spread.open else None
    return _bytes(values, levels or levels_of(spread, where))


def _refuse_no_numbers(values: np.ndarray, where: str) -> None:
    """UserError for pixels that are NaN or infinite: what is there, nobody knows."""
    if values.dtype.kind != "f":
        return
    odd = int((~np.isfinite(values)).sum())
    if odd:
        raise UserError(
            f"root: {where} has NaN or infinity for {odd:,} of {values.size:,} values. Fill them, "
            "e.g. with numpy.nan_to_num, and save it again."
        )


def _kind_of_numbers(values: np.ndarray) -> tuple[str, float | None]:
    """Return a name for the numbers of an array, and the white of those that can have one alone."""
    if values.dtype.kind == "b":
        return SIXTEEN, 1
    if values.dtype.kind == "f":
        return FLOATS, None
    if values.dtype in (np.uint16, np.uint8):
        return SIXTEEN, None
    signed = "signed " if values.dtype.kind == "i" else ""
    return f"{signed}whole numbers of {8 * values.dtype.itemsize} bits", None


def range_of(data: bytes, where: str) -> Range | None:
    """Return the range of an image's pixels of more than 8 bits; None for 8 bits, and for damaged files."""
    if not may_be_wide(data):
        return None
    try:
        if data.startswith(NUMPY):
            values = _array(data, where)
            eight = values.dtype == np.uint8
            return None if eight else _range(values, *_kind_of_numbers(values))
        with _told(data, where):
            wide = _opened(data, where, None)[1]
    except (UserError, ValueError):  # told when it is decoded
        return None
    return None if wide is None else wide[1]


def may_be_wide(data: bytes) -> bool:
    """Return False for an image that surely has 8 bits a channel, by its first bytes."""
    if data.startswith(PNG):
        return data[24:25] == b"\x10"  # the depth in the first chunk
    return data.startswith((b"II*", b"MM\0*", b"II+", b"MM\0+", b"P", NUMPY))


def holds_frames(data: bytes) -> bool:
    """Return True for a file of several frames, as a stack of slices or an animation; not for a smaller copy."""
    from PIL import Image

    if not data.startswith((b"GIF8", b"II", b"MM", b"RIFF", PNG)):
        return False
    if data.startswith(PNG) and b"acTL" not in data:  # the part that announces an animation
        return False
    with (
        contextlib.suppress(Exception),  # the end of the file, or damage, which decoding tells
        Image.open(io.BytesIO(data), formats=FORMATS) as opened,
    ):
        opened.seek(1)
        tags: Any = getattr(opened, "tag_v2", {})
        return not tags.get(254, 0) & 1
    return False


@contextlib.contextmanager
def _told(data: bytes, where: str) -> Any:
    """Turn what Pillow raises into a UserError with the true cause."""
    from PIL import Image, UnidentifiedImageError

    try:
        yield
    except UserError:
        raise
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        most = f"{Image.MAX_IMAGE_PIXELS or 0:,}"
        raise UserError(
            f"root: {where} has more than the {most} pixels that are read. Make it smaller."
        ) from None
    except Exception as error:  # PIL raises half a dozen unrelated types for damaged files
        if form := _tiff_form(data):
            raise UserError(_unread_tiff(where, form)) from None
        unknown = isinstance(error, UnidentifiedImageError)
        if unknown and (called := what_it_is(data)):
            raise UserError(f"root: {where} is {called}. Replace or remove it.") from None
        # its message for an unknown format is an object's address
        reason = "not an image" if unknown else error
        raise UserError(f"root: {where} is damaged ({reason}). Replace or remove it.") from None


def _opened(
    data: bytes, where: str, draft: tuple[int, int] | None
) -> tuple["PillowImage", tuple[np.ndarray, Range] | None]:
    """The image, upright, and the values of one with more than 8 bits a channel."""
    from PIL import Image

    with Image.open(io.BytesIO(data), formats=FORMATS) as opened:
        _refuse_thin(opened.size, where)
        if form := _misread(getattr(opened, "tag_v2", {})):
            raise UserError(_unread_tiff(where, form))
        lower = _lower_bytes(data, opened)
        if draft is not None:
            opened.draft(
                "RGB", draft
            )  # JPEG only: decode at the smallest scale that is large enough
        _load(opened)
    if lower is not None:
        upper = np.asarray(opened.convert("RGB"), dtype=np.int32)
        values = 256 * upper + np.asarray(lower.convert("RGB"), dtype=np.int32)
        return opened, (values, _range(values, SIXTEEN))
    if opened.mode.startswith("I;16") or opened.mode in ("I", "F"):
        values = np.asarray(opened)
        tags: Any = getattr(opened, "tag_v2", {})
        if opened.mode == "I" and tags and _form_of(tags) == (32, 1, "whole numbers"):
            values = values.astype(np.uint32)  # which Pillow takes for signed ones
        return opened, (values, _range(values, *_kind(opened)))
    return opened, None


def _kind(image: "PillowImage") -> tuple[str, float | None]:
    """Return a name for the pixels of a wide mode, and the value that their file calls white."""
    if image.mode == "F":
        return FLOATS, None
    if image.format == "PPM":  # Pillow scales them by the header's largest value
        return SIXTEEN, 2**16 - 1
    sixteen = image.mode.startswith("I;16") or image.format == "PNG"
    return (SIXTEEN if sixteen else WHOLE), None


def _range(values: np.ndarray, kind: str, white: float | None = None) -> Range:
    finite = values[np.isfinite(values)] if kind == FLOATS else values
    if not finite.size:
        raise ValueError("no finite pixel")
    return Range(float(finite.min()), float(finite.max()), kind, white)


def _lower_bytes(data: bytes, opened: "PillowImage") -> "PillowImage | None":
    """The lower bytes of an image of 16 bits a colour, of which Pillow keeps the upper ones; None of others."""
    from PIL import Image

    tiles: list[Any] = list(getattr(opened, "tile", ()))
    modes = {_raw(tile) for tile in tiles}
    if len(modes) != 1:
        return None
    mode = next(iter(modes))
    if mode == "LA;16B":
        return _grey_lower(data)
    if mode not in _LOWER:
        return None
    with Image.open(io.BytesIO(data), formats=FORMATS) as other:
        swapped: Any = [_with_raw(tile, _LOWER[mode]) for tile in other.tile]
        other.tile = swapped
        _load(other)
    return other


def _grey_lower(data: bytes) -> "PillowImage":
    """The lower bytes of grey with transparency: its two 16-bit channels are four of 8."""
    from PIL import Image

    with Image.open(io.BytesIO(data), formats=FORMATS) as other:
        swapped: Any = [_with_raw(tile, "RGBA") for tile in other.tile]
        other.tile = swapped
        _load(other)
    return other.getchannel("G")


def _raw(tile: Any) -> str:
    args = tile[3]
    return str(args[0] if isinstance(args, tuple | list) and args else args)


def _with_raw(tile: Any, mode: str) -> Any:
    args = tile[3]
    changed = (mode, *args[1:]) if isinstance(args, tuple | list) else mode
    return tile._replace(args=changed) if hasattr(tile, "_replace") else (*tile[:3], changed)


def _load(image: "PillowImage") -> None:
    """Read the pixels, and turn them as the camera was held."""
    from PIL import ImageOps

    image.load()
    damaged_exif = (SyntaxError, ValueError, TypeError, KeyError, struct.error)
    with contextlib.suppress(*damaged_exif):
        ImageOps.exif_transpose(image, in_place=True)


def _eight_bits(values: np.ndarray, levels: Levels) -> "PillowImage":
    """The image with 8 bits a channel, ``levels`` at 0 and 255."""
    from PIL import Image

    return Image.fromarray(_bytes(values, levels)).convert("RGB")


def _bytes(values: np.ndarray, levels: Levels) -> np.ndarray:
    """The values as uint8, ``levels`` at 0 and 255; of whole powers of two the upper bits."""
    bits = math.log2(levels.white + 1) if levels.black == 0 and levels.white >= 255 else 0.5
    if bits.is_integer() and not np.issubdtype(values.dtype, np.floating):
        return np.clip(values.astype(np.int64) >> (int(bits) - 8), 0, 255).astype(np.uint8)
    share = (values.astype(np.float64) - levels.black) / (levels.white - levels.black)
    return np.rint(255 * share.clip(0, 1)).astype(np.uint8)


def _covering(image: "PillowImage", width: int, height: int) -> "PillowImage":
    """The middle of the image, scaled until it covers the size."""
    from PIL import Image

    scale = max(width / image.width, height / image.height)
    wide = max(width, round(image.width * scale))
    high = max(height, round(image.height * scale))
    left, top = (wide - width) // 2, (high - height) // 2
    scaled = image.resize((wide, high), Image.Resampling.BICUBIC)
    return scaled.crop((left, top, left + width, top + height))


def _refuse_thin(size: tuple[int, int], where: str) -> None:
    """Raise UserError for an image that is far longer than wide."""
    width, height = size
    if max(size) > THINNEST * min(size):
        raise UserError(
            f"root: {where} has {width} x {height} pixels, expected a shape of at most {THINNEST} "
            "to 1. Crop it, or leave it out."
        )


def _tiff_form(data: bytes) -> str:
    """Channels and bits of a TIFF of a kind that Pillow does not read; "" for a damaged one and others."""
    from PIL import TiffImagePlugin

    if data[:4] not in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        return ""
    try:
        tags: Any = TiffImagePlugin.ImageFileDirectory_v2(data[: 16 if b"+" in data[:4] else 8])
        file = io.BytesIO(data)
        file.seek(tags.next)
        tags.load(file)
        if form := _misread(tags):
            return form
        bits, channels, called = _form_of(tags)
    except Exception:  # damaged, which the caller says
        return ""
    usual = channels in (1, 3, 4) and called == "whole numbers" and bits in (1, 8, 16)
    return "" if usual else _in_words(bits, channels, called)


def _form_of(tags: Any) -> tuple[int, int, str]:
    """Return the bits of a channel of a TIFF, the number of its channels, and the name of its numbers."""
    kind = {2: "signed whole numbers", 3: FLOATS, 6: "complex numbers"}
    called = kind.get(tags.get(339, (1,))[0], "whole numbers")
    return int(tags.get(258, (1,))[0]), int(tags.get(277, 1)), called


def _in_words(bits: int, channels: int, called: str) -> str:
    return f"{counted(channels, 'channel')} of {called} of {bits} bits"


def _misread(tags: Any) -> str:
    """Return the form of a TIFF that Pillow opens and reads wrongly, or in part; "" of others.

    It does not turn 16 bits whose 0 is white, takes planes of 16 bits for planes of 8, signed bytes
    for unsigned ones, and leaves out a second channel that is no transparency.
    """
    if not tags:
        return ""
    (bits, channels, called), colours = _form_of(tags), tags.get(262)
    form = _in_words(bits, channels, called)
    if colours == 0 and bits > 8:
        return f"{form} whose 0 is white"
    if bits > 8 and channels > 1 and tags.get(284, 1) == 2:
        return f"{form} in planes"
    if bits == 8 and called == "signed whole numbers":
        return form
    extra = tags.get(338, ())
    return form if colours in (0, 1) and channels == 2 and not {1, 2} & {*extra} else ""


def _unread_tiff(where: str, form: str) -> str:
    return (
        f"root: {where} is a TIFF of {form}, which is not read; expected 1, 3 or 4 channels of 8 or "
        "16 bits, pixel by pixel and with black 0, or 1 of floating-point numbers of 32. Save it as "
        "one of these."
    )


# how files begin that lie among photographs, often under the name of one
_UNREAD = f"a picture in a format that is not read; save it as one of {', '.join(FORMATS)}"
_BEGINNINGS: tuple[tuple[bytes, str], ...] = (
    (b"version https://git-lfs", "a pointer of Git LFS, not the picture (git lfs pull fetches it)"),
    (b"<!doctype html", "a page of HTML, as of a download that failed"),
    (b"<html", "a page of HTML, as of a download that failed"),
    (b"<svg", f"an SVG, {_UNREAD}"),
    (b"%pdf", "a PDF"),
    (b"%!ps", "a PostScript file"),
    (b"pk\x03\x04", "a zip archive"),
    (b"\x1f\x8b", "a file packed by gzip"),
    (b"\0\0\0\x0cjp  ", f"a JPEG 2000, {_UNREAD}"),
    (b"\xff\x4f\xff\x51", f"a JPEG 2000, {_UNREAD}"),
    (b"\xff\x0a", f"a JPEG XL, {_UNREAD}"),
    (b"\0\0\0\x0cjxl ", f"a JPEG XL, {_UNREAD}"),
    (b"8bps", f"a file of Photoshop, {_UNREAD}"),
    (b"\0\0\1\0", f"an icon, {_UNREAD}"),
    (b"\x76\x2f\x31\x01", f"an OpenEXR, {_UNREAD}"),
    (b"#?radiance", f"an HDR of Radiance, {_UNREAD}"),
    (b"\x89hdf", "a file of HDF5"),
)


def what_it_is(data: bytes) -> str:
    """Return what a file that Pillow does not know is, by its first bytes; "" where they do not tell."""
    head = data[:512].lstrip().lower() if data[:1] in b"<\n\r\t " else data[:512].lower()
    if data[4:8] == b"ftyp":
        kind = "an AVIF" if data[8:12] in (b"avif", b"avis") else "a HEIC"
        return f"{kind}, {_UNREAD}" if data[8:11] in (b"avi", b"hei", b"hev", b"mif") else "a video"
    if data[128:132] == b"DICM":
        return f"a DICOM, {_UNREAD}"
    return next((called for begins, called in _BEGINNINGS if head.startswith(begins)), "")
