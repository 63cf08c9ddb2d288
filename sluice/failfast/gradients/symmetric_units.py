"""Do all units of a layer compute the same, and will they for ever? (POC-2)."""

from torch import Tensor, nn

_TOLERANCE = 1e-4
"""Of the largest value: rounding differs from row to row, random initial weights differ more."""

_LOOKUPS = (nn.Embedding, nn.EmbeddingBag)
"""Rows of these are tokens, not units."""

_INPUTS_FIRST = nn.modules.conv._ConvTransposeNd
"""Weights of these are (inputs, outputs, ...)."""


def symmetric_weights(model: nn.Module) -> tuple[str, ...]:
    """Return the weight matrices whose units are all alike, and get the same gradient.

    Such units stay one unit. A weight counts when it has at least two rows, is trainable and has
    a gradient that is not 0, and when all its rows are equal, in the weight and in the gradient.
    Gates stacked in one matrix, as recurrent networks have them, are compared within the gate.

    Call it after a backward pass, best after some steps: rows that start alike, as in a last
    layer of zeros, part with the first step unless their gradients are alike too.
    """
    found = []
    for prefix, module in model.named_modules():
        if isinstance(module, _LOOKUPS):
            continue
        for name, parameter in module.named_parameters(prefix=prefix, recurse=False):
            gradient = parameter.grad
            if gradient is None or gradient.is_sparse or parameter.ndim < 2:
                continue
            if isinstance(module, _INPUTS_FIRST):
                weight_UI, gradient_UI = (
                    _rows(parameter.transpose(0, 1)),
                    _rows(gradient.transpose(0, 1)),
                )
            else:
                weight_UI, gradient_UI = _rows(parameter), _rows(gradient)
            if bool(gradient.any()) and _alike(weight_UI, gradient_UI):
                found.append(name)
    return tuple(found)


def _rows(values: Tensor) -> Tensor:
    return values.detach().flatten(1)


def _alike(weight_UI: Tensor, gradient_UI: Tensor) -> bool:
    """Are the rows alike within each of 1, 2, 3 or 4 stacked gates? U = units, I = inputs."""
    num_rows = len(weight_UI)
    return any(
        num_rows % gates == 0
        and num_rows // gates >= 2
        and _equal_within(weight_UI, gates)
        and _equal_within(gradient_UI, gates)
        for gates in (1, 2, 3, 4)
    )


def _equal_within(values_UI: Tensor, gates: int) -> bool:
    values_GUI = values_UI.unflatten(0, (gates, -1))
    limit = _TOLERANCE * values_UI.abs().max()
    # The second unit alone settles it for nearly every network.
    if not bool(((values_GUI[:, 1] - values_GUI[:, 0]).abs() <= limit).all()):
        return False
    return bool(((values_GUI - values_GUI[:, :1]).abs() <= limit).all())
