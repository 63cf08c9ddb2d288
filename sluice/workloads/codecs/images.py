"""Codec of images: decodes and resizes image files in the same way as those of the training rows.

Shape legend: B = images, C = channels, H, W = height and width [pixels].
"""

import base64
import binascii
import io
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from sluice.base.digests import digest_bytes
from sluice.base.errors import ContractError, PayloadError
from sluice.data.rows.image_decoding import ImageDecoder, ImageMode, ImageResize
from sluice.data.rows.protocol import ModelInput
from sluice.workloads.codecs.codec import Codec, to_json_text
from sluice.workloads.codecs.identity import CodecProbe
from sluice.workloads.codecs.request import CodecRequest
from sluice.workloads.codecs.text import payload_column

DEFAULT_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
"""Pillow's names of the accepted formats. Pillow can read many other formats, some of them with
external programs, which a server must not run for a client."""

_MAX_PIXELS_FACTOR = 4
"""Maximum number of pixels of a request, in multiples of the largest accepted image. Solid areas
compress so well that a body of 4 MiB can have a hundred images of the maximum size."""


class ImagesRequest(CodecRequest):
    """Body of a request with images."""

    elements_field: ClassVar[str] = "images"

    images: list[str] = Field(
        min_length=1,
        max_length=100_000,
        fail_fast=True,
        description="One image file for each prediction, its bytes in base64.",
    )


class ImagesCodec(Codec):
    """Codec of image files in base64, decoded and resized in the same way as ``ImageFolderRows``.

    Args:
        size: Height and width of the network's input, a number for a square [pixels].
        mode: RGB for three channels, L for grey values.
        resize: How images of other sizes are resized to ``size``; see ``ImageResize``.
        as_float: Whether to return float32 from 0 to 1 instead of uint8 from 0 to 255.
        folder: Folder of the training images, from which a rehearsal builds its requests.
        column: Column of the feature frame or the raw rows with the paths, relative to the folder.
        watch: Function from a decoded image (C, H, W) to the values of the workload's feature
            columns, such as its brightness. The values are stored with sampled requests, to detect
            drift. None: no values are stored.
        formats: Accepted file formats, by Pillow's names.
        max_pixels: Images with more pixels are refused before they are decoded.
        max_images: Maximum number of images of a request.

    Raises:
        ContractError: A setting is invalid.
    """

    kind: ClassVar[str] = "images"
    request_type: ClassVar[type[CodecRequest]] = ImagesRequest

    def __init__(
        self,
        size: int | tuple[int, int],
        *,
        mode: ImageMode = "RGB",
        resize: ImageResize = "crop",
        as_float: bool = False,
        folder: Path | str | None = None,
        column: str = "path",
        watch: Callable[[Tensor], Sequence[float]] | None = None,
        formats: tuple[str, ...] = DEFAULT_FORMATS,
        max_pixels: int = 2**24,
        max_images: int = 64,
    ) -> None:
        height, width = (size, size) if isinstance(size, int) else size
        if min(height, width, max_pixels, max_images) < 1:
            raise ContractError(
                f"size, max_pixels and max_images must be positive, got {size}, {max_pixels} and "
                f"{max_images}.",
                fix="Correct the argument of ImagesCodec.",
            )
        if mode not in ("RGB", "L") or resize not in ("crop", "stretch"):
            raise ContractError(
                f"mode must be RGB or L, and resize crop or stretch, got {mode!r} and {resize!r}.",
                fix="Pass the values that ImageFolderRows has for the training rows.",
            )
        self._decoder = ImageDecoder(mode=mode, size=(height, width), resize=resize)
        self._size, self._as_float = (height, width), as_float
        self._folder, self._column = None if folder is None else Path(folder), column
        self._watch = watch
        self._formats, self._max_pixels = formats, max_pixels
        self.max_elements = max_images

    def decode_request(self, request: ImagesRequest) -> ModelInput:
        """Return the pixels, uint8 (B, C, H, W), or float32 from 0 to 1 if ``as_float``.

        Raises:
            PayloadError: An element is not base64, not a complete image of an accepted format, or
                has too many pixels.
        """
        names = [f"images.{number}" for number in range(len(request.images))]
        files = [
            _decode_base64(text, name) for text, name in zip(request.images, names, strict=True)
        ]
        # All sizes are read from the headers before the first image is decoded.
        num_pixels = [
            self._count_pixels(file, name) for file, name in zip(files, names, strict=True)
        ]
        limit = _MAX_PIXELS_FACTOR * self._max_pixels
        if sum(num_pixels) > limit:
            raise PayloadError(
                f"The images of a request may have at most {limit:,} pixels together, got "
                f"{sum(num_pixels):,}.",
                fix="Send several requests, or scale the images down.",
            )
        # The images are copied into one contiguous array, as ``ImageFolderRows`` does. np.stack
        # would keep the strides of the decoded images, and a convolution rounds differently for
        # another memory layout.
        pixels = np.empty((len(files), self._decoder.num_channels, *self._size), np.uint8)
        for number, (file, name) in enumerate(zip(files, names, strict=True)):
            pixels[number] = self._decode(file, name)
        tensor = torch.from_numpy(pixels)
        return tensor.float().div_(255) if self._as_float else tensor

    def identity_parts(self) -> dict[str, str]:
        """Return the settings that determine how images are decoded."""
        return {
            "size": to_json_text(self._size),
            "mode": to_json_text(self._decoder.mode),
            "resize": to_json_text(self._decoder.resize),
            "as_float": to_json_text(self._as_float),
        }

    def probes(self) -> tuple[CodecProbe, ...]:
        """Return the digests of two generated images after resizing.

        They reveal a change of Pillow's resize filter. The images are PNG files, because the pixels
        of a PNG file do not depend on the decoder.
        """
        probes = []
        for height, width in ((37, 53), (11, 7)):
            pixels = self._decode(
                _draw_png(height, width), f"the generated image {height} x {width}"
            )
            digest = digest_bytes(np.ascontiguousarray(pixels).tobytes())
            probes.append(CodecProbe(element=f"drawn PNG {height} x {width}", result=digest))
        return tuple(probes)

    def example(self) -> ModelInput:
        """Return one black image."""
        dtype = torch.float32 if self._as_float else torch.uint8
        return torch.zeros((1, self._decoder.num_channels, *self._size), dtype=dtype)

    def request_of(
        self, raw: pd.DataFrame, frame: pd.DataFrame, positions: NDArray[np.int64]
    ) -> dict[str, Any]:
        """Return the files of the given rows, from ``folder`` and the column with their paths.

        Raises:
            ContractError: The codec has no folder, or the tables have no such column.
        """
        if self._folder is None:
            return super().request_of(raw, frame, positions)
        paths = payload_column(raw, frame, positions, self._column, codec="ImagesCodec")
        files = [(self._folder / path).read_bytes() for path in paths]
        return {"images": [base64.b64encode(file).decode() for file in files]}

    def watched_values(
        self,
        request: ImagesRequest,  # noqa: ARG002 - the decoded images are sufficient
        x: ModelInput,
    ) -> tuple[float, ...]:
        """Return what ``watch`` returns for the first image."""
        assert isinstance(x, Tensor), "images are one tensor"
        return () if self._watch is None else tuple(map(float, self._watch(x[0])))

    def _count_pixels(self, file: bytes, name: str) -> int:
        """Return the number of pixels that the header states.

        Raises:
            PayloadError: The format is not accepted, or the image is too large.
        """
        from PIL import Image

        try:
            # Pillow warns above its own limit; the limit of the codec is checked below.
            with (
                warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning),
                Image.open(io.BytesIO(file), formats=self._formats) as image,
            ):
                height, width = image.height, image.width
        except Image.DecompressionBombError as error:
            raise self._too_large_error(name, str(error).partition(",")[0]) from None
        except Exception as error:  # Pillow's formats raise errors of many classes
            raise PayloadError(
                f"{name} must be an image of the format {' or '.join(self._formats)}, got "
                f"{len(file):,} bytes without a readable header ({type(error).__name__}).",
                fix="Send the unchanged bytes of an image file in base64.",
            ) from None
        if height * width > self._max_pixels:
            raise self._too_large_error(name, f"{height:,} x {width:,}")
        return height * width

    def _too_large_error(self, name: str, got: str) -> PayloadError:
        return PayloadError(
            f"{name} must have at most {self._max_pixels:,} pixels, got {got}.",
            fix=f"Scale the image down; the network reads {self._size[0]} x {self._size[1]} "
            "pixels.",
        )

    def _decode(self, file: bytes, name: str) -> NDArray[np.uint8]:
        try:
            return self._decoder.decode(file, name, formats=self._formats)
        except ContractError as error:
            raise PayloadError(
                error.what, fix="Send the unchanged bytes of an image file in base64."
            ) from None


def _decode_base64(text: str, name: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise PayloadError(
            f"{name} must be base64 without line breaks or a prefix, got {len(text):,} characters: "
            f"{error}.",
            fix="Encode the bytes of the image file, in Python: "
            "base64.b64encode(file.read_bytes()).decode().",
        ) from None


def _draw_png(height: int, width: int) -> bytes:
    """Return a PNG file with a pattern of many frequencies."""
    from PIL import Image

    row, column = np.mgrid[0:height, 0:width].astype(np.int64)
    channels = [(row * row * 3 + column * 7) % 256, (row * column) % 256, (column * 11 + row) % 251]
    file = io.BytesIO()
    Image.fromarray(np.stack(channels, axis=-1).astype(np.uint8)).save(file, format="PNG")
    return file.getvalue()
