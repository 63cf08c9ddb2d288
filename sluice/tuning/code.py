"""Which code and which libraries determine the decisions of a search."""

import importlib.metadata
from pathlib import Path

import torch

from sluice.base.digests import digest_files

_ONLY_SHOWS = frozenset(
    f"{name}.py"
    for name in (
        "importance",
        "left_behind",
        "live_table",
        "news",
        "plots",
        "study",
        "study_page",
    )
)
"""Modules that read a finished search: with others the same trials are run and stopped."""


def search_code() -> dict[str, str]:
    """Return what the decisions follow from besides data and settings, by name.

    That is the digest of this package's source, and the versions of the libraries whose random
    numbers, proposals and arithmetic enter. The workload's and the trainer's code is told by
    ``training.code.code_digest``.
    """
    package = Path(__file__).parent
    files = {
        name: path
        for path in package.rglob("*.py")
        if (name := str(path.relative_to(package))) not in _ONLY_SHOWS
        and not name.startswith("benchmark/")
    }
    versions = {name: importlib.metadata.version(name) for name in ("numpy", "optuna", "ray")}
    # With what it was built for: a build for GPUs computes with other libraries.
    return {"search": digest_files(files), "torch": str(torch.__version__)} | versions
