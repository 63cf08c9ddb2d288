"""Which operations of a forward pass leave double precision, or have steps instead of slopes."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

_STAIRCASES = frozenset(
    {"round", "floor", "ceil", "trunc", "sign", "sgn", "argmax", "argmin", "heaviside", "bernoulli"}
)


@dataclass
class Operations:
    """What was met, first of each kind."""

    single_precision: str = ""
    """Operation and module that made a tensor of less than double precision."""
    staircase: str = ""
    """Operation and module whose output moves in steps."""
    modules: list[str] = field(default_factory=list)
    """Names of the modules that run now, innermost last."""

    @property
    def place(self) -> str:
        """The module that runs now."""
        return f" in '{self.modules[-1]}'" if self.modules and self.modules[-1] else ""


class _Watch(TorchDispatchMode):
    def __init__(self, operations: Operations) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operations = operations

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        output = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__.rstrip("_")
        met = self._operations
        if not met.staircase and name in _STAIRCASES:
            met.staircase = f"{name}(){met.place}"
        first = output[0] if isinstance(output, list | tuple) and output else output
        if (
            not met.single_precision
            and isinstance(first, Tensor)
            and first.dtype in (torch.float32, torch.float16, torch.bfloat16)
        ):
            short = str(first.dtype).removeprefix("torch.")
            met.single_precision = f"{name}() to {short}{met.place}"
        return output


@contextmanager
def watched_operations(network: nn.Module | None) -> Iterator[Operations]:
    """Note operations in the block; constants that are made in it are double."""
    operations = Operations()
    hooks = []
    for name, module in network.named_modules() if network is not None else ():

        def enter(_: nn.Module, __: Any, name: str = name) -> None:
            operations.modules.append(name)

        def leave(_: nn.Module, __: Any, ___: Any) -> None:
            operations.modules.pop()

        hooks += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    try:
        with double_by_default(), _Watch(operations):
            yield operations
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def double_by_default() -> Iterator[None]:
    """Make constants without a dtype in double precision inside."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
