"""Small data sets of known structure, on which generated pipelines run without changes."""

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from sluice.base.errors import SettingsError

Template = Literal["regression", "classification", "images", "text", "tabular"]

_NUM_ROWS = 800
_NUM_IMAGES = 240
_IMAGE_SIDE = 16
"""Height and width of the sample images [pixels]."""

_SEED = 20240229
_POSITIVE_WORDS = ("great", "excellent", "reliable", "happy", "perfect")
_NEGATIVE_WORDS = ("poor", "broken", "slow", "refund", "terrible")
_NEUTRAL_WORDS = (
    "the",
    "parcel",
    "arrived",
    "on",
    "monday",
    "and",
    "i",
    "used",
    "it",
    "with",
    "my",
    "phone",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleData:
    """Files of a sample data set."""

    files: Mapping[str, bytes]
    """Content by path; the paths are relative to the folder of the pipeline."""

    data: str
    """Path of the data file, or of the folder of images."""

    target: str | None
    """Column to predict; None for images."""


def make_sample(template: Template) -> SampleData:
    """Return the sample data of a template; every call returns the same data.

    Raises:
        SettingsError: The template does not exist.
    """
    makers: dict[str, Callable[[np.random.Generator], SampleData]] = {
        "regression": _make_regression_sample,
        "classification": _make_classification_sample,
        "tabular": _make_tabular_sample,
        "text": _make_text_sample,
        "images": _make_image_sample,
    }
    if template not in makers:
        raise SettingsError(
            f"The template must be one of {', '.join(makers)}, got '{template}'.",
            fix="Use one of these names.",
        )
    return makers[template](np.random.default_rng(_SEED))


def _make_regression_sample(rng: np.random.Generator) -> SampleData:
    area, age = rng.uniform(30, 180, _NUM_ROWS), rng.uniform(0, 80, _NUM_ROWS)
    noise = rng.normal(scale=8, size=_NUM_ROWS)
    price = 2.5 * area + 40 * np.cos(age / 15) + noise
    return _csv_sample(pd.DataFrame({"area": area, "age": age, "price": price}).round(3), "price")


def _make_classification_sample(rng: np.random.Generator) -> SampleData:
    length, width = rng.normal(size=(2, _NUM_ROWS))
    is_inside = length**2 + width**2 + rng.normal(scale=0.3, size=_NUM_ROWS) < 1.2
    rows = pd.DataFrame({"length": length, "width": width}).round(4)
    return _csv_sample(rows.assign(kind=np.where(is_inside, "inner", "outer")), "kind")


def _make_tabular_sample(rng: np.random.Generator) -> SampleData:
    dates = pd.date_range("2022-01-03", periods=_NUM_ROWS)
    shop = rng.choice(["north", "south"], _NUM_ROWS)
    temperature = 12 + 9 * np.sin(2 * np.pi * dates.day_of_year / 365) + rng.normal(size=_NUM_ROWS)
    is_weekend = (dates.day_of_week >= 5).astype(float)
    noise = rng.normal(scale=3, size=_NUM_ROWS)
    sales = 80 + 25 * is_weekend * (shop == "north") + 0.1 * (temperature - 12) ** 2 + noise
    rows = pd.DataFrame(
        {
            "date": dates.strftime("%Y-%m-%d"),
            "shop": shop,
            "temperature": np.where(rng.random(_NUM_ROWS) < 0.05, np.nan, temperature),
            "sales": sales,
        }
    )
    return _csv_sample(rows.round(3), "sales")


def _make_text_sample(rng: np.random.Generator) -> SampleData:
    lines = []
    for _ in range(_NUM_ROWS):
        is_positive = bool(rng.random() < 0.5)
        words = [
            *rng.choice(_NEUTRAL_WORDS, 6),
            *rng.choice(_POSITIVE_WORDS if is_positive else _NEGATIVE_WORDS, 2),
        ]
        rng.shuffle(words)
        is_label_correct = rng.random() < 0.95
        label = "positive" if is_positive == is_label_correct else "negative"
        lines.append(json.dumps({"review": " ".join(words), "sentiment": label}))
    content = ("\n".join(lines) + "\n").encode()
    return SampleData(files={"data.jsonl": content}, data="data.jsonl", target="sentiment")


def _make_image_sample(rng: np.random.Generator) -> SampleData:
    from PIL import Image

    files = {}
    row, column = np.mgrid[:_IMAGE_SIDE, :_IMAGE_SIDE]
    for number in range(_NUM_IMAGES):
        label = ("horizontal", "vertical")[number % 2]
        phase, period = rng.uniform(0, 6), rng.uniform(3, 6)
        wave = np.sin((row if label == "horizontal" else column) * 2 * np.pi / period + phase)
        pixels = (
            128 + 60 * wave[..., None] + rng.normal(scale=40, size=(_IMAGE_SIDE, _IMAGE_SIDE, 3))
        )
        buffer = io.BytesIO()
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(buffer, "PNG")
        files[f"images/{label}/{number:03d}.png"] = buffer.getvalue()
    return SampleData(files=files, data="images", target=None)


def _csv_sample(rows: pd.DataFrame, target: str) -> SampleData:
    content = rows.to_csv(index=False).encode()
    return SampleData(files={"data.csv": content}, data="data.csv", target=target)
