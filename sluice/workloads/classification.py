"""Targets, losses and metrics of workloads with ``task = "classification"``.

Shape legend: N = examples, C = classes.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sluice.base.errors import ContractError
from sluice.data.validation import nearest_name


class TaskDefault:
    """Default of a class attribute that depends on the ``task`` of the workload.

    A value that a workload assigns to the attribute, in its class or its constructor, replaces it.

    Args:
        regression: Value for ``task = "regression"``.
        classification: Value for ``task = "classification"``.
    """

    def __init__(self, *, regression: Any, classification: Any) -> None:
        self._values = {"regression": regression, "classification": classification}

    def __get__(self, workload: Any, cls: Any) -> Any:
        task = getattr(workload if workload is not None else cls, "task", None)
        if task not in self._values:
            raise ContractError(
                f"The task of {cls.__name__} must be 'regression' or 'classification', got "
                f"{task!r}.",
                fix="Correct 'task' in the workload.",
            )
        return self._values[task]


def class_targets(target_N1: Tensor, classes: tuple[str | int, ...]) -> Tensor:
    """Return the class numbers (N,) in a numeric target column (N, 1).

    Raises:
        ContractError: Fewer than two classes are declared, or a target is not the number of a
            class.
    """
    num_classes = count_classes(classes)
    target_N = target_N1[:, 0]
    is_class_N = (target_N == target_N.round()) & (target_N >= 0) & (target_N < num_classes)
    if not bool(is_class_N.all()):
        row = int((~is_class_N).int().argmax())
        raise ContractError(
            f"Targets must be class numbers 0 to {num_classes - 1}, got {float(target_N[row]):g} "
            f"at example {row}.",
            cause="The target column holds other values than positions in 'classes'.",
            fix="Return the position of each label in 'classes' from compute_features.",
        )
    return target_N.long()


def count_classes(classes: tuple[str | int, ...]) -> int:
    """Return the number of declared classes.

    Raises:
        ContractError: Fewer than two classes are declared.
    """
    if len(classes) < 2:
        raise ContractError(
            f"A workload with task 'classification' must declare at least two classes, got "
            f"{len(classes)}.",
            fix="Set 'classes' in the workload to the labels, in the order of their numbers.",
        )
    return len(classes)


def describe_label_mismatch(labels: Iterable[str], classes: Iterable[str | int]) -> str:
    """Return a text with the unknown labels, each with the nearest class, and the missing classes.

    >>> describe_label_mismatch(["circle", "squares"], ["circle", "square"])
    "unknown: squares (did you mean 'square'?); missing: square"
    """
    distinct_labels, class_names = set(labels), list(map(str, classes))
    missing_names = [name for name in class_names if name not in distinct_labels]
    unknown_labels = []
    for label in sorted(distinct_labels - set(class_names)):
        # Suggest a class without examples first: its examples probably have the unknown label.
        nearest = nearest_name(label, missing_names) or nearest_name(label, class_names)
        unknown_labels.append(f"{label} (did you mean '{nearest}'?)" if nearest else label)
    groups = (("unknown", unknown_labels), ("missing", missing_names))
    return "; ".join(f"{kind}: {', '.join(names)}" for kind, names in groups if names)


def log_losses(output_NC: Tensor, y_N: Tensor) -> Tensor:
    """Return the log loss of each example (N,) [nats]."""
    return nn.functional.cross_entropy(output_NC, y_N, reduction="none")


def class_mistakes(output_NC: Tensor, y_N: Tensor) -> Tensor:
    """Return 1 where the most probable class is wrong or a logit is not finite, else 0 (N,)."""
    # Without this condition, a row of NaN would count as an answer of class 0.
    is_invalid_N = ~output_NC.isfinite().all(dim=1)
    return ((output_NC.argmax(dim=1) != y_N) | is_invalid_N).float()


def classifier_metrics(output_NC: Tensor, y_N: Tensor) -> Mapping[str, float]:
    """Return the metrics of ``classification_metrics`` for logits; undefined metrics are NaN."""
    from sluice.metrics.classification import classification_metrics

    # In double precision fewer probabilities are rounded to 0.
    probability_NC = output_NC.detach().to(torch.double).softmax(dim=1).numpy()
    return classification_metrics(y_N.numpy(), probability_NC).numbers
