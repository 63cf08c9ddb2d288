"""Layers whose activations are computed again in the backward pass instead of being kept.

Memory falls from the activations of all layers to those of one layer and the inputs of the
others; time rises by about one forward pass in three. The numbers are the same: dropout draws the
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
"""A module of the user's own takes part when it has this attribute, set to True."""


def recomputable(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the outermost modules that may be computed again, with their names."""
    found: list[tuple[str, nn.Module]] = []
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{outer}.") or not outer for outer, _ in found)
        if not inside and (isinstance(module, _KINDS) or getattr(module, MARK, False) is True):
            found.append((name, module))
    return found


@contextlib.contextmanager
def recomputing(model: nn.Module, *, on: bool) -> Iterator[None]:
    """Compute the marked modules of ``model`` again in backward passes inside, where ``on``.

    Transformer and recurrent layers are marked, and modules with ``recompute = True``. The model
    is afterwards what it was.

    Raises:
        ContractError: ``on``, and the network has no such module.
    """
    modules = [module for _, module in recomputable(model)] if on else []
    if on and not modules:
        raise ContractError(
            "recompute_activations requires a layer that can be computed again, "
            f"{type(model).__name__} has none.",
            cause="It knows Transformer and recurrent layers, and modules marked as such.",
            fix=f"Set '{MARK} = True' on the modules that repeat, or switch the setting off.",
        )
    try:
        for module in modules:
            module.forward = _again(module.forward)
        yield
    finally:
        for module in modules:
            module.__dict__.pop("forward", None)


def _again(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return run
