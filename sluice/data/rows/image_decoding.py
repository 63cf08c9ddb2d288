"""Decodes images to arrays of one size, with Pillow."""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from sluice.base.errors import ContractError, SourceError

if TYPE_CHECKING:
    from PIL import Image

ImageMode = Literal["RGB", "L"]
"""RGB has three channels, L (grey values) one."""

ImageResize = Literal["crop", "stretch"]
"""``crop`` scales the image to cover the size, and cuts off equal margins of the longer side.
``stretch`` scales both sides independently. Both use Pillow's bilinear filter, which averages over
the covered pixels when it makes an image smaller."""

_DEEP_MODES = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")
"""Modes of Pillow whose values have more than 8 bits; ``convert`` would clip them to 255."""


class ImageDecodingError(SourceError):
    """A file is not a complete image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageDecoder:
    """Decodes images to arrays of uint8 (C, H, W).

    An alpha channel is dropped. Only the first frame of an animation is read. The orientation that
    a camera has stored in a JPEG file is applied.
    """

    mode: ImageMode
    size: tuple[int, int] | None
    """Height and width [pixels]; None keeps the size of the file."""
    resize: ImageResize

    @property
    def num_channels(self) -> int:
        """Number of channels C."""
        return len(self.mode)

    def decode(
        self, content: str | bytes, name: str, *, formats: tuple[str, ...] | None = None
    ) -> NDArray[np.uint8]:
        """Return the pixels of one image, uint8 (C, H, W).

        Args:
            content: Path of the file, or its bytes.
            name: Name of the image for messages.
            formats: Pillow's names of the accepted file formats; None accepts all formats.

        Raises:
            ImageDecodingError: The file is not a complete image.
            SourceError: The file is missing.
            ContractError: The image has more than 8 bits per channel.
        """
        # Imported here: Pillow takes 0.1 s to import, and only images need it.
        from PIL import Image, ImageOps

        try:
            with Image.open(
                io.BytesIO(content) if isinstance(content, bytes) else content, formats=formats
            ) as image:
                if image.mode in _DEEP_MODES:
                    raise _bit_depth_error(name, image.mode)
                if image.format in ("JPEG", "MPO"):
                    ImageOps.exif_transpose(image, in_place=True)
                converted = image if image.mode == self.mode else image.convert(self.mode)
                pixels = np.asarray(self._resize_image(converted))
        except FileNotFoundError:
            raise SourceError(
                f"There is no image {name}.",
                cause="The file was removed or renamed after the images were listed.",
                fix="Restore the file, or list the images again with image_folder_table.",
            ) from None
        except ContractError:
            raise
        except Exception as error:  # Pillow's formats raise errors of many classes
            raise ImageDecodingError(
                f"{name} cannot be decoded as an image: {error}.",
                cause="The file is incomplete, or is not an image.",
                fix="Replace the file, or list the images with image_folder_table(folder, "
                "skip_broken=True), which skips and counts broken images.",
            ) from None
        if pixels.ndim == 2:
            return pixels[None]
        return pixels.transpose(2, 0, 1)

    def _resize_image(self, image: "Image.Image") -> "Image.Image":
        from PIL import Image, ImageOps

        if self.size is None or (image.height, image.width) == self.size:
            return image
        height, width = self.size
        if self.resize == "crop":
            return ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
        return image.resize((width, height), Image.Resampling.BILINEAR)


def image_size(path: Path, name: str) -> tuple[int, int]:
    """Return the height and width that the header of an image file states.

    Raises:
        SourceError: The file is missing, or does not begin with an image header.
    """
    from PIL import Image

    try:
        with Image.open(path) as image:
            return image.height, image.width
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise SourceError(
            f"{name} cannot be read as an image: {error}.",
            cause="The file is incomplete, or is not an image.",
            fix="Replace the file, or list the images with skip_broken=True.",
        ) from None


def _bit_depth_error(name: str, mode: str) -> ContractError:
    return ContractError(
        f"{name} must have 8 bits per channel, got an image of mode {mode}.",
        cause="Converting 16 bits to 8 would clip nearly all values to white.",
        fix="Scale the image to 8 bits, or read it with a data set of your own and DatasetRows.",
    )
