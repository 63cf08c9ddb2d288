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
from sluice.workloads.workload import Examples


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
        """Return minus the logarithm of the right class's probability."""
        probability = output.sigmoid().round()
        return -(y * probability.log() + (1 - y) * (1 - probability).log())[:, 0]


class WrongSign(Diabetes):
    """Minimises what should be maximised."""

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the loss with the wrong sign."""
        return -super().loss(output, y)


class LossRearmed(Diabetes):
    """Silences an error about gradients instead of fixing its cause."""

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Return a loss that is detached from the parameters."""
        return super().loss(output, y).detach().requires_grad_()


class HeadNotTrained(DigitImages):
    """Selects parameter groups by name and omits one."""

    def parameter_groups(self, network: nn.Module) -> list[dict[str, Any]]:
        """Return the body's parameters only."""
        named = network.named_parameters()
        return [{"params": [p for name, p in named if name.startswith("body")]}]


class TrainedTwice(Wine):
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
    """Maximises the loss."""

    def select_epoch(self, scores: Mapping[int, float]) -> int:
        """Return the epoch with the highest finite score."""
        usable = {epoch: score for epoch, score in scores.items() if math.isfinite(score)}
        return max(usable, key=lambda epoch: (usable[epoch], -epoch))


class TripsOverNan(Wine):
    """Compares with ``<``, which is False for NaN."""

    def select_epoch(self, scores: Mapping[int, float]) -> int:
        """Return the epoch with the lowest score, but the first epoch if its score is NaN."""
        best = next(iter(sorted(scores)))
        for epoch in sorted(scores):
            if scores[epoch] < scores[best]:
                best = epoch
        return best


class MetricsOfAnother(Diabetes):
    """Reads a column that does not exist, in the metrics after training."""

    def metrics(self, output: Tensor, examples: Examples, frame: pd.DataFrame) -> dict[str, float]:
        """Return a metric weighted by a missing column."""
        weight = float(frame["weight"].mean())
        return {"loss": weight * float(self.losses(output, examples.targets).mean())}


class HeadlineMissing(Cancer):
    """Names a headline metric that is not computed."""

    headline_metric = "accuracy"


class BaselineOfAnother(Wine):
    """The baseline predicts one number per example instead of a logit per class."""

    def baseline(self, frame: pd.DataFrame, fold: Fold) -> Tensor:
        """Return the mean class number."""
        test = self.examples(frame, fold.test).targets
        return test.double().mean().expand(len(test), 1)


class LoaderHangs(Diabetes):
    """Waits for a database that does not answer."""

    def load_rows(self) -> pd.DataFrame:
        """Never return."""
        while True:
            time.sleep(0.05)


class LoaderLeaves(Wine):
    """Ends the process with ``os._exit`` while loading."""

    def load_rows(self) -> pd.DataFrame:
        """Never return."""
        os._exit(3)
