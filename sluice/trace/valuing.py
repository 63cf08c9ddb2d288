"""Looks at the numbers in every parameter: at the first step and at powers of two."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sluice.trace.deferred import Deferred
from sluice.trace.evidence.values import GradientFact, SpoiledFact, ValueFact
from sluice.trace.fingerprints import row_fingerprints
from sluice.trace.gradients import not_finite
from sluice.trace.inventory import Inventory, OptimizerEntry
from sluice.trace.lane import Lane

_MOST_PARAMETERS = 256
_WORDS = 4096
"""Numbers of a parameter in its fingerprint."""

_ROWS, _ROW_WORDS = 512, 256
"""Rows that are compared, and numbers of each."""

_EXACT = 2**52 - 1
"""Whole numbers up to here are read back exactly."""

_STEPS_IN_RANGE = 1e5
"""Rows are the same when what they differ by from the first is, after rounding to so many steps up
to the largest number."""


def ask_values(inventory: Inventory, step: int, deferred: Deferred) -> list[list[ValueFact]]:
    """Ask what is in the parameters; each list holds its fact once that is read.

    Cost:
        Two passes over the parameters, and a wait for the device for those of two dimensions.
    """
    alive = [(entry.index, p) for entry, p in inventory.parameters.alive()]
    with torch.no_grad():
        return [
            _ask(index, parameter, step, deferred)
            for index, parameter in alive[:_MOST_PARAMETERS]
            if type(parameter) in (Tensor, nn.Parameter)
            and parameter.layout == torch.strided
            and parameter.is_floating_point()
            and parameter.numel()
            and parameter.device.type != "meta"
            and parameter.untyped_storage().nbytes()  # shards give theirs back between passes
        ]


def _ask(index: int, parameter: Tensor, step: int, deferred: Deferred) -> list[ValueFact]:
    values = parameter.detach()
    low, high = torch.aminmax(values)
    digest = row_fingerprints(values.reshape(1, -1), words=_WORDS)[0] & _EXACT
    rows = values.shape[0] if values.dim() >= 2 else 0
    different = _num_different(values) if rows else 0
    fact: list[ValueFact] = []

    def fill(found: Sequence[float]) -> None:
        fact.append(
            ValueFact(
                parameter=index,
                step=step,
                fingerprint=int(found[0]),
                smallest=found[1],
                largest=found[2],
                num_rows=rows,
                num_different=different,
                num_non_finite=int(found[3]),
            )
        )

    deferred.ask([digest, low, high, (~values.isfinite()).sum()], fill)
    return fact


def _num_different(values: Tensor) -> int:
    rows = values[:_ROWS].reshape(min(len(values), _ROWS), -1)
    rows = rows[:, :: -(-rows.shape[1] // _ROW_WORDS)].float()
    size = rows.abs().max().clamp_min(1e-30)
    rounded = ((rows - rows[0]) / size * _STEPS_IN_RANGE).round().nan_to_num().to(torch.int32)
    return len(row_fingerprints(rounded, words=_ROW_WORDS).unique())


def spoiled_fact(
    entry: OptimizerEntry, inventory: Inventory, step: int, loss: float
) -> GradientFact | SpoiledFact | None:
    """Return whose gradients were not finite at the last step: the weights are not since.

    Where the optimizer keeps moments, and those of these weights are finite, it was no gradient.
    None when all weights are finite, or none is: whichever did that is not told by them.
    """
    given = [p for p in entry.parameters() if p.requires_grad]
    bad = not_finite([p.detach() for p in given])
    if not bad or len(bad) == len(given):
        return None
    named = tuple(inventory.parameters.find(given[i]).index for i in bad)
    moments = [m for i in bad for m in entry.moments(given[i])]
    if moments and not not_finite(moments):
        return SpoiledFact(
            step=step, optimizer=entry.index, parameters=named, num_parameters=len(given)
        )
    return GradientFact(
        step=step, optimizer=entry.index, parameters=named, num_gradients=len(given), loss=loss
    )


def gradient_fact(
    entry: OptimizerEntry, inventory: Inventory, step: int, lane: Lane
) -> GradientFact:
    """Return whose gradients are not finite."""
    given = [p for p in entry.parameters() if p.grad is not None]
    bad = not_finite([p.grad for p in given if p.grad is not None])
    return GradientFact(
        step=step,
        optimizer=entry.index,
        parameters=tuple(inventory.parameters.find(given[i]).index for i in bad),
        num_gradients=len(given),
        loss=float(lane.losses[-1]) if lane.losses else float("nan"),
    )
