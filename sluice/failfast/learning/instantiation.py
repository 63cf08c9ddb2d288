"""POC-1: does the configured model run on one real batch and give what the target needs?"""

import torch
from torch import Tensor, nn

from sluice.config.poc_settings import PocSettings
from sluice.failfast.learning.lone_predictions import find_dependence
from sluice.failfast.learning.probe import shape, spread
from sluice.findings.finding import Finding
from sluice.models.settings import ModelSettings
from sluice.workloads.prepare_model import prepare_model
from sluice.workloads.workload import Examples, Workload

_FLATTEN = "Return output.squeeze(-1) from forward()"


def check_instantiation(
    workload: Workload,
    model_settings: ModelSettings,
    train: Examples,
    settings: PocSettings,
    *,
    seed: int,
) -> Finding:
    """Build the model from the real feature count and run it on one real batch (POC-1).

    The output must be a tensor of the shape that the workload declares for the batch's targets,
    finite, and for every example its own; see ``find_dependence``.

    Args:
        workload: Builds the model, declares the output shape.
        model_settings: Architecture and size.
        train: Train examples of a fold.
        settings: Rows of the batch, ``lone_tolerance``.
        seed: Base seed of the initial weights.

    Raises:
        Exception: Whatever the model's own code raises; ``finding_from`` puts it in words.
    """
    if len(train) < settings.probe_batch_rows:
        return too_few(len(train), settings.probe_batch_rows)
    batch = spread(train, settings.probe_batch_rows)
    model = prepare_model(workload, model_settings, train, seed=seed)
    model.eval()
    with torch.inference_mode():
        output = model(batch.x)
    if not isinstance(output, Tensor):
        return Finding(
            outcome="fail",
            summary=f"The model must return one tensor, got {type(output).__name__} "
            f"for an input of {shape(batch.x)}.",
            kind="shape mismatch",
        )
    required = workload.output_shape(batch.y)
    if tuple(output.shape) != required:
        cause, fix = _known_mistake(workload, batch, output, required)
        return Finding(
            outcome="fail",
            summary=f"The output must be {required} for targets of {shape(batch.y)}, "
            f"got {shape(output)} for an input of {shape(batch.x)}.",
            kind="shape mismatch",
            cause=cause,
            fix=fix,
        )
    num_bad = int((~torch.isfinite(output)).sum())
    if num_bad:
        return Finding(
            outcome="fail",
            summary=f"{num_bad} of {output.numel()} output values are not finite: "
            f"{_not_finite(workload, model, batch)}.",
            kind="non-finite output",
        )
    dependent = find_dependence(model, batch, output, settings, seed=seed)
    if dependent is not None:
        return dependent
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    return Finding(
        outcome="pass",
        summary=f"{shape(batch.x)} in, {shape(output)} out, {num_parameters:,} parameters.",
        numbers={
            "num_features": batch.x.shape[-1],
            "num_parameters": num_parameters,
            "input_shape": shape(batch.x),
            "output_shape": shape(output),
        },
    )


def too_few(num_examples: int, required: int) -> Finding:
    """Return the finding that so few train examples decide nothing."""
    return Finding(
        outcome="insufficient",
        summary=f"{required} train examples of fold 0 are required, got {num_examples}.",
        numbers={"num_examples": num_examples},
        kind="too few rows",
    )


def _known_mistake(
    workload: Workload, batch: Examples, output: Tensor, required: tuple[int, ...]
) -> tuple[str, str]:
    """Return cause and fix of a mistake in the shape; "" leaves the general answer."""
    as_targets = type(workload).output_shape is Workload.output_shape
    if as_targets and not batch.y.is_floating_point():
        return (
            "The targets are whole numbers, and the workload has no output_shape() of its own.",
            "For classes write output_shape(), which returns (len(y), number of classes), and "
            "losses() to match.",
        )
    if tuple(output.shape) != (*required, 1):
        return "", ""
    if batch.y.ndim > 1:
        return "", f"{_FLATTEN}."
    return "", f"{_FLATTEN}, or give the targets a last axis of 1, as Workload.examples() does."


def _not_finite(workload: Workload, model: nn.Module, batch: Examples) -> str:
    values = [*model.named_parameters(), *model.named_buffers()]
    weights = [name for name, value in values if not bool(torch.isfinite(value).all())]
    if weights:
        return f"NaN or infinity in {', '.join(weights)}"
    if batch.x.is_floating_point() and not bool(torch.isfinite(batch.x).all()):
        bad_D = (~torch.isfinite(batch.x)).flatten(0, -2).any(dim=0).nonzero().flatten().tolist()
        known = workload.feature_columns
        named = [known[i] if len(known) == batch.x.shape[-1] else f"feature {i}" for i in bad_D]
        return f"NaN or infinity in the input, in {', '.join(named)}"
    return "weights and input are finite, so forward() makes them"
