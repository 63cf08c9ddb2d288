"""Identity of the code and libraries that determine the decisions of a search."""

import importlib.metadata
from pathlib import Path

import torch

from sluice.base.digests import digest_files

_REPORT_MODULES = frozenset(
    f"{name}.py"
    for name in (
        "importance",
        "stale_searches",
        "live_table",
        "search_progress",
        "plots",
        "study_summary",
        "study_page",
    )
)
"""Modules that only report on a search. They do not affect which trials run or stop, so they are
not part of the digest."""


def search_code() -> dict[str, str]:
    """Return the versions of the code that determines the decisions of a search, by name.

    The result contains the digest of this package's source, and the versions of the libraries that
    provide random numbers, suggestions and arithmetic. The code of the workload and of the trainer
    is not included: ``training.code.code_digest`` identifies that code.
    """
    package = Path(__file__).parent
    files = {
        name: path
        for path in package.rglob("*.py")
        if (name := str(path.relative_to(package))) not in _REPORT_MODULES
    }
    versions = {name: importlib.metadata.version(name) for name in ("numpy", "optuna", "ray")}
    # torch.__version__ contains the build, such as "+cpu". A build for GPUs uses other numerical
    # libraries.
    return {"search": digest_files(files), "torch": str(torch.__version__)} | versions
