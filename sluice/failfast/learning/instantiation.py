"""Check that the configured model runs on one real batch and returns the required output."""

import torch
from torch import Tensor, nn

from sluice.config.poc_settings import PocSettings
from sluice.failfast.learning.batch_independence import find_batch_dependence
from sluice.failfast.learning.example_sampling import format_shape, sample_evenly
from sluice.findings.check_outcome import CheckOutcome
from sluice.models.settings import ModelSettings
from sluice.workloads.examples import Examples
from sluice.workloads.prepare_model import prepare_model
from sluice.workloads.workload import Workload

_SQUEEZE_FIX = "Return output.squeeze(-1) from forward()"


def check_instantiation(
    workload: Workload,
    model_settings: ModelSettings,
    train: Examples,
    settings: PocSettings,
    *,
    seed: int,
) -> CheckOutcome:
    """Build the model for the real number of features and run it on one real batch.

    The output must be a finite tensor of the shape that the workload declares for the targets. The
    output for an example must not depend on other examples of the batch.

    Args:
        workload: Builds the model and declares the output shape.
        model_settings: Architecture and size.
        train: Train examples of a fold.
        settings: ``probe_batch_rows`` and ``batch_independence_tolerance``.
        seed: Base seed of the initial weights.

    Raises:
        Exception: Any exception of the model's own code, which ``outcome_from_error`` can convert
            to a finding.
    """
    if len(train) < settings.probe_batch_rows:
        return too_few_examples(len(train), settings.probe_batch_rows)
    batch = sample_evenly(train, settings.probe_batch_rows)
    model = prepare_model(workload, model_settings, train, seed=seed)
    model.eval()
    with torch.inference_mode():
        output = model(batch.inputs)
    if not isinstance(output, Tensor):
        return CheckOutcome(
            outcome="fail",
            summary=f"The model must return one tensor, got {type(output).__name__} "
            f"for an input of {format_shape(batch.inputs)}.",
            fault="shape mismatch",
        )
    required_shape = workload.output_shape(batch.targets)
    if tuple(output.shape) != required_shape:
        cause, fix = _explain_shape(workload, batch, output, required_shape)
        return CheckOutcome(
            outcome="fail",
            summary=f"The output must have the shape {required_shape} for targets of "
            f"{format_shape(batch.targets)}, got {format_shape(output)} for an input of "
            f"{format_shape(batch.inputs)}.",
            fault="shape mismatch",
            cause=cause,
            fix=fix,
        )
    num_non_finite = int((~torch.isfinite(output)).sum())
    if num_non_finite:
        return CheckOutcome(
            outcome="fail",
            summary=f"{num_non_finite:,} of {output.numel():,} output values are not finite: "
            f"{_locate_non_finite(workload, model, batch)}.",
            fault="non-finite output",
        )
    if workload.is_served and not workload.serves_whole_output:
        problem = _find_served_problem(workload, output, batch)
        if problem is not None:
            return problem
    batch_dependence = find_batch_dependence(model, batch, output, settings, seed=seed)
    if batch_dependence is not None:
        return batch_dependence
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    return CheckOutcome(
        outcome="pass",
        summary=f"Input {format_shape(batch.inputs)}, output {format_shape(output)}, "
        f"{num_parameters:,} parameters.",
        numbers={
            "num_features": model.num_features,
            "num_parameters": num_parameters,
            "input_shape": format_shape(batch.inputs),
            "output_shape": format_shape(output),
        },
    )


def _find_served_problem(
    workload: Workload, output: Tensor, batch: Examples
) -> CheckOutcome | None:
    """Return a finding for a wrong ``served_output`` or ``served_losses``, or None."""
    num_rows = len(batch)
    served_output = workload.served_output(output, batch.inputs)
    if (
        not isinstance(served_output, Tensor)
        or served_output.ndim < 1
        or len(served_output) != num_rows
    ):
        return _served_shape_finding("served_output", f"({num_rows}, ...)", served_output)
    losses = workload.served_losses(served_output, batch.targets)
    if not isinstance(losses, Tensor) or tuple(losses.shape) != (num_rows,):
        return _served_shape_finding("served_losses", f"({num_rows},)", losses)
    if not bool(torch.isfinite(served_output).all()) or not bool(torch.isfinite(losses).all()):
        return CheckOutcome(
            outcome="fail",
            summary="served_output() and served_losses() must return finite values for finite "
            "outputs of the network, got NaN or infinity.",
            fault="non-finite output",
        )
    return None


def _served_shape_finding(method: str, required_shape: str, value: object) -> CheckOutcome:
    actual = format_shape(value) if isinstance(value, Tensor) else type(value).__name__
    return CheckOutcome(
        outcome="fail",
        summary=f"{method}() of the workload must return a tensor of shape {required_shape}, "
        f"got {actual}.",
        fault="shape mismatch",
        fix=f"Correct {method}().",
    )


def too_few_examples(num_examples: int, num_required: int) -> CheckOutcome:
    """Return the outcome "insufficient" of a check that requires more train examples."""
    return CheckOutcome(
        outcome="insufficient",
        summary=f"At least {num_required:,} train examples of fold 0 are required, got "
        f"{num_examples:,}.",
        numbers={"num_examples": num_examples},
        fault="too few rows",
    )


def _explain_shape(
    workload: Workload, batch: Examples, output: Tensor, required_shape: tuple[int, ...]
) -> tuple[str, str]:
    """Return cause and fix of a wrong output shape; "" for the text of the fault catalogue."""
    has_default_shape = type(workload).output_shape is Workload.output_shape
    if has_default_shape and not batch.targets.is_floating_point():
        return (
            "The targets are integers, and the workload does not override output_shape().",
            "For classes, write an output_shape() that returns (len(y), number of classes), and "
            "a losses() that accepts this shape.",
        )
    if tuple(output.shape) != (*required_shape, 1):
        return "", ""
    if batch.targets.ndim > 1:
        return "", f"{_SQUEEZE_FIX}."
    return (
        "",
        f"{_SQUEEZE_FIX}, or add a last axis of 1 to the targets, as Workload.examples() does.",
    )


def _locate_non_finite(workload: Workload, model: nn.Module, batch: Examples) -> str:
    values = [*model.named_parameters(), *model.named_buffers()]
    tensor_names = [name for name, value in values if not bool(torch.isfinite(value).all())]
    if tensor_names:
        return f"NaN or infinity in {', '.join(tensor_names)}"
    x = batch.inputs
    if isinstance(x, dict):
        names = [name for name, tensor in x.items() if not bool(torch.isfinite(tensor).all())]
    else:
        is_non_finite = (~torch.isfinite(x)).reshape(-1, x.shape[-1]).any(dim=0)
        columns = workload.feature_columns
        names = [
            columns[i] if len(columns) == x.shape[-1] else f"feature {i}"
            for i in is_non_finite.nonzero().flatten().tolist()
        ]
    if names:
        return f"NaN or infinity in the input, in {', '.join(names)}"
    return "weights and input are finite, so forward() produces the non-finite values"
