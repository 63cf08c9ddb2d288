"""Hook for a function whose calls are reported after they return."""

import functools
from collections.abc import Callable
from typing import Any

from sluice.trace.tracer_context import TracerContext


def report_calls(
    tracer: TracerContext,
    owner: Any,
    name: str,
    report: Callable[..., None],
    *,
    in_importing_modules: bool = False,
) -> None:
    """Call ``report`` with the result and the arguments of every call of ``owner.name``.

    Args:
        tracer: Provides the patches.
        owner: Class or module of the function.
        name: Name of the function.
        report: Called after a call that returned.
        in_importing_modules: Whether to replace the function also in modules that imported it by
            name.
    """
    original = getattr(owner, name)

    @functools.wraps(original)
    def call_and_report(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if tracer.is_on:
            tracer.run_safely(report, result, *args, **kwargs)
        return result

    replace = tracer.patches.replace_function if in_importing_modules else tracer.patches.replace
    replace(owner, name, call_and_report)
