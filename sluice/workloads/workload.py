"""What a user brings: rows, features, and what a good prediction is.

Everything after that is generic. A minimal workload writes ``load_rows`` and
``compute_features`` and declares its columns; every other method has a default that a workload
may replace.

Shape legend: B = examples of a batch, N = examples, L = sequence length [rows], D = features,
O = outputs.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from sluice.base.errors import ContractError
from sluice.base.settings import Settings
from sluice.data.expectations import Expectation
from sluice.data.folds import Fold, FoldSettings, RowRange, walk_forward
from sluice.data.schema import Schema
from sluice.models.settings import ModelSettings
from sluice.workloads.best_epoch import best_epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """Tensors of one split, in row order.

    ``x`` is (N, L, D) for sequences or whatever the model takes, also in an integer dtype (token
    ids for ``nn.Embedding``, pixels; set ``scale_inputs = False`` then); ``y`` is (N, O) or what
    the loss takes; ``rows`` (N,) are the positions of the examples in the feature frame.
    """

    x: Tensor
    y: Tensor
    rows: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)


class WorkloadSettings(Settings):
    """Settings every workload has; a workload's own settings class inherits from this."""

    seq_len: int = Field(1, ge=1, description="Rows a prediction may look at [rows].")
    folds: FoldSettings = FoldSettings()


class Workload(ABC):
    """Base of every workload."""

    settings_type: ClassVar[type[WorkloadSettings]] = WorkloadSettings

    raw_schema: Schema
    feature_schema: Schema
    """Features, target and every auxiliary column that baseline or metrics read."""

    feature_columns: tuple[str, ...]
    target_column: str

    raw_expectations: tuple[Expectation, ...] = ()
    feature_expectations: tuple[Expectation, ...] = ()

    horizon_rows: int = 1
    """How many rows ahead the target looks; neighbours' targets overlap for this long [rows].

    0 declares that rows are independent: no order in time, nothing shared. The gate then takes
    every row for a block of its own. Give such rows an order with ``in_hash_order``. A row in time
    whose target is of the row itself has 1.
    """

    cluster_column: str | None = None
    """Column of the feature frame whose equal values belong together, such as the day of several
    assets or the query of several documents. The gate counts a cluster as one observation, and
    ``horizon_rows`` in clusters. All rows of one must be in the same fold."""

    loss_unit: str = "target units squared"
    headline_metric: str = "loss"
    metric_directions: Mapping[str, Literal["higher", "lower"]] = {}
    """Which way each metric of the workload's own improves, by name. Those of
    ``sluice.metrics`` are known. The verdict names every metric that got worse."""

    scale_inputs: bool = True
    """Standardise inputs by the train rows' mean and deviation, inside the model."""

    scale_target: bool = True
    """The network predicts the target standardised by the train rows; outputs are unscaled."""

    frozen_parameters: tuple[str, ...] = ()
    """Shell patterns of the network's parameters that are frozen on purpose, such as 'stem.*'."""

    data_files: tuple[str, ...] = ()
    """Files and folders besides the rows whose content determines the model, such as a vocabulary
    or pretrained weights. They count as code: a change leads to a new training. A relative name
    counts from the folder of the workload's module; open it as ``data_path(name)``."""

    expects_signal: bool = True
    """False when the target may be unpredictable, as returns are: the gate then only warns."""

    def __init__(self, settings: WorkloadSettings | None = None) -> None:
        self.settings = settings if settings is not None else self.settings_type()

    def data_path(self, name: str) -> Path:
        """Return the path of a data file, from the folder of the workload's module."""
        return Path(inspect.getfile(type(self))).parent / name

    @abstractmethod
    def load_rows(self) -> pd.DataFrame:
        """Return the raw rows, exactly as the source holds them.

        Raises:
            SourceError: The source is missing, empty or unreadable.
        """

    @abstractmethod
    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        """Return features, target and auxiliary columns, one row per example, without gaps.

        Features of a row may use that row and earlier ones only; the target looks ahead. Rows
        keep the index labels they have in ``raw``.
        """

    def plan_folds(self, frame: pd.DataFrame) -> tuple[Fold, ...]:
        """Split the rows; walk-forward with an embargo unless replaced."""
        return walk_forward(len(frame), self.settings.folds, horizon_rows=self.horizon_rows)

    def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
        """Return windows of ``seq_len`` rows that end at each of ``rows``, and their targets.

        A window may reach back before ``rows``: its past is known by then. Rows with too little
        past are left out.

        Raises:
            ContractError: No window fits, or a column holds no numbers.
        """
        length = self.settings.seq_len
        positions = np.arange(max(rows.start, length - 1), rows.stop)
        if positions.size == 0:
            raise ContractError(
                f"Rows {rows.start}:{rows.stop} hold no window of {length} rows.",
                fix="Shorten seq_len or give more rows.",
            )
        values = _numbers(frame.loc[:, list(self.feature_columns)], "feature")
        windows = values[positions[:, None] + np.arange(1 - length, 1)]
        targets = _numbers(frame.loc[:, [self.target_column]], "target")[positions]
        return Examples(x=torch.from_numpy(windows), y=torch.from_numpy(targets), rows=positions)

    def build_model(
        self, num_features: int, num_outputs: int, settings: ModelSettings
    ) -> nn.Module:
        """Return a freshly initialised network from (B, L, D) to (B, O)."""
        from sluice.models.build import build_network

        return build_network(num_features, num_outputs, settings)

    def parameter_groups(self, network: nn.Module) -> list[dict[str, Any]]:
        """Return the parameters to train, in groups; one group of all unless replaced.

        Every trainable parameter must be in exactly one group. A group has ``params`` and may have
        ``weight_decay`` (instead of the training settings') and ``rate_share``, by which the
        scheduled learning rate is multiplied.
        """
        return [{"params": [p for p in network.parameters() if p.requires_grad]}]

    def output_shape(self, y: Tensor) -> tuple[int, ...]:
        """Return the shape the model's output must have for the targets ``y``."""
        return tuple(y.shape)

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        """Return one loss per example (B,), in ``loss_unit``; squared error unless replaced."""
        return (output - y).square().reshape(len(y), -1).mean(dim=1)

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the scalar that training minimises; the mean of ``losses`` unless replaced."""
        return self.losses(output, y).mean()

    def loss_weight(self, y: Tensor) -> float:
        """Return what ``loss`` is the mean over: the rows, unless replaced.

        Read where a batch is computed in parts (``micro_batch_rows``) or on several processes. A
        loss over tokens that are no padding returns their number.
        """
        return float(len(y))

    def metrics(
        self,
        output: Tensor,
        examples: Examples,
        frame: pd.DataFrame,  # noqa: ARG002 - auxiliary columns for a workload's own metrics
    ) -> Mapping[str, float]:
        """Return metrics of predictions on one split; the loss alone unless replaced."""
        return {"loss": float(self.losses(output.detach(), examples.y).mean())}

    def mistakes(
        self,
        output: Tensor,  # noqa: ARG002 - what a classifier's own method looks at
        y: Tensor,  # noqa: ARG002
    ) -> Tensor | None:
        """Return for each example (B,) whether the predicted class is wrong, 1 or 0.

        A classifier writes it, so that McNemar's test can be shown beside the gate. None, as
        unless replaced, says that there are no classes.
        """
        return None

    def baseline(self, frame: pd.DataFrame, fold: Fold) -> Tensor:
        """Return what a simple rule predicts for the fold's test examples.

        Shaped like the model's output. Unless replaced, the mean of the train targets or, for one
        class number per example, the log share of each class in the train targets; the gate then
        compares with the best of several simple rules (``sluice.evaluation.simple_rules``), of
        which this is one.
        """
        known, test = self.examples(frame, fold.train).y, self.examples(frame, fold.test).y
        if known.is_floating_point():
            return known.mean(dim=0, keepdim=True).expand_as(test).clone()
        shape = self.output_shape(test)
        if known.ndim != 1 or len(shape) != 2:
            raise ContractError(
                f"There is no simple rule for targets of {tuple(known.shape)} {known.dtype} and "
                f"outputs of {shape}.",
                fix="Write baseline() in the workload: what a candidate has to beat.",
            )
        # One is added to each count: a class that the train rows lack is rare, not impossible.
        counts = torch.bincount(known.long(), minlength=shape[1]) + 1
        return (counts / counts.sum()).log().expand(shape).clone()

    def select_epoch(self, scores: Mapping[int, float]) -> int:
        """Return the epoch whose weights are kept, from validation loss by epoch."""
        return best_epoch(scores)


def _numbers(columns: pd.DataFrame, what: str) -> NDArray[np.float32]:
    """Return the columns (N, D) as numbers; one that holds text is told with its first value."""
    try:
        return columns.to_numpy(np.float32)
    except (ValueError, TypeError):
        for name in columns:
            numbers = pd.to_numeric(columns[name], errors="coerce")
            bad = (numbers.isna() & columns[name].notna()).to_numpy()
            if bad.any():
                row = int(bad.argmax())
                raise ContractError(
                    f"The {what} '{name}' must hold numbers, got {columns[name].iloc[row]!r} at "
                    f"row {row} (label {columns.index[row]}).",
                    cause="A network takes no text, and examples() takes the column as it is.",
                    fix="Turn it into numbers in compute_features, classes into whole numbers from "
                    "0, and declare Column(kind='int') for them in feature_schema.",
                ) from None
        raise
