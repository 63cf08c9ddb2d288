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
        self._undo_functions: list[Callable[[], object]] = []
        """Functions that ``restore`` calls, the last added first."""
        self._changes: list[tuple[Callable[[], None], Callable[[], bool]]] = []
        """Two functions for each patch. The first applies the patch. The second undoes it if no
        other library wrapped the patch, and returns whether it was undone."""
        self.wrap: Callable[[Any, str, Any, Any], Any] = (
            lambda _owner, _name, _original, replacement: replacement
        )
        """Returns the function to install, given owner, name, original function and replacement.
        For a hook, the arguments are the registering function, '', None and the hook."""

    def replace(self, owner: Any, name: str, replacement: Any) -> None:
        """Set ``owner.name`` to ``replacement`` until ``restore``.

        ``restore`` keeps the current value if another library changed it in the meantime.
        """
        self._replace_attribute(
            owner, name, self.wrap(owner, name, getattr(owner, name, None), replacement)
        )

    def _replace_attribute(self, owner: Any, name: str, replacement: Any) -> None:
        is_own_attribute = name in vars(owner)  # otherwise ``owner`` inherits it
        original = vars(owner).get(name)

        def change() -> None:
            # Keep a wrapper that another library installed while tracing was paused.
            if vars(owner).get(name) is original:
                setattr(owner, name, replacement)

        def undo() -> bool:
            if vars(owner).get(name) is not replacement:
                return False  # another library wrapped ``replacement``, and its wrapper must stay
            if is_own_attribute:
                setattr(owner, name, original)
            else:
                delattr(owner, name)
            return True

        self._apply(change, undo)

    def hook(self, register: Callable[[Any], Any], function: Any) -> None:
        """Register a hook until ``restore``."""
        handles: list[Any] = []
        wrapped = self.wrap(register, "", None, function)

        def undo() -> bool:
            handles.pop().remove()
            return True

        self._apply(lambda: handles.append(register(wrapped)), undo)

    def _apply(self, change: Callable[[], None], undo: Callable[[], bool]) -> None:
        change()
        self._changes.append((change, undo))
        self._undo_functions.append(undo)

    def replace_function(self, owner: Any, name: str, replacement: Any) -> None:
        """Replace a function of torch until ``restore``, also where it was imported by name."""
        original = getattr(owner, name)
        wrapped = self.wrap(owner, name, original, replacement)
        for module, attribute in _TORCH_IMPORTS.find(original):
            if vars(module).get(attribute) is original:
                self._replace_attribute(module, attribute, wrapped)

    def on_restore(self, undo: Callable[[], None]) -> None:
        """Call ``undo`` when ``restore`` is called, but not in a pause."""
        self._undo_functions.append(undo)

    def restore(self) -> None:
        """Undo all patches, the latest first. A second call does nothing."""
        self._changes.clear()
        while self._undo_functions:
            self._undo_functions.pop()()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Undo all patches in the block, except patches that another library wrapped."""
        undone_changes = [change for change, undo in reversed(self._changes) if undo()]
        try:
            yield
        finally:
            for change in reversed(undone_changes):
                change()


class _TorchImports:
    """Finds the modules that contain a function of torch, for example after an import by name.

    All modules are scanned once per process, and again when the number of imported modules changes.
    """

    def __init__(self) -> None:
        self._owners_by_function_id: dict[int, list[tuple[Any, str]]] = {}
        """Modules that contain a function, and its name in each, by the id of the function."""
        self._num_modules = 0
        """Number of imported modules at the last scan."""

    def find(self, function: Any) -> list[tuple[Any, str]]:
        """Return the modules that contained a function at the last scan, with its name in each."""
        if self._num_modules != len(sys.modules):
            self._num_modules, self._owners_by_function_id = len(sys.modules), {}
            for module in list(sys.modules.values()):
                self._scan(module)
        return self._owners_by_function_id.get(id(function), [])

    def _scan(self, module: Any) -> None:
        try:
            attributes = list(vars(module).items())
        except TypeError:  # sys.modules may contain other objects
            return
        for name, value in attributes:
            if type(value) in _FUNCTION_TYPES and str(value.__module__).startswith("torch"):
                self._owners_by_function_id.setdefault(id(value), []).append((module, name))


_TORCH_IMPORTS = _TorchImports()
