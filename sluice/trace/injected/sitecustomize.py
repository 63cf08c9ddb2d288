"""Python runs this first in every process of a traced program; its folder is on PYTHONPATH.

It waits for the program to import torch and attaches the tracer then. A process without torch pays
nothing. Whatever goes wrong in here, the program runs as it would have.
"""

import atexit
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

_HERE = os.path.dirname(os.path.abspath(__file__))
OUT, PACKAGE, SETTINGS = "SLUICE_TRACE_OUT", "SLUICE_TRACE_PACKAGE", "SLUICE_TRACE_SETTINGS"


def _run_the_other_one() -> None:
    """Run the sitecustomize that would have run without this one."""
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != _HERE]
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours


class _TorchWatch:
    """Hears that torch is imported, and attaches when that is done."""

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_attach(module: ModuleType) -> None:
            execute(module)
            _attach()

        spec.loader.exec_module = execute_and_attach  # type: ignore[method-assign]
        return spec


def _attach() -> None:
    try:
        _make_importable()
        import time
        from pathlib import Path

        from sluice.trace.attach import attach, end
        from sluice.trace.settings import TraceSettings
        from sluice.trace.tracer import say_on_stderr

        settings = TraceSettings.parse_json(os.environ[SETTINGS], where=SETTINGS)
        tracer = attach(
            Path(os.environ[OUT]),
            settings,
            environ=os.environ,
            clock=time.perf_counter_ns,
            say=say_on_stderr,
        )
        atexit.register(lambda: end(tracer, raised=_raised()))
    except Exception as error:
        print(f"sluice trace: cannot trace this process ({error!r}).", file=sys.stderr)


def _make_importable() -> None:
    """Find the package that started this, without the other packages beside it."""
    if "sluice" in sys.modules:
        return
    folder = os.environ[PACKAGE]
    spec = importlib.util.spec_from_file_location(
        "sluice", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"no package in {folder}")
    module = importlib.util.module_from_spec(spec)
    sys.modules["sluice"] = module
    spec.loader.exec_module(module)


def _raised() -> str:
    """Return what ended the program, as Python left it for post-mortem tools."""
    kind = getattr(sys, "last_type", None)
    return "" if kind is None else f"{kind.__name__}: {getattr(sys, 'last_value', '')}"


try:
    if OUT in os.environ:
        sys.meta_path.insert(0, _TorchWatch())
finally:
    _run_the_other_one()
