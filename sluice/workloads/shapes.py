"""Workload that classifies generated images of shapes: files in a folder, augmented at random."""

from functools import partial
from pathlib import Path
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from sluice.data.generated.folder import generate_once
from sluice.data.generated.shapes import SHAPES, write_shapes
from sluice.data.rows.protocol import ModelInput
from sluice.workloads.augmentation import draw_uniform
from sluice.workloads.image_folder import ImageFolderSettings, ImageFolderWorkload
from sluice.workloads.workload import WorkloadSettings


class ShapesSettings(ImageFolderSettings):
    """Settings of the images."""

    num_images: int = Field(3_000, ge=200, description="Number of generated images [rows].")
    folder: str | None = Field(
        None,
        description="Folder with one subfolder for each shape; null generates the images. A "
        "relative path is relative to the working folder.",
    )


class ShapesWorkload(ImageFolderWorkload):
    """Decides which of four shapes an image shows; 3 % of the labels are wrong.

    The images are written to ``SLUICE_HOME/generated`` if they do not exist there. If the setting
    ``folder`` is given (relative to the working folder), the images are read from it instead.
    """

    settings_type: ClassVar[type[WorkloadSettings]] = ShapesSettings
    settings: ShapesSettings
    classes = SHAPES
    headline_metric = "accuracy"

    @property
    def folder(self) -> Path:
        """Folder of the images: the setting ``folder``, or the folder of the generated images."""
        if self.settings.folder is not None:
            return Path(self.settings.folder)
        count = self.settings.num_images
        return generate_once(f"shapes_{count}", partial(write_shapes, num_images=count, seed=0))

    def augment(self, x: ModelInput, y: Tensor, seeds: Tensor) -> tuple[ModelInput, Tensor]:
        """Flip each image horizontally and vertically, each with probability 1/2."""
        assert isinstance(x, Tensor)
        is_mirrored, is_flipped = (draw_uniform(seeds, 2) < 0.5).T[:, :, None, None, None]
        x = torch.where(is_mirrored, x.flip(3), x)
        return torch.where(is_flipped, x.flip(2), x), y
