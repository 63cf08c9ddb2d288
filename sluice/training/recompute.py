"""Activation checkpointing: recomputes activations in the backward pass instead of storing them.

Memory decreases from the activations of all layers to those of one layer and the inputs of the
others; time increases by about one forward pass in three. The numbers are equal: dropout uses the
same masks again, and the same operations run on the same values.

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

_KINDS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer, nn.RNNBase, SLSTMLayer)

MARK = "recompute"
"""Attribute with which a user's module takes part, if it is set to True."""


def recomputable(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the outermost modules whose activations can be recomputed, with their names."""
    found: list[tuple[str, nn.Module]] = []
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{outer}.") or not outer for outer, _ in found)
        if not inside and (isinstance(module, _KINDS) or getattr(module, MARK, False) is True):
            found.append((name, module))
    return found


@contextlib.contextmanager
def recomputing(model: nn.Module, *, on: bool) -> Iterator[None]:
    """Recompute the marked modules of ``model`` in backward passes inside the context, if ``on``.

    Transformer and recurrent layers are marked, and modules with ``recompute = True``. The model is
    restored afterwards.

    Raises:
        ContractError: ``on`` is True, and the network has no such module.
    """
    modules = [module for _, module in recomputable(model)] if on else []
    if on and not modules:
        raise ContractError(
            "recompute_activations requires a layer that can be recomputed, but "
            f"{type(model).__name__} has none.",
            cause="Supported are Transformer and recurrent layers, and modules with the attribute "
            f"'{MARK}'.",
            fix=f"Set '{MARK} = True' on the repeated modules, or set recompute_activations to "
            "false.",
        )
    try:
        for module in modules:
            module.forward = _checkpointed(module.forward)
        yield
    finally:
        for module in modules:
            module.__dict__.pop("forward", None)


def _checkpointed(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return run
