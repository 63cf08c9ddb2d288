"""Base class of workloads that classify the images of a folder."""

from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import pandas as pd
import torch
from pydantic import Field
from torch import Tensor, nn

from sluice.base.errors import ContractError, SettingsError
from sluice.base.pluralize import pluralize
from sluice.data.expectations import Expectation, InSet, NotNull, RowCount
from sluice.data.folds import FoldSettings, RowRange, rows_needed
from sluice.data.hash_order import in_hash_order
from sluice.data.rows import ImageFolderRows, image_folder_table
from sluice.data.rows.content import iter_chunks, row_digests
from sluice.data.rows.image_decoding import ImageDecodingError, ImageMode
from sluice.data.schema import Column, Schema
from sluice.models.settings import ModelSettings
from sluice.workloads.classification import describe_label_mismatch
from sluice.workloads.codecs import Codec, ImagesCodec
from sluice.workloads.examples import Examples
from sluice.workloads.workload import Workload, WorkloadSettings

_RAW_COLUMNS = (
    Column(name="path", kind="string", description="Path relative to the folder."),
    Column(name="label", kind="string", description="Name of the class."),
    Column(name="content", kind="string", description="Digest of the pixels."),
    Column(name="brightness", unit="share", description="Mean of all pixels."),
)
_CLASS_COLUMN = Column(name="class", kind="int", description="Number of the class.")

_MIN_TRAIN_ROWS = 16

_Side = Annotated[int, Field(ge=1)]


class ImageFolderSettings(WorkloadSettings):
    """Settings of the folder and of the decoding of its images."""

    folds: FoldSettings = FoldSettings(num_folds=1, first_test_share=0.75, embargo_rows=0)
    folder: str | None = Field(
        None,
        description="Folder with one subfolder for each class. A relative path is relative to the "
        "folder of the workload's module.",
    )
    size: _Side | Annotated[tuple[_Side, _Side], Field(strict=False)] | None = Field(
        None,
        description="Height and width to which images are scaled and cropped, a number for a "
        "square; null if all images have one size [pixels].",
    )
    mode: ImageMode = Field("RGB", description="RGB for colours, L for grey values.")
    skip_broken: bool = Field(
        False, description="Whether to omit images that cannot be decoded, with a warning."
    )


class ImageFolderWorkload(Workload):
    """Classifies the images of a folder with one subfolder for each class.

    Images are independent, and ordered by a hash of their pixels. No two images may have the same
    pixels: they would have the same key, and might be in both train and test rows. A subclass
    declares ``classes``, the names of the subfolders; it may override ``augment``, and ``folder``
    for images that it generates. ``sluice init`` writes a class of this kind.

    The rows contain a digest of the pixels, so a changed image changes the data version. The folder
    is not a data file of the workload: data files are part of the code digest, which a server
    verifies, but a server has no training images.
    """

    settings_type: ClassVar[type[WorkloadSettings]] = ImageFolderSettings
    settings: ImageFolderSettings
    task = "classification"
    scale_inputs = False
    raw_schema = Schema(columns=_RAW_COLUMNS, index_name="image", index_kind="int")
    feature_schema = Schema(
        columns=(*_RAW_COLUMNS, _CLASS_COLUMN), index_name="image", index_kind="int"
    )
    feature_columns = ("brightness",)
    display_column = "path"
    target_column = _CLASS_COLUMN.name
    horizon_rows = 0

    def __init__(self, settings: ImageFolderSettings | None = None) -> None:
        super().__init__(settings)
        min_rows = rows_needed(self.settings.folds, horizon_rows=0, min_train_rows=_MIN_TRAIN_ROWS)
        self.raw_expectations: tuple[Expectation, ...] = (
            RowCount(low=min_rows),
            *(NotNull(column=name) for name in self.raw_schema.names),
            InSet(column="label", values=tuple(map(str, self.classes))),
        )

    @property
    def folder(self) -> Path:
        """The folder of images."""
        if self.settings.folder is None:
            raise SettingsError(
                "The workload needs a folder of images.",
                fix="Set workload_settings: {folder: PATH}.",
            )
        return self.data_path(self.settings.folder)

    def images(self, frame: pd.DataFrame) -> ImageFolderRows:
        """Return the images of the rows of a table, in their order."""
        return ImageFolderRows(
            self.folder, frame["path"].tolist(), size=self.settings.size, mode=self.settings.mode
        )

    def load_rows(self) -> pd.DataFrame:
        """Return path, label, digest and brightness of every image, ordered by a hash of pixels.

        Raises:
            SourceError: The folder has no image, or an image cannot be decoded.
            ContractError: Two images have the same pixels.
        """
        table = image_folder_table(self.folder, skip_broken=self.settings.skip_broken)
        digests, brightness = [], []
        try:
            for pixels in iter_chunks(self.images(table)):
                assert isinstance(pixels, Tensor)
                digests += row_digests(pixels)
                brightness.append(_brightness(pixels))
        except ImageDecodingError as error:
            raise ImageDecodingError(
                error.what,
                cause=error.cause,
                fix="Replace the file, or set workload_settings: {skip_broken: true}, which omits "
                "broken images and reports their number.",
            ) from None
        table = table.assign(content=digests, brightness=torch.cat(brightness).numpy())
        _require_distinct(table)
        return in_hash_order(table, ["content"], name="image")

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        """Return the rows with the number of each class.

        Raises:
            ContractError: A label is not one of ``classes``.
        """
        class_numbers = {str(name): class_number for class_number, name in enumerate(self.classes)}
        labels = set(raw["label"])
        if labels - class_numbers.keys():
            raise ContractError(
                f"The folders of the classes must be {', '.join(class_numbers)}; "
                f"{describe_label_mismatch(labels, self.classes)}.",
                fix="Rename the folder to its class, add it to 'classes' of the workload, or move "
                "it out of the folder of images.",
            )
        return raw.assign(**{_CLASS_COLUMN.name: raw["label"].map(class_numbers).astype("int64")})

    def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
        """Return images, uint8 (N, C, H, W), and the numbers of their classes (N,)."""
        split_frame = frame.iloc[rows.start : rows.stop]
        return Examples(
            x=self.images(split_frame),
            y=torch.tensor(split_frame[_CLASS_COLUMN.name].to_numpy(np.int64)),
            rows=np.arange(rows.start, rows.stop),
        )

    def codec(self) -> Codec:
        """Return the codec, which decodes image files of clients like the images of the training.

        Raises:
            ContractError: The setting ``size`` is missing: a client's image may have any size.
        """
        if self.settings.size is None:
            raise ContractError(
                "To be served, a workload on images needs the setting 'size'.",
                cause="Without 'size', all images must have the same size, but clients may send "
                "images of other sizes.",
                fix="Set workload_settings: {size: PIXELS}.",
            )
        return ImagesCodec(
            self.settings.size,
            mode=self.settings.mode,
            folder=self.folder,
            watch=lambda image: _brightness(image[None]).tolist(),
        )

    def build_model(
        self,
        num_features: int,  # noqa: ARG002 - the width of an image
        num_outputs: int,
        settings: ModelSettings,
    ) -> nn.Module:
        """Return a network for the channels of the images."""
        return super().build_model(3 if self.settings.mode == "RGB" else 1, num_outputs, settings)


def _brightness(images: Tensor) -> Tensor:
    """Return the mean of the pixels of images of uint8 (N, C, H, W) as shares (N,)."""
    return images.double().mean(dim=(1, 2, 3)) / 255


def _require_distinct(table: pd.DataFrame) -> None:
    repeated_images = table[table.duplicated("content", keep=False)].sort_values("content")
    if len(repeated_images):
        first, second = repeated_images["path"].iloc[:2]
        raise ContractError(
            f"Every image must be in the folder once, but {first} and {second} have the same "
            f"pixels ({pluralize(len(repeated_images), 'image')} with repeated pixels in total).",
            cause="A copy in the test rows would be recognised, not classified.",
            fix="Remove the copies.",
        )
