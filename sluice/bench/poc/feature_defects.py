"""Workloads with one defect each in their features or examples."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from sluice.bench.poc.workloads import Cancer, Diabetes, Digits, DigitTokens, ShortBars, Wine
from sluice.data.folds import Fold, RowRange
from sluice.data.rows.protocol import ModelInput
from sluice.workloads.examples import Examples


class NanFeature(Diabetes):
    """Takes the square root of a difference that is negative in some rows."""

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        """Return the rows with NaN where the difference is negative."""
        with np.errstate(invalid="ignore"):
            return raw.assign(s6=np.sqrt(raw["s6"] - 90))


class ConstantColumn(Wine):
    """A column is 0 in all rows, as after a join without matches."""

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        """Return the rows with the constant column."""
        return raw.assign(ash=0.0)


class LookAheadShift(ShortBars):
    """The return of the next day is a feature of today."""

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        """Return the features; one of them is shifted in the wrong direction."""
        frame = super().compute_features(raw)
        next_return = raw["close"].pct_change().shift(-1)
        return frame.assign(momentum_z=next_return.reindex(frame.index).fillna(0.0))


class LookAheadWindow(ShortBars):
    """Smooths a feature with a centred window, which contains later days."""

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        """Return the features; one of them is smoothed."""
        frame = super().compute_features(raw)
        smooth = frame["volume_z"].rolling(5, center=True, min_periods=1).mean()
        return frame.assign(volume_z=smooth)


class WholeTableScaling(Cancer):
    """Standardises features with mean and standard deviation of all rows, including test rows."""

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        """Return standardised rows."""
        values = raw[list(self.feature_columns)]
        return raw.assign(**((values - values.mean()) / values.std()))


class RandomFeature(Diabetes):
    """Adds noise to a feature without a seed."""

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        """Return the rows with noise in one feature."""
        noise = np.random.default_rng().normal(size=len(raw))
        return raw.assign(bp=raw["bp"] + noise)


class TargetCopyAsFeature(Diabetes):
    """A feature is the target in another unit."""

    feature_columns = (*Diabetes.feature_columns, "score")

    def __init__(self, settings: Any = None) -> None:
        super().__init__(settings)
        self.raw_schema = Diabetes().raw_schema

    def load_rows(self) -> pd.DataFrame:
        """Return the patients."""
        return Diabetes().load_rows()

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        """Return the rows with the copy."""
        return raw.assign(score=(raw["progression"] - 25) / 321)


class TargetAsFeature(Cancer):
    """``feature_columns`` contains all columns, including the target."""

    feature_columns = (*Cancer.feature_columns, "benign")

    def __init__(self, settings: Any = None) -> None:
        super().__init__(settings)
        self.raw_schema = self.feature_schema = Cancer().raw_schema

    def load_rows(self) -> pd.DataFrame:
        """Return the tumours."""
        return Cancer().load_rows()


class SplitScaling(Wine):
    """Standardises every split with its own statistics."""

    def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
        """Return examples standardised with their own statistics."""
        examples = super().examples(frame, rows)
        x = (examples.tensor - examples.tensor.mean(dim=0)) / examples.tensor.std(dim=0)
        return Examples(x=x, y=examples.targets, rows=examples.rows)


class StateOfAllRows(Wine):
    """Fits its normaliser on the rows of the source, which include the test rows."""

    def fit(self, train_frame: pd.DataFrame) -> Mapping[str, Any]:  # noqa: ARG002 - the defect
        """Return mean and standard deviation of all rows."""
        values = self.load_rows()[list(self.feature_columns)]
        return {"mean": values.mean().to_numpy(), "deviation": values.std().to_numpy()}

    def encode(self, x: ModelInput, state: Mapping[str, Tensor]) -> ModelInput:
        """Return standardised windows."""
        assert isinstance(x, Tensor)
        return (x - state["mean"]) / state["deviation"]


class SingleRowInputs(Wine):
    """The network is trained on single rows, while clients send windows."""

    def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
        """Return inputs (N, D)."""
        examples = super().examples(frame, rows)
        return Examples(x=examples.tensor[:, -1], y=examples.targets, rows=examples.rows)


class RandomAugmentation(Digits):
    """Adds unseeded noise in examples(), so that two calls differ."""

    def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
        """Return noisy examples."""
        examples = super().examples(frame, rows)
        noise = torch.from_numpy(np.random.default_rng().normal(size=examples.tensor.shape))
        return Examples(x=examples.tensor + noise.float(), y=examples.targets, rows=examples.rows)


class LabelsFromOne(Digits):
    """Counts classes from 1, so the last class has no output."""

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        """Return the rows with labels 1 to 10."""
        return raw.assign(digit=raw["digit"] + 1)


class TokensOutOfRange(DigitTokens):
    """Offsets the token ids beyond the vocabulary."""

    def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
        """Return token ids from 11 to 27, although the vocabulary ends at 26."""
        examples = super().examples(frame, rows)
        return Examples(x=examples.tensor + 11, y=examples.targets, rows=examples.rows)


class UnseenCategories(Diabetes):
    """The only input is a number per patient, and all patients after the 280th share number 0.

    The network cannot distinguish these patients, so its predictions for validation rows are
    constant.
    """

    scale_inputs = False
    num_known_patients: ClassVar[int] = 280

    def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
        """Return numbers (N, 1) and targets."""
        examples = super().examples(frame, rows)
        number_N = np.where(examples.rows < self.num_known_patients, examples.rows + 1, 0)
        return Examples(
            x=torch.from_numpy(number_N)[:, None], y=examples.targets, rows=examples.rows
        )


class OverlappingFolds(Cancer):
    """Validates on rows that were trained on."""

    def plan_folds(self, frame: pd.DataFrame) -> tuple[Fold, ...]:
        """Return folds whose validation begins ten rows early."""
        return tuple(
            fold.model_copy(
                update={"val": RowRange(start=fold.train.stop - 10, stop=fold.val.stop)}
            )
            for fold in super().plan_folds(frame)
        )


class TrainRowsAfterTestRows(ShortBars):
    """Uses the oldest rows as test rows."""

    def plan_folds(self, frame: pd.DataFrame) -> tuple[Fold, ...]:
        """Return folds that test on the oldest rows."""
        test = RowRange(start=0, stop=100)
        return tuple(
            fold.model_copy(
                update={"train": RowRange(start=110, stop=fold.train.stop), "test": test}
            )
            for fold in super().plan_folds(frame)
        )


class ResetIndex(Cancer):
    """Smooths the features, drops the rows without a complete window, and resets the index."""

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        """Return features whose rows have the index labels of earlier rows."""
        smooth = raw[list(self.feature_columns)].rolling(5).mean()
        frame = smooth.assign(benign=raw["benign"])
        return frame.dropna().reset_index(drop=True)
