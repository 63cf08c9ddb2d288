"""Generated images of shapes in a folder, whose best possible error rate is known."""

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sluice.base.files import make_folder

SHAPES = ("circle", "cross", "square", "triangle")
"""Names of the classes, in alphabetical order."""

LABEL_NOISE = 0.04
"""Share of images whose label is drawn at random from all classes, independent of the shape."""


def write_shapes(folder: Path, num_images: int, *, seed: int, side: int = 32) -> None:
    """Write PNG files of shapes to a new folder with one subfolder per class.

    A shape has a random position, size, rotation and colour on a noisy background. The label of a
    share of ``LABEL_NOISE`` of all images is drawn at random, so no model has an error rate below
    3/4 of this share.

    Args:
        folder: The folder.
        num_images: Number of images.
        seed: Seed of the generator.
        side: Side length [pixels].

    Raises:
        StorageError: The folder cannot be written.

    Cost:
        About 0.3 ms per image of 32 x 32 pixels.
    """
    from PIL import Image  # takes 0.1 s

    rng = np.random.default_rng(seed)
    for shape in SHAPES:
        make_folder(folder / shape)
    for number in range(num_images):
        shape = SHAPES[number % len(SHAPES)]
        label = str(rng.choice(SHAPES)) if rng.random() < LABEL_NOISE else shape
        pixels = draw_shape(rng, shape, side=side)
        Image.fromarray(pixels).save(folder / label / f"{number:06d}.png")


def lowest_error_rate() -> float:
    """Return the error rate of a model that recognises every shape."""
    return LABEL_NOISE * (1 - 1 / len(SHAPES))


def draw_shape(rng: np.random.Generator, shape: str, *, side: int) -> NDArray[np.uint8]:
    """Return the pixels of one shape on a noisy background, uint8 (H, W, 3)."""
    radius = rng.uniform(0.22, 0.36) * side
    centre_y, centre_x = rng.uniform(radius, side - radius, 2)
    row_S, column_S = np.mgrid[:side, :side]
    angle = rng.uniform(0, 2 * math.pi)
    down = (row_S - centre_y) / radius
    right = (column_S - centre_x) / radius
    u = math.cos(angle) * right + math.sin(angle) * down
    v = math.cos(angle) * down - math.sin(angle) * right
    is_inside = {
        "circle": u**2 + v**2 < 0.8,
        "cross": ((abs(u) < 0.3) | (abs(v) < 0.3)) & (abs(u) < 1) & (abs(v) < 1),
        "square": (abs(u) < 0.75) & (abs(v) < 0.75),
        "triangle": (v < 0.6) & (v > 2 * abs(u) - 1),
    }[shape]
    background, colour = rng.uniform(30, 110, 3), rng.uniform(140, 240, 3)
    pixels = np.where(is_inside[..., None], colour, background)
    noisy_pixels = pixels + rng.normal(0, 20, pixels.shape)
    return noisy_pixels.clip(0, 255).astype(np.uint8)
