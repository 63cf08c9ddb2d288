"""Replaced attributes, each put back when the trace ends."""

import sys
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType
from typing import Any

_FUNCTIONS = (FunctionType, BuiltinFunctionType)


class Patches:
    """Attributes of modules and classes that were replaced, and what stood there."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self._holders: dict[int, list[tuple[Any, str]]] | None = None

    def replace(self, owner: Any, name: str, new: Any) -> None:
        """Set ``owner.name`` until ``restore``; what another library sets later is left alone."""
        had_own = name in vars(owner)
        old = vars(owner).get(name)
        setattr(owner, name, new)

        def undo() -> None:
            if vars(owner).get(name) is not new:
                return  # somebody wrapped ours: it goes on as a pass-through
            if had_own:
                setattr(owner, name, old)
            else:
                delattr(owner, name)

        self._undo.append(undo)

    def replace_function(self, owner: Any, name: str, new: Any) -> None:
        """Replace a function of torch, also where it was imported by name already."""
        if self._holders is None:
            self._holders = _holders()
        for module, held in self._holders.get(id(getattr(owner, name)), ()):
            self.replace(module, held, new)

    def all_replaced(self) -> None:
        """Forget who holds which function: nothing is replaced from here on."""
        self._holders = None

    def on_restore(self, undo: Callable[[], None]) -> None:
        """Call ``undo`` when the rest is put back."""
        self._undo.append(undo)

    def restore(self) -> None:
        """Put everything back, the last change first. A second call does nothing."""
        while self._undo:
            self._undo.pop()()


def _holders() -> dict[int, list[tuple[Any, str]]]:
    """Return the modules that hold each function of torch, and under which name.

    One pass over all modules serves every function that is replaced.
    """
    found: dict[int, list[tuple[Any, str]]] = {}
    for module in list(sys.modules.values()):
        try:
            held = list(vars(module).items())
        except TypeError:  # not everything in there is a module
            continue
        for name, value in held:
            if type(value) in _FUNCTIONS and str(value.__module__).startswith("torch"):
                found.setdefault(id(value), []).append((module, name))
    return found
