"""Images in files or packed shards, as the input of a network."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sluice.base.errors import ContractError
from sluice.data.rows.image_decoding import ImageDecoder, ImageMode, ImageResize
from sluice.data.rows.positions import check_positions
from sluice.data.rows.shards import ShardReader


class ImageFolderRows:
    """Images of a folder, decoded when they are read.

    Shape legend: B = chosen images, C = channels, H, W = height and width [pixels].

    Args:
        folder: Folder that the paths are relative to.
        paths: Path of every image, such as a column of the raw rows.
        size: Height and width of all images [pixels]; a number for a square. By default the size
            of the first image; then an image of another size is an error.
        mode: RGB for three channels, L for grey values.
        resize: How images of other sizes are resized to ``size``; see ``ImageResize``.
        as_float: Whether to return float32 from 0 to 1 instead of uint8 from 0 to 255.

    Raises:
        ContractError: There is no image, or a setting is invalid.
        SourceError: The first image cannot be read, if ``size`` is not given.
    """

    def __init__(
        self,
        folder: Path | str,
        paths: Sequence[str],
        *,
        size: int | tuple[int, int] | None = None,
        mode: ImageMode = "RGB",
        resize: ImageResize = "crop",
        as_float: bool = False,
    ) -> None:
        self._folder, self._paths = str(Path(folder).absolute()), tuple(map(str, paths))
        if not self._paths:
            raise ContractError(
                f"A source of images needs at least one path in {folder}, got none.",
                fix="List the images with image_folder_table(folder).",
            )
        self._decoder = _make_decoder(size, mode, resize)
        self._as_float = as_float
        self._size = self._decoder.size or self._decode(0).shape[1:]

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, rows: Tensor, /) -> Tensor:
        positions = check_positions(rows, len(self))
        pixels = _empty_batch(self._decoder, len(positions), self._size)
        for number, row in enumerate(positions):
            pixels[number] = _require_size(self._decode(row), self._size, self._paths[row])
        return _to_tensor(pixels, as_float=self._as_float)

    def _decode(self, row: int | np.int64) -> NDArray[np.uint8]:
        path = os.path.join(self._folder, self._paths[row])
        return self._decoder.decode(path, path)


class ImageShardRows:
    """Images whose files are in a column of packed shards, decoded when they are read.

    Args:
        folder: Folder written by ``sluice pack`` from a tar file of images.
        column: Column with the bytes of the files.
        size: Height and width of all images [pixels]; a number for a square. By default the size
            of the first image; then an image of another size is an error.
        mode: RGB for three channels, L for grey values.
        resize: How images of other sizes are resized to ``size``; see ``ImageResize``.
        as_float: Whether to return float32 from 0 to 1 instead of uint8 from 0 to 255.

    Raises:
        ContractError: There is no such column, or a setting is invalid.
        SourceError: The shards or their first image cannot be read.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        column: str = "content",
        size: int | tuple[int, int] | None = None,
        mode: ImageMode = "RGB",
        resize: ImageResize = "crop",
        as_float: bool = False,
    ) -> None:
        self._shards, self._column = ShardReader(folder), column
        if self._shards.columns.get(column) != "binary":
            raise ContractError(
                f"The shards in {folder} must have a column '{column}' of type binary, got "
                f"{self._shards.columns}.",
                fix="Name the column with the bytes of the image files.",
            )
        self._decoder = _make_decoder(size, mode, resize)
        self._as_float = as_float
        self._size = self._decoder.size or self._decode([0])[0].shape[1:]

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, rows: Tensor, /) -> Tensor:
        positions = check_positions(rows, len(self))
        pixels = _empty_batch(self._decoder, len(positions), self._size)
        for number, image in enumerate(self._decode(positions)):
            pixels[number] = _require_size(image, self._size, f"record {positions[number]}")
        return _to_tensor(pixels, as_float=self._as_float)

    def _decode(self, rows: Sequence[int] | NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        records = self._shards.records(rows, [self._column])
        return [
            self._decoder.decode(record[self._column], f"record {row} of {self._shards.folder}")
            for row, record in zip(rows, records, strict=True)
        ]


def _make_decoder(
    size: int | tuple[int, int] | None, mode: ImageMode, resize: ImageResize
) -> ImageDecoder:
    pair = (size, size) if isinstance(size, int) else size
    for name, value, accepted_values in (
        ("mode", mode, ("RGB", "L")),
        ("resize", resize, ("crop", "stretch")),
    ):
        if value not in accepted_values:
            raise ContractError(
                f"'{name}' must be {' or '.join(accepted_values)}, got {value!r}.",
                fix="Correct it.",
            )
    if pair is not None and not (len(pair) == 2 and min(pair) > 0):
        raise ContractError(
            f"'size' must be a positive height and width in pixels, got {size}.",
            fix="Pass for example size=48 or size=(48, 64).",
        )
    return ImageDecoder(mode=mode, size=pair, resize=resize)


def _empty_batch(
    decoder: ImageDecoder, num_images: int, size: tuple[int, ...]
) -> NDArray[np.uint8]:
    return np.empty((num_images, decoder.num_channels, *size), np.uint8)


def _require_size(pixels: NDArray[np.uint8], size: tuple[int, ...], name: str) -> NDArray[np.uint8]:
    if pixels.shape[1:] == size:
        return pixels
    raise ContractError(
        f"{name} must have {size[0]} x {size[1]} pixels (height x width) like the first image, got "
        f"{pixels.shape[1]} x {pixels.shape[2]}.",
        cause="The images of a batch become one tensor, so they must have the same size.",
        fix="Pass size=(height, width), so that every image is resized to this size.",
    )


def _to_tensor(pixels: NDArray[np.uint8], *, as_float: bool) -> Tensor:
    tensor = torch.from_numpy(pixels)
    return tensor.float().div_(255) if as_float else tensor
