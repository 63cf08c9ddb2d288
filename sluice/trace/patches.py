"""Patched attributes, each restored when the trace ends."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import BuiltinFunctionType, FunctionType
from typing import Any

_FUNCTION_TYPES = (FunctionType, BuiltinFunctionType)


class Patches:
    """Patched attributes of modules and classes, with their original values."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        """Functions that ``restore`` calls, the latest one first."""
        self._changes: list[tuple[Callable[[], None], Callable[[], None]]] = []
        """Pairs of functions that apply and undo each patch."""
        self.wrap: Callable[[Any, str, Any, Any], Any] = lambda _owner, _name, _original, new: new
        """Called with owner, name, original and new function; returns the function to install. For
        a hook it is called with the registering function, '', None and the hook."""

    def replace(self, owner: Any, name: str, new: Any) -> None:
        """Set ``owner.name`` to ``new`` until ``restore``.

        ``restore`` keeps the current value if another library replaced ``new`` in the meantime.
        """
        self._replace_attribute(
            owner, name, self.wrap(owner, name, getattr(owner, name, None), new)
        )

    def _replace_attribute(self, owner: Any, name: str, new: Any) -> None:
        is_own_attribute = name in vars(owner)  # otherwise ``owner`` inherits it
        old = vars(owner).get(name)

        def undo() -> None:
            if vars(owner).get(name) is not new:
                return  # another library wrapped ``new``, which now only calls the original
            if is_own_attribute:
                setattr(owner, name, old)
            else:
                delattr(owner, name)

        self._apply(lambda: setattr(owner, name, new), undo)

    def hook(self, register: Callable[[Any], Any], function: Any) -> None:
        """Register a hook until ``restore``."""
        handles: list[Any] = []
        wrapped = self.wrap(register, "", None, function)
        self._apply(lambda: handles.append(register(wrapped)), lambda: handles.pop().remove())

    def _apply(self, change: Callable[[], None], undo: Callable[[], None]) -> None:
        change()
        self._changes.append((change, undo))
        self._undo.append(undo)

    def replace_function(self, owner: Any, name: str, new: Any) -> None:
        """Replace a function of torch, also in modules that already imported it by name."""
        old = getattr(owner, name)
        wrapped = self.wrap(owner, name, old, new)
        for module, attribute in _HOLDERS.find(old):
            if vars(module).get(attribute) is old:
                self._replace_attribute(module, attribute, wrapped)

    def on_restore(self, undo: Callable[[], None]) -> None:
        """Call ``undo`` when the patches are restored."""
        self._undo.append(undo)

    def restore(self) -> None:
        """Restore all patches, the latest first. A second call does nothing."""
        self._changes.clear()
        while self._undo:
            self._undo.pop()()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Undo all patches in the block, so that nothing in it is traced."""
        for _, undo in reversed(self._changes):
            undo()
        try:
            yield
        finally:
            for change, _ in self._changes:
                change()


class _Holders:
    """Modules that hold a function of torch, and the names under which they hold it.

    The scan of all modules is cached for the process, and repeated when the number of imported
    modules changes.
    """

    def __init__(self) -> None:
        self._holders_by_id: dict[int, list[tuple[Any, str]]] = {}
        self._num_modules = 0

    def find(self, function: Any) -> list[tuple[Any, str]]:
        """Return the modules that held a function at the last scan, with its name in each."""
        if self._num_modules != len(sys.modules):
            self._num_modules, self._holders_by_id = len(sys.modules), {}
            for module in list(sys.modules.values()):
                self._scan(module)
        return self._holders_by_id.get(id(function), [])

    def _scan(self, module: Any) -> None:
        try:
            attributes = list(vars(module).items())
        except TypeError:  # sys.modules may contain other objects
            return
        for name, value in attributes:
            if type(value) in _FUNCTION_TYPES and str(value.__module__).startswith("torch"):
                self._holders_by_id.setdefault(id(value), []).append((module, name))


_HOLDERS = _Holders()
