"""Sluice: a gated line from data to a served PyTorch model."""

__version__ = "0.1.0"

_LAZY = {"ModelPipeline": "sluice.pipelines.component"}
"""Modules of the names that are imported when they are used: Dagster takes a second."""


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'sluice' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
