"""Runs at the start of every Python process of a traced program; its folder is on PYTHONPATH.

Attaches the tracer when the program imports torch. A process without torch has almost no overhead.
If the tracer cannot be attached, the program runs untraced.
"""

import atexit
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

_HERE = os.path.dirname(os.path.abspath(__file__))
_OUT_VARIABLE = "SLUICE_TRACE_OUT"
"""Environment variable with the folder of the traces. Processes without it are not traced."""
_PACKAGE_VARIABLE = "SLUICE_TRACE_PACKAGE"
"""Environment variable with the folder of the package ``sluice``."""
_SETTINGS_VARIABLE = "SLUICE_TRACE_SETTINGS"
"""Environment variable with the settings of the trace as JSON."""


def _run_original_sitecustomize() -> None:
    """Run the sitecustomize module that this module shadows, if it exists."""
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != _HERE]
    this_module = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        if this_module is not None:
            sys.modules["sitecustomize"] = this_module


class _TorchImportHook:
    """Import hook that attaches the tracer after torch was imported."""

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.loader is None:
            return spec
        exec_module = spec.loader.exec_module

        def exec_module_and_attach(module: ModuleType) -> None:
            exec_module(module)
            _attach()

        spec.loader.exec_module = exec_module_and_attach  # type: ignore[method-assign]
        return spec


def _attach() -> None:
    try:
        _import_sluice()
        import time
        from pathlib import Path

        from sluice.trace.attach import attach, end
        from sluice.trace.settings import TraceSettings
        from sluice.trace.tracer import print_to_stderr

        settings = TraceSettings.parse_json(
            os.environ[_SETTINGS_VARIABLE], where=_SETTINGS_VARIABLE
        )
        tracer = attach(
            Path(os.environ[_OUT_VARIABLE]),
            settings,
            environ=os.environ,
            clock=time.perf_counter_ns,
            print_line=print_to_stderr,
        )
        atexit.register(lambda: end(tracer, raised=_raised_exception()))
    except Exception as error:
        print(
            f"sluice trace: cannot trace this process ({error!r}). It runs without the tracer.",
            file=sys.stderr,
        )


def _import_sluice() -> None:
    """Import the package ``sluice``, without adding its parent folder to ``sys.path``."""
    if "sluice" in sys.modules:
        return
    folder = os.environ[_PACKAGE_VARIABLE]
    spec = importlib.util.spec_from_file_location(
        "sluice", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{_PACKAGE_VARIABLE} must name the folder of sluice, got {folder}")
    module = importlib.util.module_from_spec(spec)
    sys.modules["sluice"] = module
    spec.loader.exec_module(module)


def _raised_exception() -> str:
    """Return class and message of the exception that ended the program; '' without an exception."""
    exception_class = getattr(sys, "last_type", None)
    if exception_class is None:
        return ""
    return f"{exception_class.__name__}: {getattr(sys, 'last_value', '')}"


try:
    if _OUT_VARIABLE in os.environ:
        sys.meta_path.insert(0, _TorchImportHook())
finally:
    _run_original_sitecustomize()
