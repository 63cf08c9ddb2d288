"""Base class of workloads that predict one class for each example."""

from collections.abc import Mapping

import pandas as pd
from torch import Tensor, nn

from sluice.metrics.classification import classification_metrics
from sluice.workloads.workload import Examples, Workload


class ClassifierWorkload(Workload):
    """Workload whose targets are class numbers (N,) and whose outputs are logits (N, C).

    The loss is the log loss [nats]. A subclass declares ``classes`` and independent rows or not
    (``horizon_rows``), and implements ``load_rows``, ``compute_features`` and ``examples``.
    """

    classes: tuple[str, ...]
    """Names of the classes, in the order of their numbers."""

    loss_unit: str = "nats"
    headline_metric: str = "accuracy"
    scale_inputs: bool = False
    scale_target: bool = False

    def output_shape(self, y: Tensor) -> tuple[int, ...]:
        """Return one logit per class."""
        return (len(y), len(self.classes))

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the log loss of each example (B,)."""
        return nn.functional.cross_entropy(output, y, reduction="none")

    def mistakes(self, output: Tensor, y: Tensor) -> Tensor:
        """Return 1 where the most probable class is wrong (B,)."""
        return (output.argmax(dim=1) != y).float()

    def metrics(
        self,
        output: Tensor,
        examples: Examples,
        frame: pd.DataFrame,
    ) -> Mapping[str, float]:
        """Return loss and the metrics of a classifier; undefined metrics are NaN."""
        loss = super().metrics(output, examples, frame)
        # In double precision fewer probabilities are rounded to 0.
        probability = output.detach().double().softmax(dim=1).numpy()
        return {**loss, **classification_metrics(examples.targets.numpy(), probability).numbers}
