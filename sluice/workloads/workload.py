"""Base class of workloads, which define rows, features, targets, losses and metrics.

Everything else in Sluice is independent of the workload. A minimal workload implements
``load_rows`` and ``compute_features``, and declares its columns. Every other method has a default
that a workload may override.

Shape legend: B = examples of a batch, N = examples, L = sequence length [rows], D = features,
O = outputs.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
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
from sluice.data.rows.protocol import (
    ModelInput,
    RowSource,
)
from sluice.data.schema import Schema
from sluice.models.settings import ModelSettings
from sluice.workloads.best_epoch import best_epoch
from sluice.workloads.classification import (
    TaskDefault,
    class_mistakes,
    class_targets,
    classifier_metrics,
    count_classes,
    log_losses,
)
from sluice.workloads.codecs.codec import Codec
from sluice.workloads.codecs.windows import WindowsCodec
from sluice.workloads.derived_schema import DerivedFeatureSchema
from sluice.workloads.examples import Examples
from sluice.workloads.partitions import FeaturePartitions

Augmentation = Callable[[ModelInput, Tensor, Tensor], tuple[ModelInput, Tensor]]
"""Function of inputs, targets and seeds of a batch to its changed inputs and targets; see
``Workload.augment``."""


class WorkloadSettings(Settings):
    """Settings of every workload; a workload's own settings class inherits from this class."""

    seq_len: int = Field(1, ge=1, description="Length of the input window [rows].")
    folds: FoldSettings = FoldSettings()


class Workload(ABC):
    """Base class of every workload."""

    settings_type: ClassVar[type[WorkloadSettings]] = WorkloadSettings

    task: Literal["regression", "classification"] = "regression"
    """Kind of the target. "classification" sets everything that a classifier needs: class numbers
    as targets, one output per class, the log loss in nats, the wrong predictions for McNemar's
    test, the metrics of ``classification_metrics``, ``headline_metric`` and ``scale_target``. The
    target column then holds positions in ``classes``."""

    classes: tuple[str | int, ...] = ()
    """Labels of the classes, in the order of their numbers; for ``task = "classification"``."""

    raw_schema: Schema = Schema(columns=())
    """Schema of the raw rows; by default no column is required."""

    feature_schema: Schema = DerivedFeatureSchema()  # type: ignore[assignment]
    """Schema of features, target and auxiliary columns that baseline or metrics use. By default it
    contains all ``feature_columns`` and the target as numbers, so each column is declared once."""

    feature_columns: tuple[str, ...]
    """Names of the columns that are inputs of the network, in the order of the inputs."""

    target_column: str
    """Name of the column with the target."""

    raw_expectations: tuple[Expectation, ...] = ()
    """Declared properties of the raw rows, which the POC gate checks."""

    feature_expectations: tuple[Expectation, ...] = ()
    """Declared properties of the feature frame, which the POC gate checks."""

    horizon_rows: int = 1
    """Number of rows from a row to the end of its target [rows]. The targets of two rows overlap if
    the rows are less than this number apart.

    The value 0 declares that rows are independent, without a time order and without shared
    information. The promotion gate then treats every row as a separate block. Order such rows with
    ``in_hash_order``. If rows have a time order, and the target of a row is known at the row
    itself, the horizon is 1.
    """

    cluster_column: str | None = None
    """Column of the feature frame that identifies clusters of related rows, such as the day of
    several assets or the query of several documents. The promotion gate counts a cluster as one
    observation, and takes ``horizon_rows`` as a number of clusters, not of rows. All rows of a
    cluster must be in the same split of a fold: train, validation or test rows."""

    display_column: str | None = None
    """Column of the feature frame that describes a row to a reader, such as the path of an image.
    Reports show it beside the index label of the row."""

    loss_unit: str = TaskDefault(  # type: ignore[assignment]
        regression="target units squared", classification="nats"
    )
    headline_metric: str = TaskDefault(  # type: ignore[assignment]
        regression="loss", classification="macro_f1"
    )
    metric_directions: Mapping[str, Literal["higher", "lower"]] = {}
    """Direction in which each of the workload's own metrics improves, by name. The verdict names
    every metric that got worse. The directions of the metrics of ``sluice.metrics`` need not be
    declared."""

    scale_inputs: bool = True
    """Whether the model standardises inputs with the mean and deviation of the train rows."""

    scale_target: bool = TaskDefault(  # type: ignore[assignment]
        regression=True, classification=False
    )
    """Whether the network predicts the standardised target. The model converts the outputs of the
    network back to the units of the target."""

    default_architecture: ClassVar[str] = "gru"
    """Architecture that ``sluice.check`` and ``sluice.fit`` use if they get no ``model``. A
    pipeline file declares its own architecture."""

    frozen_parameters: tuple[str, ...] = ()
    """Shell patterns of intentionally frozen parameters of the network, such as 'stem.*'."""

    data_files: tuple[str, ...] = ()
    """Further files and folders whose content determines the model, such as a vocabulary or
    pretrained weights. They count as code: a change leads to a new training. Relative names are
    relative to the folder of the workload's module; open them with ``data_path(name)``."""

    expects_signal: bool = True
    """Whether the target is expected to depend on the inputs. False if it may be unpredictable,
    such as returns. The POC gate then only warns if it finds no signal."""

    keep_outputs: bool = True
    """Whether the outputs for all test rows fit into memory. False for a network with large
    outputs, such as the logits of every token of a language model: evaluation then computes
    ``losses`` and ``mistakes`` chunk by chunk, keeps no output, and calls ``metrics_from_losses``
    instead of ``metrics``."""

    feature_partitions: FeaturePartitions | None = None
    """Declares that ``compute_features`` can be called for one partition of the raw rows at a time:
    ``PeriodPartitions`` or ``KeyPartitions`` of ``sluice.workloads.partitions``. The pipeline then
    recomputes only the partitions whose raw rows changed, in several processes if one would take
    long. It also checks that the features do not depend on other rows."""

    is_served: bool = True
    """Whether a promoted version answers requests. False for a model that is only trained, compared
    and registered; then its inputs need not have a form that a client can send."""

    fitted_state: Mapping[str, Tensor] | None = None
    """Result of ``fit``, in a workload that ``fit_workload`` returned; else None."""

    def __init__(self, settings: WorkloadSettings | None = None) -> None:
        self.settings = settings if settings is not None else self.settings_type()

    def data_path(self, name: str) -> Path:
        """Return the path of a data file, relative to the folder of the workload's module.

        A class without a file, such as one of a notebook, uses the working folder.
        """
        try:
            return Path(inspect.getfile(type(self))).parent / name
        except (TypeError, OSError):
            return Path.cwd() / name

    @abstractmethod
    def load_rows(self) -> pd.DataFrame:
        """Return the unchanged raw rows of the source.

        A process builds the workload once. Schedules and sensors then call this method again and
        again, also from several threads, so the rows must not be stored in the object.

        Raises:
            SourceError: The source is missing, empty or unreadable.
        """

    @abstractmethod
    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        """Return features, target and auxiliary columns, one row per example.

        No value may be missing.

        Features of a row may use only this row and earlier rows; the target may use later rows.
        Rows keep their index labels from ``raw``.
        """

    def plan_folds(self, frame: pd.DataFrame) -> tuple[Fold, ...]:
        """Return the folds; by default those of a walk-forward split with an embargo."""
        return walk_forward(len(frame), self.settings.folds, horizon_rows=self.horizon_rows)

    def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
        """Return windows of ``seq_len`` rows that end at each of ``rows``, and their targets.

        A window may include rows before ``rows``, because these are already known. Rows without a
        complete window are dropped.

        Raises:
            ContractError: There is no complete window, or a column is not numeric.
        """
        length = self.settings.seq_len
        positions = np.arange(max(rows.start, length - 1), rows.stop)
        if positions.size == 0:
            raise ContractError(
                f"Rows {rows.start}:{rows.stop} contain no window of {length} rows.",
                fix="Shorten seq_len, or provide more rows.",
            )
        values = _to_float32(frame.loc[:, list(self.feature_columns)], "feature")
        windows = values[positions[:, None] + np.arange(1 - length, 1)]
        targets = _to_float32(frame.loc[:, [self.target_column]], "target")[positions]
        y = torch.from_numpy(targets)
        if self.task == "classification":
            y = class_targets(y, self.classes)
        return Examples(x=torch.from_numpy(windows), y=y, rows=positions)

    def fit(
        self,
        train_frame: pd.DataFrame,  # noqa: ARG002 - used by a workload that overrides the method
    ) -> Mapping[str, Any]:
        """Return arrays that are fitted on train rows, such as a vocabulary or a normaliser.

        A workload that overrides this method overrides ``encode`` as well. The arrays are stored
        with the weights of the network, so that evaluation and serving use the arrays of the
        training. The method is called for each fold. The result must depend on the argument alone:
        the POC gate changes all other rows, and fails if the result changes.

        Args:
            train_frame: Train rows of one fold, from ``compute_features``.

        Returns:
            Arrays, tensors, numbers or lists of numbers, by name; double precision is stored in
            single precision. By default there are no arrays.
        """
        return {}

    def encode(
        self,
        x: ModelInput,
        state: Mapping[str, Tensor],  # noqa: ARG002 - used by a workload that overrides the method
    ) -> ModelInput:
        """Return the inputs of the network for the inputs of ``examples``; by default unchanged.

        The method is called on every batch, in training, evaluation and serving, after ``augment``
        and before the inputs are standardised. The following example replaces each token id by its
        position in the vocabulary, counted from 1, and unknown ids by 0::

            def fit(self, train_frame):
                return {"words": np.unique(np.concatenate(train_frame["ids"].tolist()))}

            def encode(self, x, state):
                words = state["words"]
                position = torch.searchsorted(words, x).clamp(max=len(words) - 1)
                return torch.where(words[position] == x, position + 1, 0)

        Args:
            x: Inputs of a batch, on the device of the network.
            state: Result of ``fit`` as tensors, on the same device.
        """
        return x

    def build_model(
        self, num_features: int, num_outputs: int, settings: ModelSettings
    ) -> nn.Module:
        """Return a newly initialised network from (B, L, D) to (B, O)."""
        from sluice.models.build import build_network

        return build_network(num_features, num_outputs, settings)

    def require_known_architecture(self, settings: ModelSettings) -> None:
        """Raise an error for an unknown architecture, unless ``build_model`` is overridden.

        Raises:
            SettingsError: The architecture is unknown.
        """
        if type(self).build_model is Workload.build_model:
            from sluice.models.build import require_known_architecture

            require_known_architecture(settings.architecture)

    def parameter_groups(self, network: nn.Module) -> list[dict[str, Any]]:
        """Return the parameter groups to train; by default one group of all parameters.

        Every trainable parameter must be in exactly one group. A group has ``params``, and
        optionally ``weight_decay`` (overrides the training settings) and ``rate_share``, a factor
        of the scheduled learning rate.
        """
        return [{"params": [p for p in network.parameters() if p.requires_grad]}]

    def augment(
        self,
        x: ModelInput,
        y: Tensor,
        seeds: Tensor,  # noqa: ARG002 - used by a workload that overrides the method
    ) -> tuple[ModelInput, Tensor]:
        """Return the examples of a train batch with random changes; by default unchanged.

        The method is called for train batches only, in the process that reads the batches.
        ``seeds`` has one number per example, which depends only on (seed, epoch, row). Draw random
        numbers only from ``seeds``, for each example separately. Then the result does not depend on
        the batch size, the number of loader processes or an interruption. This example mirrors half
        of the images::

            def augment(self, x, y, seeds):
                mirrored = draw_uniform(seeds, 1) < 0.5
                return torch.where(mirrored[:, :, None, None], x.flip(-1), x), y

        ``draw_uniform`` is in ``sluice.workloads.augmentation``. For a function of one image that
        takes a generator, use ``torch.Generator().manual_seed(int(seed))`` for each seed.

        Args:
            x: Inputs of B examples; may be changed in place.
            y: Targets of the examples.
            seeds: Seeds of the examples, from 0 to 2^63 - 1, int64 (B,).
        """
        return x, y

    @property
    def augmentation(self) -> Augmentation | None:
        """The method ``augment`` of a workload that overrides it, else None."""
        return None if type(self).augment is Workload.augment else self.augment

    def codec(self) -> Codec:
        """Return how the body of a prediction request becomes the input of the network.

        By default clients send windows of the feature columns, which requires that ``examples``
        returns plain windows. See ``sluice.workloads.codecs`` for raw rows, images and texts.
        """
        return WindowsCodec(self.feature_columns, self.settings.seq_len)

    def request_of(
        self, raw: pd.DataFrame, frame: pd.DataFrame, positions: NDArray[np.int64]
    ) -> dict[str, Any]:
        """Return the fields of a request for given rows, as a client would send them.

        By default the codec builds them. The POC gate decodes such requests and compares the result
        with ``examples``, and a rehearsal sends them.

        Args:
            raw: Raw rows, from ``load_rows``.
            frame: Feature frame, from ``compute_features(raw)``.
            positions: Positions of the rows in ``frame``.
        """
        return self.codec().request_of(raw, frame, positions)

    def served_output(
        self,
        output: Tensor,
        x: ModelInput,  # noqa: ARG002 - used by a workload that overrides the method
    ) -> Tensor:
        """Return what a client receives for the output of a network; by default the whole output.

        If the output is too large for a response, such as the logits of every token, override this
        method and ``served_losses``. The server returns the mean over the networks of a version.

        Args:
            output: Output for the elements of a request (B, ...).
            x: Inputs of the network.

        Returns:
            A tensor (B, ...), the same number of values for each element.
        """
        return output

    def served_losses(self, served: Tensor, y: Tensor) -> Tensor:
        """Return one loss for each response (B,), by which a rollout compares two versions.

        The default is ``losses``, which is correct if the output is served unchanged.

        Args:
            served: Responses, as returned by ``served_output``.
            y: Targets of the requested rows.
        """
        return self.losses(served, y)

    @property
    def serves_whole_output(self) -> bool:
        """Whether a client receives the output of the network unchanged."""
        return type(self).served_output is Workload.served_output

    def output_shape(self, y: Tensor) -> tuple[int, ...]:
        """Return the required shape of the model's output for the targets ``y``."""
        if self.task == "classification":
            return (*y.shape, count_classes(self.classes))
        return tuple(y.shape)

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        """Return one loss per example (B,), in ``loss_unit``.

        By default, this is the squared error, or the log loss of a classifier.
        """
        if self.task == "classification":
            return log_losses(output, y)
        return (output - y).square().reshape(len(y), -1).mean(dim=1)

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the scalar that training minimises; by default the mean of ``losses``."""
        return self.losses(output, y).mean()

    def loss_weight(self, y: Tensor) -> float:
        """Return the number of terms that ``loss`` averages; by default the number of examples.

        It is needed if a batch is computed in parts (``micro_batch_rows``) or by several processes.
        For a loss over tokens, return the number of tokens that are not padding.
        """
        return float(len(y))

    def metrics(
        self,
        output: Tensor,
        examples: Examples,
        frame: pd.DataFrame,
    ) -> Mapping[str, float]:
        """Return metrics of predictions on one split.

        By default these are the metrics of ``metrics_from_losses``, and for a classifier also those
        of ``classification_metrics``.
        """
        y = examples.targets
        losses = self.losses(output.detach(), y)
        loss_metrics = self.metrics_from_losses(losses, examples, frame)
        if self.task == "classification":
            return {**loss_metrics, **classifier_metrics(output, y)}
        return loss_metrics

    def metrics_from_losses(
        self,
        losses: Tensor,
        examples: Examples,  # noqa: ARG002 - for a workload's own metrics
        frame: pd.DataFrame,  # noqa: ARG002
    ) -> Mapping[str, float]:
        """Return metrics that need only one loss per example; by default the mean loss.

        If ``keep_outputs`` is False, these are the metrics of the evaluation.

        Args:
            losses: Result of ``losses`` for all examples of one split (N,).
            examples: The examples.
            frame: Feature frame, with auxiliary columns.
        """
        return {"loss": float(losses.mean())}

    def mistakes(self, output: Tensor, y: Tensor) -> Tensor | None:
        """Return 1 or 0 for each example (B,): whether the predicted class is wrong.

        With these values, the report of the promotion gate contains McNemar's test. None declares
        that there are no classes, which is the default for regression. A classifier without
        ``task = "classification"`` overrides this method.
        """
        return class_mistakes(output, y) if self.task == "classification" else None

    def baseline(self, frame: pd.DataFrame, fold: Fold) -> Tensor | RowSource:
        """Return the predictions of a baseline for the fold's test examples.

        The predictions have the shape of the model's output. If ``keep_outputs`` is False, they may
        be a row source, which computes them chunk by chunk. By default, the prediction is the mean
        of the train targets. For class numbers, it is the log share of each class among the train
        targets. With this default, the promotion gate compares candidates with the best of several
        simple rules (``sluice.evaluation.simple_rules``), one of which is this default.
        """
        train_y = self.examples(frame, fold.train).targets
        test_y = self.examples(frame, fold.test).targets
        if train_y.is_floating_point():
            return train_y.mean(dim=0, keepdim=True).expand_as(test_y).clone()
        shape = self.output_shape(test_y)
        if train_y.ndim != 1 or len(shape) != 2:
            raise ContractError(
                f"There is no default baseline for targets of {tuple(train_y.shape)} "
                f"{train_y.dtype} and outputs of {shape}.",
                fix="Implement baseline() in the workload; a candidate must be better than it.",
            )
        # One is added to each count, because a class that is missing in the train rows is rare, but
        # not impossible.
        counts = torch.bincount(train_y.long(), minlength=shape[1]) + 1
        return (counts / counts.sum()).log().expand(shape).clone()

    def select_epoch(self, scores: Mapping[int, float]) -> int:
        """Return the epoch whose weights are kept, given the validation loss by epoch."""
        return best_epoch(scores)


def _to_float32(columns: pd.DataFrame, what: str) -> NDArray[np.float32]:
    """Return the columns as float32 (N, D).

    Raises:
        ContractError: A column contains text. The message names the first text.
    """
    try:
        return columns.to_numpy(np.float32)
    except (ValueError, TypeError):
        for name in columns:
            numbers = pd.to_numeric(columns[name], errors="coerce")
            is_text = (numbers.isna() & columns[name].notna()).to_numpy()
            if is_text.any():
                row = int(is_text.argmax())
                raise ContractError(
                    f"The {what} '{name}' must be numeric, got {columns[name].iloc[row]!r} at "
                    f"row {row} (label {columns.index[row]}).",
                    cause="The input of a network must be numeric, and examples() does not convert "
                    "text.",
                    fix="Convert the column to numbers in compute_features. Convert classes to "
                    "integers from 0, and declare them as Column(kind='int') in feature_schema.",
                ) from None
        raise
