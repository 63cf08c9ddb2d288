"""Replaced attributes, each put back when the trace ends."""

import sys
from collections.abc import Callable, Mapping
from typing import Any


class Patches:
    """Attributes of modules and classes that were replaced, and what stood there."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

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
        """Replace a function of a module, also where it was imported by name already."""
        self.replace_functions(owner, {name: new})

    def replace_functions(self, owner: Any, new: Mapping[str, Any]) -> None:
        """Replace several functions of a module in one look at all modules."""
        wanted = {id(vars(owner)[name]): replacement for name, replacement in new.items()}
        for module in list(sys.modules.values()):
            try:
                globals_ = vars(module)
            except TypeError:  # not everything in there is a module
                continue
            for held, value in list(globals_.items()):
                if id(value) in wanted:
                    self.replace(module, held, wanted[id(value)])

    def on_restore(self, undo: Callable[[], None]) -> None:
        """Call ``undo`` when the rest is put back."""
        self._undo.append(undo)

    def restore(self) -> None:
        """Put everything back, the last change first. A second call does nothing."""
        while self._undo:
            self._undo.pop()()
