"""Runs copies of a network, without changing the network or consuming its random numbers."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.parameter import is_lazy

from sluice.trace.inspection import random_state
from sluice.trace.inspection.padding import tensor_arguments

_MAX_PARAMETERS = 20_000_000
"""Maximum number of parameters of a network. A larger network is not copied."""

_MAX_ARGUMENT_ELEMENTS = 4_000_000
"""Maximum total number of elements of the tensor arguments of a call. If there are more, the
network is not copied."""

CallArguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of a call."""


def _can_copy(network: nn.Module, call_args: CallArguments) -> bool:
    """Return whether a network is small enough to copy, and a copy runs without side effects."""
    if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:
        return False  # global hooks of the program would also run on the copy
    if any(is_lazy(p) or p.is_meta for p in network.parameters()):
        return False  # the copy could not compute values
    if sum(p.numel() for p in network.parameters()) > _MAX_PARAMETERS:
        return False
    if sum(t.numel() for t in tensor_arguments(call_args)) > _MAX_ARGUMENT_ELEMENTS:
        return False
    return not random_state.uses_shared_generator(network)


@contextmanager
def disposable_copy(network: nn.Module, call_args: CallArguments) -> Iterator[nn.Module | None]:
    """Yield a copy of the network; None if copying fails, or if ``_can_copy`` returns False.

    The copy is in evaluation mode and single precision, and has no hooks. Gradients are disabled
    in the block, and all random states are restored after it.

    Args:
        network: Network to copy.
        call_args: Arguments with which the copy will be called.
    """
    if not _can_copy(network, call_args):
        yield None
        return
    with random_state.preserve_random_state(), torch.no_grad():
        yield _copy(network)


def _copy(network: nn.Module) -> nn.Module | None:
    try:
        network_copy = copy.deepcopy(network)
    except Exception:  # an object cannot be copied, such as a non-leaf tensor
        return None
    for module in network_copy.modules():
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            hooks.clear()
        module.training = False  # not ``train(False)``, which would record an event
        _disable_attention_fast_path(module)
    return network_copy.float()


def _disable_attention_fast_path(module: nn.Module) -> None:
    """Let attention in evaluation mode compute what it computes in training mode.

    torch has a fast path for attention in evaluation mode. If a mask excludes all positions, the
    fast path returns NaN, but training mode returns finite values. ``torch.backends.mha`` could
    only disable the fast path for all threads, which would change evaluations of the program.
    """
    if type(module) is nn.MultiheadAttention:
        module.dropout, module.training = 0.0, True
    elif type(module) is nn.TransformerEncoderLayer:
        module.activation_relu_or_gelu = 0


def run_copy(network_copy: nn.Module, call_args: CallArguments) -> list[Tensor] | None:
    """Run the copy, and return its floating-point outputs; None if it raises an exception."""
    args, kwargs = map_tensors(call_args, lambda t: t.float() if t.is_floating_point() else t)
    device_type = next((t.device.type for t in network_copy.parameters()), "cpu")
    with torch.autocast(device_type, enabled=False):
        try:
            output = network_copy(*args, **kwargs)
        except Exception:  # the program's code, with an input that it may not support
            return None
    return [t.detach().clone() for t in float_tensors(output)]


def run_with_perturbed_embeddings(
    network_copy: nn.Module, call_args: CallArguments, ids: Tensor, is_perturbed: Tensor
) -> list[Tensor] | None:
    """Run the copy; perturb the embeddings of ``ids`` where the mask ``is_perturbed`` is True.

    Returns:
        The floating-point outputs; None if the network has no nn.Embedding or raises an exception.
    """

    def perturb(_: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        if not args or not isinstance(args[0], Tensor) or args[0].shape != ids.shape:
            return None
        if not torch.equal(args[0], ids) or output.shape[:-1] != ids.shape:
            return None
        # The difference varies between dimensions, because a layer norm would cancel a constant.
        scale = output.std() + 0.1
        difference = torch.arange(output.shape[-1], device=output.device).mul(1.7).cos() * scale
        return output + is_perturbed[..., None] * difference

    embeddings = [m for m in network_copy.modules() if isinstance(m, nn.Embedding)]
    if not embeddings:
        return None
    hooks = [embedding.register_forward_hook(perturb) for embedding in embeddings]
    try:
        return run_copy(network_copy, call_args)
    finally:
        for hook in hooks:
            hook.remove()


def map_tensors(call_args: CallArguments, change: Callable[[Tensor], Tensor]) -> CallArguments:
    """Return the arguments with ``change`` applied to every tensor, also in containers."""

    def convert(value: Any) -> Any:
        if isinstance(value, Tensor):
            return change(value)
        if type(value) in (list, tuple):
            return type(value)(convert(item) for item in value)
        if type(value) is dict:
            return {key: convert(item) for key, item in value.items()}
        return value

    args, kwargs = call_args
    return convert(tuple(args)), convert(dict(kwargs))


def float_tensors(output: Any) -> Iterator[Tensor]:
    """Yield the plain floating-point tensors of nested containers, in a fixed order."""
    if isinstance(output, Tensor):
        if output.is_floating_point() and type(output) in (Tensor, nn.Parameter):
            yield output
    elif isinstance(output, dict):
        for item in output.values():
            yield from float_tensors(item)
    elif isinstance(output, list | tuple):
        for item in output:
            yield from float_tensors(item)
