"""Healthy workloads on small real data sets, which scikit-learn and Sluice contain.

Shape legend: N = examples, D = features, C = classes.
"""

from typing import Any, ClassVar

import pandas as pd
import torch
from torch import Tensor, nn

from sluice.data.folds import FoldSettings, RowRange
from sluice.data.schema import Column, Schema
from sluice.data.source_settings import PackagedBars, SourceSettings
from sluice.workloads.bars import BarsSettings, BarsWorkload
from sluice.workloads.examples import Examples
from sluice.workloads.workload import Workload, WorkloadSettings

_FOLDS = FoldSettings(num_folds=1, first_test_share=0.75, embargo_rows=1)
_NUM_BARS = 1000


class TableSettings(WorkloadSettings):
    """Settings with one fold, because the POC gate uses only the first fold."""

    folds: FoldSettings = _FOLDS


class SklearnWorkload(Workload):
    """Base class of workloads on a table of scikit-learn, with independent rows."""

    settings_type = TableSettings
    target_kind: ClassVar[Any] = "float"
    source: ClassVar[str]
    """Name of the loader in ``sklearn.datasets``."""
    source_options: ClassVar[dict[str, Any]] = {}
    """Keyword arguments of the loader."""

    def __init__(self, settings: WorkloadSettings | None = None) -> None:
        super().__init__(settings)
        columns = (*(Column(name=name) for name in self.feature_columns), self.target)
        self.raw_schema = self.feature_schema = Schema(columns=columns)

    @property
    def target(self) -> Column:
        """The target column."""
        return Column(name=self.target_column, kind=self.target_kind)

    def load_rows(self) -> pd.DataFrame:
        """Return the rows in a fixed random order, because some data sets are sorted by class."""
        from sklearn import datasets  # takes a second, because it imports scipy.stats

        load = getattr(datasets, self.source)
        values_ND, target_N = load(return_X_y=True, **self.source_options)
        rows = pd.DataFrame(values_ND, columns=list(self.feature_columns))
        rows[self.target_column] = target_N
        return rows.sample(frac=1, random_state=0, ignore_index=True)

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        """Return the rows as they are."""
        return raw.copy()


class Diabetes(SklearnWorkload):
    """442 patients, 10 measurements; regression of the progression of the disease."""

    source = "load_diabetes"
    source_options: ClassVar[dict[str, Any]] = {"scaled": False}
    feature_columns: tuple[str, ...] = (
        "age",
        "sex",
        "bmi",
        "bp",
        "s1",
        "s2",
        "s3",
        "s4",
        "s5",
        "s6",
    )
    target_column = "progression"


class Cancer(SklearnWorkload):
    """569 tumours, 30 measurements; benign or not, by binary cross-entropy on one logit."""

    source = "load_breast_cancer"
    feature_columns: tuple[str, ...] = tuple(
        f"{statistic}_{quantity}"
        for statistic in ("mean", "error", "worst")
        for quantity in (
            *("radius", "texture", "perimeter", "area", "smoothness"),
            *("compactness", "concavity", "concave_points", "symmetry", "fractal_dimension"),
        )
    )
    target_column = "benign"
    target_kind = "int"
    loss_unit = "nats"
    scale_target = False

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        """Return binary cross-entropy (N,)."""
        return nn.functional.binary_cross_entropy_with_logits(output, y, reduction="none")[:, 0]


class SklearnClassification(SklearnWorkload):
    """Base class of workloads with integer labels and cross-entropy."""

    target_kind = "int"
    num_classes: ClassVar[int]
    loss_unit = "nats"
    scale_target = False

    def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
        """Return windows (N, 1, D) and labels (N,)."""
        examples = super().examples(frame, rows)
        return Examples(x=examples.tensor, y=examples.targets[:, 0].long(), rows=examples.rows)

    def output_shape(self, y: Tensor) -> tuple[int, ...]:
        """Return the shape of the logits (N, C)."""
        return (len(y), self.num_classes)

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        """Return cross-entropy (N,)."""
        return nn.functional.cross_entropy(output, y, reduction="none")


class Wine(SklearnClassification):
    """178 wines, 13 measurements, 3 growers."""

    source = "load_wine"
    feature_columns: tuple[str, ...] = (
        *("alcohol", "malic_acid", "ash", "alcalinity", "magnesium", "phenols", "flavanoids"),
        *("nonflavanoids", "proanthocyanins", "colour", "hue", "od280", "proline"),
    )
    target_column = "grower"
    num_classes = 3


class Iris(SklearnClassification):
    """150 flowers, 4 measurements, 3 species."""

    source = "load_iris"
    feature_columns: tuple[str, ...] = (
        "sepal_length",
        "sepal_width",
        "petal_length",
        "petal_width",
    )
    target_column = "species"
    num_classes = 3


class Digits(SklearnClassification):
    """800 handwritten digits as a table of 64 pixels with values from 0 to 16."""

    source = "load_digits"
    feature_columns: tuple[str, ...] = tuple(
        f"pixel_{row}_{column}" for row in range(8) for column in range(8)
    )
    target_column = "digit"
    num_classes = 10
    num_rows: ClassVar[int] = 800

    def load_rows(self) -> pd.DataFrame:
        """Return the first rows of the shuffled data set."""
        return super().load_rows().head(self.num_rows)


class DigitImages(Digits):
    """The digits as images (N, 1, 8, 8) with values from 0 to 1."""

    scale_inputs = False

    def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
        """Return images and labels."""
        examples = super().examples(frame, rows)
        return Examples(
            x=examples.tensor.reshape(-1, 1, 8, 8) / 16, y=examples.targets, rows=examples.rows
        )


class DigitLines(Digits):
    """The digits as sequences of 8 lines with 8 pixels each, (N, 8, 8)."""

    scale_inputs = False

    def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
        """Return sequences and labels."""
        examples = super().examples(frame, rows)
        return Examples(
            x=examples.tensor.reshape(-1, 8, 8) / 16, y=examples.targets, rows=examples.rows
        )


class DigitTokens(Digits):
    """The digits as sequences of 64 tokens; a token is one of 17 grey values."""

    scale_inputs = False

    def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
        """Return tokens (N, 64) and labels."""
        examples = super().examples(frame, rows)
        return Examples(x=examples.tensor[:, 0].long(), y=examples.targets, rows=examples.rows)


class ShortBarsSettings(BarsSettings):
    """Source and folds for a short table of bars."""

    source: SourceSettings = PackagedBars(name="nasdaq")
    folds: FoldSettings = _FOLDS


class ShortBars(BarsWorkload):
    """The last 1,000 daily bars of an index; windows of 22 rows and 9 features."""

    settings_type = ShortBarsSettings

    def load_rows(self) -> pd.DataFrame:
        """Return the last rows of the source."""
        return super().load_rows().iloc[-_NUM_BARS:]


def scale_pixels_to_255(x: Tensor) -> Tensor:
    """Return pixels from 0 to 16 as integers from 0 to 255, as in an image file."""
    return torch.round(x * (255 / 16))
