"""Gradients of the gates of recurrent layers, and the normaliser states of sLSTM layers."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from sluice.base.errors import ContractError
from sluice.base.settings import Record
from sluice.models.slstm import SLSTMLayer


class RecurrentGradients(Record):
    """Gradient norms of one layer and direction of a recurrent module."""

    layer: str = Field(description="Name of the module and its layer, such as 'core.l0'.")
    forget_bias_norm: float | None = Field(
        description="L2 norm of the forget gate's slice of the bias gradients; None when no "
        "trainable bias has a gradient, or the cell has no forget gate."
    )
    hidden_norm: float | None = Field(
        description="L2 norm of the gradient of the hidden-to-hidden weight; None if it has none."
    )


class NormaliserRange(Record):
    """Range of the normaliser state of one sLSTM layer, over all rows, units and examples."""

    layer: str
    lowest: float
    highest: float

    @property
    def is_vanishing(self) -> bool:
        """True if the lowest value is NaN, or so small that a division by it overflows."""
        return not self.lowest >= torch.finfo(torch.float32).tiny


def recurrent_gradients(model: nn.Module) -> tuple[RecurrentGradients, ...]:
    """Measure the gate gradients of every LSTM, GRU and sLSTM layer after a backward pass.

    torch stacks the gates of an LSTM as i, f, g, o: the forget gate is the second quarter of a
    bias. If the gradient of the forget gate is exactly 0, no state is carried from row to row: the
    window has one row, or the output is read before the state is used.

    Args:
        model: Model with gradients.
    """
    return tuple(
        _layer_gradients(".".join(filter(None, (name, suffix.removeprefix("_")))), module, suffix)
        for name, module in model.named_modules()
        for suffix in _parameter_suffixes(module)
    )


def slstm_normaliser_range(layer: str, normaliser: Tensor) -> NormaliserRange:
    """Return the range of a normaliser state of any sLSTM implementation.

    Args:
        layer: Name of the layer, for the message.
        normaliser: The state, of any shape.

    Raises:
        ContractError: The state is empty, or contains NaN or infinity.
    """
    if not normaliser.numel():
        raise ContractError(
            f"The normaliser state of {layer} must not be empty, got the shape "
            f"{tuple(normaliser.shape)}.",
            fix="Pass the state of at least one example and row.",
        )
    num_non_finite = int((~torch.isfinite(normaliser)).sum())
    if num_non_finite:
        raise ContractError(
            f"The normaliser state of {layer} must be finite, {num_non_finite:,} of "
            f"{normaliser.numel():,} values are not.",
            cause="The exponential gates overflow, or weights or inputs are NaN.",
            fix="Subtract a stabiliser state in the exponents, as sluice.models.slstm does.",
        )
    lowest, highest = torch.aminmax(normaliser)
    return NormaliserRange(layer=layer, lowest=float(lowest), highest=float(highest))


@contextmanager
def record_normalisers(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Record the normaliser states of all sLSTM layers in the latest forward pass, by name."""
    states: dict[str, Tensor] = {}

    def make_hook(name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: tuple[Tensor, Tensor]) -> None:  # noqa: ARG001
            states[name] = output[1].detach()

        return hook

    handles = [
        module.register_forward_hook(make_hook(name))
        for name, module in model.named_modules()
        if isinstance(module, SLSTMLayer)
    ]
    try:
        yield states
    finally:
        for handle in handles:
            handle.remove()


def _parameter_suffixes(module: nn.Module) -> tuple[str, ...]:
    """Return the suffixes of the parameter names, one for each layer and direction."""
    if isinstance(module, (nn.LSTM, nn.GRU)):
        directions = ("", "_reverse") if module.bidirectional else ("",)
        return tuple(
            f"_l{layer}{direction}"
            for layer in range(module.num_layers)
            for direction in directions
        )
    return ("",) if isinstance(module, (nn.LSTMCell, nn.GRUCell, SLSTMLayer)) else ()


def _layer_gradients(layer: str, module: nn.Module, suffix: str) -> RecurrentGradients:
    # The gate order is i, f, g, o in all three classes: the forget gate is the second block.
    has_forget_gate = isinstance(module, (nn.LSTM, nn.LSTMCell, SLSTMLayer))
    names = ["bias"] if isinstance(module, SLSTMLayer) else ["bias_ih", "bias_hh"]
    bias_gradients = [_gradient(module, f"{n}{suffix}") for n in names] if has_forget_gate else []
    forget_gradients = [bias.chunk(4)[1] for bias in bias_gradients if bias is not None]
    hidden_gradient = _gradient(module, f"weight_hh{suffix}")
    return RecurrentGradients(
        layer=layer,
        forget_bias_norm=_norm(torch.cat(forget_gradients)) if forget_gradients else None,
        hidden_norm=None if hidden_gradient is None else _norm(hidden_gradient),
    )


def _gradient(module: nn.Module, name: str) -> Tensor | None:
    parameter = getattr(module, name, None)
    return parameter.grad if isinstance(parameter, nn.Parameter) else None


def _norm(gradient: Tensor) -> float:
    return float(torch.linalg.vector_norm(gradient, dtype=torch.float64))
