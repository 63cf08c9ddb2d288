"""Finds operations of a forward pass that lose double precision or are piecewise constant."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

_PIECEWISE_CONSTANT = frozenset(
    {"round", "floor", "ceil", "trunc", "sign", "sgn", "argmax", "argmin", "heaviside", "bernoulli"}
)
"""Names of torch operations whose output is piecewise constant, so that its gradient is 0."""


@dataclass
class SuspectOperations:
    """The first operation of each suspect kind in a forward pass; "" if none was found."""

    reduced_precision_op: str = ""
    """Operation and module that returned a tensor with less than double precision."""
    piecewise_constant_op: str = ""
    """Operation and module whose output is piecewise constant."""
    active_modules: list[str] = field(default_factory=list)
    """Names of the modules whose forward pass is running, innermost last."""

    @property
    def place_suffix(self) -> str:
        """Text " in 'NAME'" with the innermost active module; "" outside of a named module."""
        has_name = self.active_modules and self.active_modules[-1]
        return f" in '{self.active_modules[-1]}'" if has_name else ""


class _OperationWatch(TorchDispatchMode):
    """Receives every operation of torch in the block, and records the first of each kind."""

    def __init__(self, operations: SuspectOperations) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operations = operations

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        output = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__.rstrip("_")
        operations = self._operations
        if not operations.piecewise_constant_op and name in _PIECEWISE_CONSTANT:
            operations.piecewise_constant_op = f"{name}(){operations.place_suffix}"
        first_output = output[0] if isinstance(output, list | tuple) and output else output
        if (
            not operations.reduced_precision_op
            and isinstance(first_output, Tensor)
            and first_output.dtype in (torch.float32, torch.float16, torch.bfloat16)
        ):
            dtype_name = str(first_output.dtype).removeprefix("torch.")
            operations.reduced_precision_op = f"{name}() to {dtype_name}{operations.place_suffix}"
        return output


@contextmanager
def watch_operations(network: nn.Module | None) -> Iterator[SuspectOperations]:
    """Record the operations in the block, where double precision is the default dtype."""
    operations = SuspectOperations()
    hooks = []
    for name, module in network.named_modules() if network is not None else ():

        def enter_module(_: nn.Module, __: Any, name: str = name) -> None:
            operations.active_modules.append(name)

        def exit_module(_: nn.Module, __: Any, ___: Any) -> None:
            operations.active_modules.pop()

        hooks += [
            module.register_forward_pre_hook(enter_module),
            module.register_forward_hook(exit_module),
        ]
    try:
        with double_by_default(), _OperationWatch(operations):
            yield operations
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def double_by_default() -> Iterator[None]:
    """Set the default dtype to double precision in the block."""
    dtype_before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(dtype_before)
