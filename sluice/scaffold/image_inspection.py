"""Inspects a folder of images, and guesses the classes and the image size."""

from pathlib import Path

from sluice.base.errors import ContractError, SourceError
from sluice.base.pluralize import pluralize
from sluice.config.poc_settings import PocSettings
from sluice.data.folds import FoldSettings, rows_needed
from sluice.data.rows import image_folder_table
from sluice.data.rows.image_listing import verify_images
from sluice.scaffold.guesses import FIRST_FOLDS, Guess, ImageGuess

MAX_SIDE = 64
"""Maximum side length of images in a first run [pixels]. Larger images are resized."""

_MIN_CLASS_IMAGES = 30
"""A comment in the generated code warns about a class with fewer images than this number."""

_SIDE_MULTIPLE = 4
"""Side lengths are multiples of this number, because the network halves the side lengths twice."""


def inspect_images(folder: Path) -> ImageGuess:
    """List and decode the images of a folder, and guess everything that the templates need.

    Raises:
        SourceError: The folder has no image, or an image cannot be decoded.
        ContractError: There are fewer than two classes, or too few images.
    """
    table = image_folder_table(folder, sizes=True)
    counts = table["label"].value_counts().sort_index()
    if len(counts) < 2:
        subfolders_text = f"only {counts.index[0]!r}" if counts.index[0] else "no subfolder"
        raise ContractError(
            f"{folder} must have a subfolder of images for each of at least two classes, got "
            f"{subfolders_text}.",
            cause="The class of an image is the name of its subfolder.",
            fix="Move the images into subfolders, such as cat/ and dog/, and pass the folder that "
            "contains the subfolders.",
        )
    poc_settings = PocSettings()
    folds = FoldSettings(**FIRST_FOLDS, embargo_rows=0)
    train_rows = rows_needed(folds, horizon_rows=0, min_train_rows=poc_settings.mini_min_rows)
    min_images = max(poc_settings.min_rows, train_rows)
    if len(table) < min_images:
        raise ContractError(
            f"{folder} must have at least {min_images} images for train, validation and test rows, "
            f"got {len(table)}.",
            fix="Provide more images.",
        )
    undecodable_images = verify_images(folder, table["path"].tolist())
    if undecodable_images:
        raise SourceError(
            f"{len(undecodable_images)} of {len(table)} images of {folder} cannot be decoded, the "
            f"first: {undecodable_images[0].reason}",
            fix="Replace or remove these files.",
        )
    rarest_class = counts.idxmin()
    notes = [
        f"The folder {entry.name!r} has no image, so it is not a class."
        for entry in sorted(folder.iterdir())
        if entry.is_dir() and not entry.name.startswith(".") and entry.name not in counts.index
    ]
    if counts.min() < _MIN_CLASS_IMAGES:
        notes.append(f"Class {rarest_class!r} has only {pluralize(int(counts.min()), 'image')}.")
    if counts.min() < 0.1 * counts.max():
        notes.append(
            f"Imbalanced: {pluralize(int(counts.min()), 'image')} of {rarest_class!r}, "
            f"{counts.max():,} of {counts.idxmax()!r}. macro_f1 counts every class equally."
        )
    return ImageGuess(
        data=folder.name,
        num_rows=len(table),
        classes=tuple(map(str, counts.index)),
        class_notes=tuple(notes),
        size=_guess_size(table["height"].tolist(), table["width"].tolist()),
    )


def _guess_size(heights: list[int], widths: list[int]) -> Guess:
    height, width = sorted(heights)[len(heights) // 2], sorted(widths)[len(widths) // 2]
    scale = min(1.0, MAX_SIDE / max(height, width))
    size = tuple(
        max(8, round(side * scale / _SIDE_MULTIPLE) * _SIDE_MULTIPLE) for side in (height, width)
    )
    num_sizes = len(set(zip(heights, widths, strict=True)))
    sizes_text = (
        f"All images have {height} x {width} pixels."
        if num_sizes == 1
        else f"The images have {num_sizes} sizes; the median is {height} x {width} pixels."
    )
    reason = f"Height and width. {sizes_text}"
    if size != (height, width):
        reason += (
            f" They are resized to multiples of {_SIDE_MULTIPLE}, at most {MAX_SIDE} pixels, so "
            "that a first run is quick. Larger images may give a better model."
        )
    return Guess(value=list(size), reason=reason)
