"""Workload for handwritten digits: independent rows, ten classes, logistic regression as baseline.

The workload is the example of data without a time order.
"""

from typing import ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from pydantic import Field
from torch import Tensor, nn

from sluice.base.errors import ContractError
from sluice.data.expectations import Expectation
from sluice.data.folds import Fold, FoldSettings, rows_needed
from sluice.data.hash_order import in_hash_order
from sluice.data.schema import Schema
from sluice.data.validation import validate_schema
from sluice.workloads.classification import class_mistakes
from sluice.workloads.digits_contract import (
    CLASSES,
    DIGIT,
    FEATURE_SCHEMA,
    INK,
    KEY,
    MAX_PIXEL_VALUE,
    PIXELS,
    RAW_SCHEMA,
    feature_expectations,
    raw_expectations,
    validate_digits,
)
from sluice.workloads.workload import Workload, WorkloadSettings


class DigitsSettings(WorkloadSettings):
    """Settings of the split of the pictures and of the compared loss."""

    seq_len: Literal[1] = Field(1, description="Each picture is classified separately [rows].")
    folds: FoldSettings = FoldSettings(num_folds=2, first_test_share=0.5, embargo_rows=0)
    gate_loss: Literal["log_loss", "zero_one"] = Field(
        "log_loss",
        description="Loss per picture that the promotion gate compares: the log loss, or 1 for a "
        "wrong class and 0 otherwise.",
    )
    min_rows: int = Field(1_000, ge=50, description="Minimum number of pictures [rows].")
    min_class_share: float = Field(
        0.02, ge=0, le=0.1, description="Minimum share of rows with each of the ten digits."
    )
    inverse_penalty: float = Field(
        1.0,
        gt=0,
        le=1e6,
        description="Inverse strength of the regularisation (C in scikit-learn) of the logistic "
        "regression that is the baseline.",
    )


class DigitsWorkload(Workload):
    """Classifies 1,797 pictures of 8 x 8 pixels into ten digits.

    Rows are independent. They are ordered by a hash of their pixels, which replaces time: every
    fold is trained on rows with smaller keys than its test rows. The train and validation rows of
    the first fold are never test rows, so a search may use them.

    Scores are valid only for new pictures by the same writers: the packaged data do not contain the
    writer of a digit, so folds cannot be split by writer.

    Source:
        Alpaydin & Kaynak (1998), "Optical recognition of handwritten digits", UCI repository, as
        shipped by scikit-learn.
    """

    settings_type: ClassVar[type[WorkloadSettings]] = DigitsSettings
    settings: DigitsSettings

    task = "classification"
    classes = CLASSES
    raw_schema: Schema = RAW_SCHEMA
    feature_schema: Schema = FEATURE_SCHEMA
    feature_columns: tuple[str, ...] = PIXELS
    target_column: str = DIGIT.name
    horizon_rows: int = 0
    scale_inputs: bool = False

    def __init__(self, settings: DigitsSettings | None = None) -> None:
        self.settings = settings if settings is not None else DigitsSettings()
        self.loss_unit = "nats" if self.settings.gate_loss == "log_loss" else "mistakes"
        self.raw_expectations: tuple[Expectation, ...] = raw_expectations(
            min_rows=self.required_rows
        )
        self.feature_expectations: tuple[Expectation, ...] = feature_expectations(
            min_rows=self.required_rows
        )

    @property
    def required_rows(self) -> int:
        """Minimum number of pictures for all folds; at least ``min_rows``."""
        num_fold_rows = rows_needed(
            self.settings.folds, horizon_rows=self.horizon_rows, min_train_rows=len(CLASSES)
        )
        return max(self.settings.min_rows, num_fold_rows)

    def load_rows(self) -> pd.DataFrame:
        """Return the packaged pictures in the order of their keys.

        Raises:
            ContractError: The package has fewer than ``required_rows`` pictures.
        """
        # Imported here, because scikit-learn takes about a second and Dagster loads every module.
        from sklearn.datasets import load_digits

        pixels_ND, digit_N = load_digits(return_X_y=True)
        rows = pd.DataFrame(pixels_ND, columns=list(PIXELS)).assign(**{DIGIT.name: digit_N})
        if len(rows) < self.required_rows:
            raise ContractError(
                f"At least {self.required_rows} pictures are required, got {len(rows)}.",
                cause="min_rows or the folds require more pictures than the package has.",
                fix="Lower min_rows, num_folds or embargo_rows, or raise first_test_share.",
            )
        return in_hash_order(rows, PIXELS, name=KEY)

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        """Return the pixels as shares of their maximum value, the digit, and ``ink``.

        Raises:
            SchemaError: ``raw`` does not match the raw schema.
            ContractError: A digit is missing or rare.
        """
        validate_schema(raw, self.raw_schema, "raw")
        validate_digits(raw, min_class_share=self.settings.min_class_share)
        pixels = raw[list(PIXELS)] / MAX_PIXEL_VALUE
        return pixels.assign(**{DIGIT.name: raw[DIGIT.name], INK.name: pixels.mean(axis=1)})

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the log loss, or the 0/1 loss, of each picture (B,)."""
        if self.settings.gate_loss == "zero_one":
            return class_mistakes(output, y)
        return super().losses(output, y)

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the mean log loss, which training minimises for both values of ``gate_loss``."""
        return nn.functional.cross_entropy(output, y)

    def baseline(self, frame: pd.DataFrame, fold: Fold) -> Tensor:
        """Return the log probabilities of a logistic regression on the pixels.

        The regression is fitted on train and validation rows: it needs no early stopping, and the
        baseline may use all rows that the candidate may use.

        Raises:
            ContractError: A digit is missing in these rows.
        """
        from sklearn.linear_model import LogisticRegression

        fit_examples = [self.examples(frame, rows) for rows in (fold.train, fold.val)]
        digit_N = torch.cat([examples.targets for examples in fit_examples]).numpy()
        if len(np.unique(digit_N)) < len(CLASSES):
            raise ContractError(
                f"Logistic regression requires every digit in its {digit_N.size} train and "
                f"validation rows, got {sorted(set(digit_N.tolist()))}.",
                fix="Start the first test window later, or provide more rows.",
            )
        model = LogisticRegression(C=self.settings.inverse_penalty, max_iter=2_000)
        model.fit(
            torch.cat([examples.tensor[:, 0] for examples in fit_examples]).double().numpy(),
            digit_N,
        )
        test = self.examples(frame, fold.test).tensor[:, 0].double().numpy()
        return torch.from_numpy(model.predict_log_proba(test).astype(np.float32))
