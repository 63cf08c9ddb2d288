"""Workload for a folder of images with one subfolder per class.

``sluice init`` writes a class of this kind, and every method may be overridden.
"""

from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
import torch
from pydantic import Field

from sluice.base.errors import ContractError, SettingsError
from sluice.data.expectations import Expectation, InSet, NotNull, RowCount
from sluice.data.folds import FoldSettings, RowRange, rows_needed
from sluice.data.hash_order import in_hash_order
from sluice.data.rows import ImageFolderRows, image_folder_table
from sluice.data.schema import Column, Schema
from sluice.data.validation import validate_schema
from sluice.workloads.workload import Examples, Workload, WorkloadSettings

KEY = "key"
"""Name of the index: a hash of the path of each image."""

_RAW = Schema(
    columns=(
        Column(name="path", kind="string", description="Path relative to the folder."),
        Column(name="label", kind="string", description="Name of the class."),
        Column(name="height", kind="int", unit="pixels", constant=True),
        Column(name="width", kind="int", unit="pixels", constant=True),
    ),
    index_name=KEY,
    index_kind="int",
)
_TARGET = Column(name="class", kind="int", description="Position of the label in 'classes'.")


class LabelledImagesSettings(WorkloadSettings):
    """Settings of the folder and of the size of the images."""

    folder: str = Field(
        min_length=1,
        description="Folder with one subfolder per class. A relative path is relative to the "
        "folder of the workload's module.",
    )
    size: tuple[int, int] = Field(
        strict=False,
        description="Height and width to which every image is resized, with margins cut off "
        "[pixels].",
    )
    folds: FoldSettings = FoldSettings(num_folds=2, first_test_share=0.5, embargo_rows=0)


class LabelledImagesWorkload(Workload):
    """Classifies the images of a folder; inputs are float32 from 0 to 1 (N, 3, H, W).

    A subclass declares ``classes``, the names of the subfolders. Images are independent, and
    ordered by a hash of their paths. They are decoded when they are read.
    """

    settings_type: ClassVar[type[WorkloadSettings]] = LabelledImagesSettings
    settings: LabelledImagesSettings

    task = "classification"
    horizon_rows = 0
    scale_inputs = False
    is_served = False
    raw_schema = _RAW
    feature_schema = _RAW.model_copy(update={"columns": (*_RAW.columns, _TARGET)})
    feature_columns = ()
    target_column = _TARGET.name

    def __init__(self, settings: LabelledImagesSettings | None = None) -> None:
        if settings is None:
            raise SettingsError(
                f"{type(self).__name__} requires settings with a 'folder'.",
                fix="Set 'folder' and 'size' in workload_settings.",
            )
        self.settings = settings
        # The content of the images determines the model, but the rows have only their paths.
        self.data_files = (settings.folder,)
        self.raw_expectations: tuple[Expectation, ...] = (
            RowCount(low=rows_needed(settings.folds, horizon_rows=0, min_train_rows=16)),
            *(NotNull(column=name) for name in _RAW.names),
            InSet(column="label", values=self.classes),
        )

    @property
    def folder(self) -> Path:
        """Folder of the images."""
        return self.data_path(self.settings.folder)

    def load_rows(self) -> pd.DataFrame:
        """Return path, label, height and width of every image.

        Raises:
            SourceError: The folder is missing or has no image, or a file is not an image.
        """
        return in_hash_order(image_folder_table(self.folder, sizes=True), ["path"], name=KEY)

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        """Return the raw rows with the class numbers.

        Raises:
            SchemaError: ``raw`` does not match the raw schema.
            ContractError: A label is not one of ``classes``.
        """
        validate_schema(raw, self.raw_schema, "raw")
        numbers = raw["label"].map({str(label): n for n, label in enumerate(self.classes)})
        if numbers.isna().any():
            row = int(numbers.isna().to_numpy().argmax())
            raise ContractError(
                f"The class of every image must be one of {list(self.classes)}, got "
                f"{raw['label'].iloc[row]!r} for {raw['path'].iloc[row]}.",
                fix="Rename or remove the subfolder, or add it to 'classes' and train again.",
            )
        return raw.assign(**{_TARGET.name: numbers.astype("int64")})

    def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
        """Return the images (N, 3, H, W), which are read batch by batch, and their classes (N,)."""
        part = frame.iloc[rows.start : rows.stop]
        return Examples(
            x=ImageFolderRows(
                self.folder, part["path"].tolist(), size=self.settings.size, as_float=True
            ),
            y=torch.from_numpy(part[_TARGET.name].to_numpy(np.int64).copy()),
            rows=rows.positions(),
        )
