"""Is the prediction of an example its own: the same when asked again, and when asked alone?"""

import math

import torch
from torch import Tensor, nn

from sluice.base.seeding import Stream, derive_seed
from sluice.config.poc_settings import PocSettings
from sluice.failfast.learning.probe import shape, spread
from sluice.findings.finding import Finding
from sluice.findings.responses import respond
from sluice.workloads.workload import Examples

_LONE_EXAMPLES = 8
"""Asked one by one; a model that mixes examples changes nearly all of them."""

_ROUNDING_STEPS = 4.0
"""Steps of the largest output's last digit that rounding may take: a target of level 1e4 and
deviation 1 leaves a small output little more."""

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)

_REFUSALS = (RuntimeError, ValueError, TypeError, IndexError, AssertionError)
"""What a model raises that cannot take a batch of one."""


def find_dependence(
    model: nn.Module, batch: Examples, output: Tensor, settings: PocSettings, *, seed: int
) -> Finding | None:
    """Return how predictions in eval mode depend on more than their example, or None.

    - Asked again with another seed of the global generators, the batch must get the same output.
      Dropout that stays on, noise and a state kept from the call before all show here.
    - Asked alone, examples must get the output they have within the batch. A model that does not
      take one example is asked with halves of the batch instead.

    Differences count in deviations of the output over the batch, beyond rounding. Measured: 0 for
    the first and at most 2e-5 for the second over 82 healthy models; 2.8 for dropout, 0.7 at least
    for models that mix examples.

    Args:
        model: In eval mode.
        batch: A real batch.
        output: What the model gave for it (B, ...), finite.
        settings: ``lone_tolerance``.
        seed: Base seed; the generators get one derived from it.

    Raises:
        Exception: Whatever the model's own code raises for the batch or for half of it.

    Cost:
        Ten forward passes, eight of them with one example.
    """
    with Stream(derive_seed(seed, "poc_asked_again")).active(), torch.inference_mode():
        again = model(batch.x)
        if not _agree(output, again, output, settings):
            return _unsteady(output, again, batch, settings)
        index, alone = _asked_apart(model, batch, tuple(output.shape[1:]))
    if _agree(output[index], alone, output, settings):
        return None
    return _mixed(model, output, index, alone, batch, settings)


def _asked_apart(model: nn.Module, batch: Examples, cell: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return positions in the batch, and the outputs for these without the rest of the batch."""
    everything = torch.arange(len(batch))
    few = spread(Examples(x=everything, y=everything, rows=batch.rows), _LONE_EXAMPLES).x
    try:
        lone = [model(batch.x[i : i + 1]) for i in few.tolist()]
        if all(tuple(part.shape) == (1, *cell) for part in lone):
            return few, torch.cat(lone)
    except _REFUSALS:
        pass
    return everything, torch.cat([model(half) for half in batch.x.split((len(batch) + 1) // 2)])


def _agree(one: Tensor, two: Tensor, output: Tensor, settings: PocSettings) -> bool:
    """Return whether two outputs for the same examples are equal but for rounding; NaN is not."""
    if one.shape != two.shape:
        return False
    rounding = _ROUNDING_STEPS * torch.finfo(output.dtype).eps * float(output.abs().max())
    allowed = settings.lone_tolerance * _deviation(output) + rounding
    return bool(((one.double() - two.double()).abs() <= allowed).all())


def _deviation(output: Tensor) -> float:
    """Return the deviation of the output over the batch, all values of an output together."""
    rows = output.double().flatten(1) if output.ndim > 1 else output.double()
    return float((rows - rows.mean(dim=0)).square().mean().sqrt())


def _unsteady(output: Tensor, again: Tensor, batch: Examples, settings: PocSettings) -> Finding:
    return Finding(
        outcome="fail",
        summary="In eval mode the same batch must get the same output whenever it is asked; "
        f"{_worst(output, again, output, batch, settings)} when it is asked again.",
        kind="unsteady predictions",
    )


def _mixed(
    model: nn.Module,
    output: Tensor,
    index: Tensor,
    alone: Tensor,
    batch: Examples,
    settings: PocSettings,
) -> Finding:
    rows = Examples(x=batch.x[index], y=batch.y[index], rows=batch.rows[index.numpy()])
    apart = "alone" if len(index) < len(batch) else f"with {(len(batch) + 1) // 2} of the batch"
    suspects = _suspects(model)
    cause = respond("examples mixed").cause
    return Finding(
        outcome="fail",
        summary="In eval mode an example must get the same output whatever else is in the batch; "
        f"{_worst(output[index], alone, output, rows, settings)} when it is asked {apart}.",
        kind="examples mixed",
        cause=f"Here most likely {suspects}. {cause}" if suspects else "",
    )


def _worst(one: Tensor, two: Tensor, output: Tensor, batch: Examples, settings: PocSettings) -> str:
    """Return which example differs most and by how much."""
    if one.shape != two.shape:
        return f"the output is {shape(one)}, and {shape(two)}"
    difference = (one.double() - two.double()).abs().reshape(len(one), -1)
    difference = torch.where(difference.isnan(), math.inf, difference)
    row, column = divmod(int(difference.argmax()), difference.shape[1])
    pair = [float(values.reshape(len(one), -1)[row, column]) for values in (one, two)]
    deviation = _deviation(output)
    largest = float(difference[row, column])
    told = f"{largest / deviation:.4g} deviations" if deviation > 0 else f"{largest:.4g}"
    return (
        f"that of row {batch.rows[row]} is {pair[0]:.4g}, and {pair[1]:.4g} ({told} of the output "
        f"apart, at most {settings.lone_tolerance:g} are allowed)"
    )


def _suspects(model: nn.Module) -> str:
    """Return the layers that mix the examples of (B, ...) unless somebody prepared for it."""
    for name, module in model.named_modules():
        if getattr(module, "batch_first", True) is False:
            return f"{name} ({type(module).__name__}) without batch_first=True"
        if isinstance(module, _BATCH_NORMS) and not module.track_running_stats:
            return f"{name} ({type(module).__name__}) with track_running_stats=False"
    return ""
