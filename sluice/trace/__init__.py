"""The training tracer: ``sluice.trace()`` traces a block of code.

::

    with sluice.trace() as traced:
        train(model, loader)
    traced.findings

See ``sluice.trace.block.trace`` for the arguments. The package itself is callable, because a
function ``sluice.trace`` would be overwritten by this package at the first import of one of its
modules.
"""

import sys
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Trace the training in a ``with`` block; see ``sluice.trace.block.trace``."""
        from sluice.trace.block import trace

        return trace(*arguments, **options)


sys.modules[__name__].__class__ = _CallablePackage
