"""Check that a prediction is reproducible and does not depend on other examples of the batch."""

import math

import torch
from torch import Tensor, nn

from sluice.base.seeding import RandomStream, derive_seed
from sluice.config.poc_settings import PocSettings
from sluice.data.rows.protocol import slice_input, split_input, spread_rows
from sluice.failfast.learning.example_sampling import format_shape
from sluice.findings.catalogue import find_fault
from sluice.findings.check_outcome import CheckOutcome
from sluice.workloads.examples import Examples

_NUM_SINGLE_EXAMPLES = 8
"""Number of examples that are predicted one by one. A few examples suffice, because a model that
mixes examples changes nearly all predictions."""

_MAX_ROUNDING_ERROR = 4.0
"""Maximum rounding error of an output [machine epsilons times the largest absolute output]. This
error is added to the tolerance: outputs with mean 1e4 and standard deviation 1 have rounding errors
that are large compared with their standard deviation."""

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)

_BATCH_OF_ONE_ERRORS = (RuntimeError, ValueError, TypeError, IndexError, AssertionError)
"""Types of the exceptions that models raise if they do not accept a batch of one example."""


def find_batch_dependence(
    model: nn.Module, batch: Examples, output: Tensor, settings: PocSettings, *, seed: int
) -> CheckOutcome | None:
    """Return a finding if predictions in eval mode depend on more than their example, or None.

    - The same batch, predicted again with another seed of the global generators, must give the
      same output. This detects active dropout, noise, and state kept from the previous call.
    - An example predicted alone must give the same output as within the batch. A model that does
      not accept a single example is called with halves of the batch instead.

    Differences are measured in standard deviations of the output over the batch; rounding errors
    are allowed in addition. In 82 healthy models, the first difference was 0 and the second at most
    2e-5. Dropout caused a difference of 2.8, and models that mix examples at least 0.7.

    Args:
        model: Model in eval mode.
        batch: A real batch.
        output: Finite output of the model for the batch (B, ...).
        settings: Settings of the POC gate; only ``batch_independence_tolerance`` is used.
        seed: Base seed, from which the seed of the global generators is derived.

    Raises:
        Exception: Any exception of the model's own code for the batch or half of it.

    Cost:
        One forward pass with the batch, and at most eight with one example. Two more with half of
        the batch if a pass with one example fails or returns another shape.
    """
    max_difference = _max_difference(output, settings)
    with (
        RandomStream(derive_seed(seed, "poc_repeated_prediction")).active(),
        torch.inference_mode(),
    ):
        repeated_output = model(batch.inputs)
        if not _are_equal(output, repeated_output, max_difference):
            return _nondeterministic_finding(output, repeated_output, batch, settings)
        positions, separate_output, context = _predict_separately(
            model, batch, tuple(output.shape[1:])
        )
    if _are_equal(output[positions], separate_output, max_difference):
        return None
    return _batch_dependence_finding(
        model, output, positions, separate_output, context, batch, settings
    )


def _predict_separately(
    model: nn.Module, batch: Examples, output_shape: tuple[int, ...]
) -> tuple[Tensor, Tensor, str]:
    """Predict some examples without the rest of their batch.

    Returns:
        The positions of the examples in the batch, their outputs, and how they were predicted:
        "alone", or "with half of the batch" if the model does not accept a batch of one.
    """
    x, all_positions = batch.inputs, torch.arange(len(batch))
    positions = spread_rows(len(batch), _NUM_SINGLE_EXAMPLES)
    try:
        single_outputs = [model(slice_input(x, i, i + 1)) for i in positions.tolist()]
        if all(tuple(output.shape) == (1, *output_shape) for output in single_outputs):
            return positions, torch.cat(single_outputs), "alone"
    except _BATCH_OF_ONE_ERRORS:
        pass
    halves = split_input(x, (len(batch) + 1) // 2)
    return all_positions, torch.cat([model(half) for half in halves]), "with half of the batch"


def _max_difference(output: Tensor, settings: PocSettings) -> float:
    """Return the allowed difference of two outputs, given the output for the whole batch."""
    rounding_error = _MAX_ROUNDING_ERROR * torch.finfo(output.dtype).eps * float(output.abs().max())
    return settings.batch_independence_tolerance * _deviation(output) + rounding_error


def _are_equal(one: Tensor, two: Tensor, max_difference: float) -> bool:
    """Return whether no value differs by more than ``max_difference``; NaN is never equal."""
    if one.shape != two.shape:
        return False
    return bool(((one.double() - two.double()).abs() <= max_difference).all())


def _deviation(output: Tensor) -> float:
    """Return the standard deviation over the batch, pooled over all values of an output."""
    rows = output.double().flatten(1) if output.ndim > 1 else output.double()
    return float((rows - rows.mean(dim=0)).square().mean().sqrt())


def _nondeterministic_finding(
    output: Tensor, repeated_output: Tensor, batch: Examples, settings: PocSettings
) -> CheckOutcome:
    difference = _describe_largest_difference(
        output, repeated_output, batch, settings, deviation=_deviation(output)
    )
    return CheckOutcome(
        outcome="fail",
        summary="In eval mode the model must return the same output for the same batch; "
        f"{difference} in a second call.",
        fault="nondeterministic predictions",
    )


def _batch_dependence_finding(
    model: nn.Module,
    output: Tensor,
    positions: Tensor,
    separate_output: Tensor,
    context: str,
    batch: Examples,
    settings: PocSettings,
) -> CheckOutcome:
    examples = batch.take(positions)
    suspect_layer = _find_suspect_layer(model)
    cause = find_fault("batch dependence").cause
    difference = _describe_largest_difference(
        output[positions], separate_output, examples, settings, deviation=_deviation(output)
    )
    return CheckOutcome(
        outcome="fail",
        summary="In eval mode the output for an example must not depend on the rest of the batch; "
        f"{difference} when it is predicted {context}.",
        fault="batch dependence",
        cause=f"Most likely {suspect_layer}. {cause}" if suspect_layer else "",
    )


def _describe_largest_difference(
    one: Tensor, two: Tensor, batch: Examples, settings: PocSettings, *, deviation: float
) -> str:
    """Describe the example with the largest difference.

    Args:
        one: Outputs for the examples of ``batch``.
        two: Other outputs for the same examples.
        batch: The examples.
        settings: Settings of the POC gate; only ``batch_independence_tolerance`` is used.
        deviation: Standard deviation of the output for the whole batch.
    """
    if one.shape != two.shape:
        return f"the output has the shape {format_shape(one)}, but {format_shape(two)}"
    difference = (one.double() - two.double()).abs().reshape(len(one), -1)
    difference = torch.where(difference.isnan(), math.inf, difference)
    row, column = divmod(int(difference.argmax()), difference.shape[1])
    value, other_value = (float(v.reshape(len(one), -1)[row, column]) for v in (one, two))
    largest = float(difference[row, column])
    comparison = f"{largest:.4g}; only rounding errors are allowed"
    if deviation > 0:
        comparison = (
            f"{largest / deviation:.4g} standard deviations; at most "
            f"{settings.batch_independence_tolerance:g} are allowed"
        )
    return (
        f"the output of row {batch.rows[row]} is {value:.4g}, but {other_value:.4g} (a difference "
        f"of {comparison})"
    )


def _find_suspect_layer(model: nn.Module) -> str:
    """Describe the first layer whose settings let it mix the examples of a batch; "" if none."""
    for name, module in model.named_modules():
        if getattr(module, "batch_first", True) is False:
            return f"{name} ({type(module).__name__}) without batch_first=True"
        if isinstance(module, _BATCH_NORMS) and not module.track_running_stats:
            return f"{name} ({type(module).__name__}) with track_running_stats=False"
    return ""
