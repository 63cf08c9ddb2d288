"""Workloads with one defect each in their loss, parameter groups, selector or loader."""

import math
import os
import time
from collections.abc import Mapping
from typing import Any

import pandas as pd
from torch import Tensor, nn

from sluice.bench.poc.workloads import Cancer, Diabetes, DigitImages, ShortBars, Wine
from sluice.data.folds import Fold
from sluice.workloads.examples import Examples


class LossPerExample(Cancer):
    """Does not average the losses."""

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Return one loss per example."""
        return self.losses(output, y)


class LossAsNumber(Wine):
    """Calls item() on the loss."""

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Return a Python number."""
        return super().loss(output, y).item()  # type: ignore[return-value]


class LogOfZero(Cancer):
    """Takes the logarithm of a probability that is rounded to 0."""

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the negative log probability of the correct class (N,)."""
        probability = output.sigmoid().round()
        return -(y * probability.log() + (1 - y) * (1 - probability).log())[:, 0]


class NegatedLoss(Diabetes):
    """Negates the loss, so that training maximises it."""

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the negated loss."""
        return -super().loss(output, y)


class DetachedLoss(Diabetes):
    """Detaches the loss, and requires a gradient so that backward() does not raise."""

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Return a loss that is detached from the parameters."""
        return super().loss(output, y).detach().requires_grad_()


class HeadNotInGroups(DigitImages):
    """Selects parameters by name and omits the parameters of the head."""

    def parameter_groups(self, network: nn.Module) -> list[dict[str, Any]]:
        """Return one group, with the parameters of the body."""
        named_parameters = network.named_parameters()
        return [{"params": [p for name, p in named_parameters if name.startswith("body")]}]


class ParameterInTwoGroups(Wine):
    """Adds one layer to two groups."""

    def parameter_groups(self, network: nn.Module) -> list[dict[str, Any]]:
        """Return groups that overlap."""
        parameters = list(network.parameters())
        return [{"params": parameters}, {"params": parameters[:1], "weight_decay": 0.0}]


class SelectsLast(Diabetes):
    """Selects the last epoch regardless of the scores."""

    def select_epoch(self, scores: Mapping[int, float]) -> int:
        """Return the last epoch."""
        return max(scores)


class SelectsHighest(ShortBars):
    """Selects the epoch with the highest loss instead of the lowest."""

    def select_epoch(self, scores: Mapping[int, float]) -> int:
        """Return the epoch with the highest finite score."""
        finite_scores = {epoch: score for epoch, score in scores.items() if math.isfinite(score)}
        return max(finite_scores, key=lambda epoch: (finite_scores[epoch], -epoch))


class SelectsFirstIfNan(Wine):
    """Compares with ``<``, which is False for NaN, so a first epoch with NaN stays the best."""

    def select_epoch(self, scores: Mapping[int, float]) -> int:
        """Return the epoch with the lowest score, but the first epoch if its score is NaN."""
        best = next(iter(sorted(scores)))
        for epoch in sorted(scores):
            if scores[epoch] < scores[best]:
                best = epoch
        return best


class MetricsReadMissingColumn(Diabetes):
    """Reads a column that does not exist, in the metrics after training."""

    def metrics(self, output: Tensor, examples: Examples, frame: pd.DataFrame) -> dict[str, float]:
        """Return a metric weighted by a missing column."""
        weight = float(frame["weight"].mean())
        return {"loss": weight * float(self.losses(output, examples.targets).mean())}


class HeadlineNotComputed(Cancer):
    """Declares a headline metric that ``metrics`` does not return."""

    headline_metric = "accuracy"


class BaselineOfWrongShape(Wine):
    """Returns one number per example from baseline(), instead of a logit per class."""

    def baseline(self, frame: pd.DataFrame, fold: Fold) -> Tensor:
        """Return the mean label for every example (N, 1)."""
        labels = self.examples(frame, fold.test).targets
        return labels.double().mean().expand(len(labels), 1)


class LoaderHangs(Diabetes):
    """Hangs while loading, as if a database did not answer."""

    def load_rows(self) -> pd.DataFrame:
        """Never return."""
        while True:
            time.sleep(0.05)


class LoaderExits(Wine):
    """Ends the process with ``os._exit`` while loading."""

    def load_rows(self) -> pd.DataFrame:
        """Never return."""
        os._exit(3)
