"""Replaced attributes, each put back when the trace ends."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import BuiltinFunctionType, FunctionType
from typing import Any

_FUNCTIONS = (FunctionType, BuiltinFunctionType)


class Patches:
    """Attributes of modules and classes that were replaced, and what stood there."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self._changes: list[tuple[Callable[[], None], Callable[[], None]]] = []
        """How each can be made, and taken back."""

    def replace(self, owner: Any, name: str, new: Any) -> None:
        """Set ``owner.name`` until ``restore``; what another library sets later is left alone."""
        had_own = name in vars(owner)
        old = vars(owner).get(name)

        def undo() -> None:
            if vars(owner).get(name) is not new:
                return  # somebody wrapped ours: it goes on as a pass-through
            if had_own:
                setattr(owner, name, old)
            else:
                delattr(owner, name)

        self._make(lambda: setattr(owner, name, new), undo)

    def hook(self, register: Callable[[Any], Any], function: Any) -> None:
        """Register a hook until ``restore``."""
        handles: list[Any] = []
        self._make(lambda: handles.append(register(function)), lambda: handles.pop().remove())

    def _make(self, change: Callable[[], None], undo: Callable[[], None]) -> None:
        change()
        self._changes.append((change, undo))
        self._undo.append(undo)

    def replace_function(self, owner: Any, name: str, new: Any) -> None:
        """Replace a function of torch, also where it was imported by name already."""
        old = getattr(owner, name)
        for module, held in _HOLDERS.of(old):
            if vars(module).get(held) is old:
                self.replace(module, held, new)

    def on_restore(self, undo: Callable[[], None]) -> None:
        """Call ``undo`` when the rest is put back."""
        self._undo.append(undo)

    def restore(self) -> None:
        """Put everything back, the last change first. A second call does nothing."""
        self._changes.clear()
        while self._undo:
            self._undo.pop()()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Put everything back for a while: nothing of what happens then is seen."""
        for _, undo in reversed(self._changes):
            undo()
        try:
            yield
        finally:
            for change, _ in self._changes:
                change()


class _Holders:
    """Which modules hold a function of torch, and under which name.

    One pass over all modules serves every function that is replaced, and every trace of a process
    until it imports something new.
    """

    def __init__(self) -> None:
        self._found: dict[int, list[tuple[Any, str]]] = {}
        self._modules = 0

    def of(self, function: Any) -> list[tuple[Any, str]]:
        """Return the places that held a function when all modules were looked through."""
        if self._modules != len(sys.modules):
            self._modules, self._found = len(sys.modules), {}
            for module in list(sys.modules.values()):
                self._look(module)
        return self._found.get(id(function), [])

    def _look(self, module: Any) -> None:
        try:
            held = list(vars(module).items())
        except TypeError:  # not everything in there is a module
            return
        for name, value in held:
            if type(value) in _FUNCTIONS and str(value.__module__).startswith("torch"):
                self._found.setdefault(id(value), []).append((module, name))


_HOLDERS = _Holders()
