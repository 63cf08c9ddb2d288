"""Activation checkpointing: recomputes activations in the backward pass instead of storing them.

Memory then contains the activations of only one layer and the inputs of the other layers. Every
step takes about a third longer, because the forward pass runs twice. The results are bit-identical:
dropout uses the same masks again, and the same operations run on the same values.

Source:
    Chen et al. (2016), "Training Deep Nets with Sublinear Memory Cost", arXiv:1604.06174.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from sluice.base.errors import ContractError
from sluice.models.slstm import SLSTMLayer

_RECOMPUTED_TYPES = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer, nn.RNNBase, SLSTMLayer)

RECOMPUTE_ATTRIBUTE = "recompute"
"""Attribute that a user's module sets to True to have its activations recomputed."""


def recomputable_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the outermost modules whose activations can be recomputed, with their names."""
    outermost: list[tuple[str, nn.Module]] = []
    for name, module in model.named_modules():
        is_inside = any(name.startswith(f"{outer}.") or not outer for outer, _ in outermost)
        is_recomputable = (
            isinstance(module, _RECOMPUTED_TYPES)
            or getattr(module, RECOMPUTE_ATTRIBUTE, False) is True
        )
        if is_recomputable and not is_inside:
            outermost.append((name, module))
    return outermost


@contextlib.contextmanager
def recomputing(model: nn.Module, *, is_enabled: bool) -> Iterator[None]:
    """Recompute activations of ``model`` in backward passes inside the context, if enabled.

    Affects Transformer layers, recurrent layers, and modules with ``recompute = True``. The model
    is restored at the end of the context.

    Raises:
        ContractError: ``is_enabled`` is True, and the network has no such module.
    """
    modules = [module for _, module in recomputable_modules(model)] if is_enabled else []
    if is_enabled and not modules:
        raise ContractError(
            "recompute_activations requires a layer that can be recomputed, but "
            f"{type(model).__name__} has none.",
            cause="Supported are Transformer and recurrent layers, and modules with the attribute "
            f"'{RECOMPUTE_ATTRIBUTE}'.",
            fix=f"Set '{RECOMPUTE_ATTRIBUTE} = True' on the repeated modules, or set "
            "recompute_activations to false.",
        )
    try:
        for module in modules:
            module.forward = _checkpoint_forward(module.forward)
        yield
    finally:
        for module in modules:
            module.__dict__.pop("forward", None)


def _checkpoint_forward(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return run
