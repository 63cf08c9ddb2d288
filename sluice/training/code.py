"""Which source code determines the bits of a trained model."""

import sys
from pathlib import Path

import sluice
from sluice.digests import digest_files
from sluice.errors import SettingsError
from sluice.imports import import_named
from sluice.models.settings import ModelSettings
from sluice.workloads.workload import Workload

_PACKAGES = ("data", "models", "training", "workloads")


def code_digest(workload: Workload, model: ModelSettings | None = None) -> str:
    """Return the digest of Sluice's own source that training runs, and of the user's modules.

    The user's modules are those that define the workload's class and the classes it inherits
    from, and that of an architecture named by import path. What these import in turn is not
    followed.

    Args:
        workload: The workload.
        model: Names the architecture; only one by import path adds to the digest.

    Raises:
        SettingsError: A class was not read from a file, as in an interactive session, or the
            architecture does not import.
    """
    root = Path(sluice.__file__).parent
    files = {
        f"sluice/{path.relative_to(root).as_posix()}": path
        for package in _PACKAGES
        for path in (root / package).rglob("*.py")
    }
    modules = {cls.__module__ for cls in type(workload).__mro__} - {"builtins", "abc"}
    if model is not None and ":" in model.architecture:
        import_named(model.architecture, what="architecture")
        modules.add(model.architecture.partition(":")[0])
    for name in modules:
        if not name.startswith("sluice."):
            files[name] = _source(name)
    return digest_files(files)


def _source(name: str) -> Path:
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None or not Path(file).is_file():
        raise SettingsError(
            f"The module '{name}' must be read from a file, and there is none.",
            cause="Its source determines the trained model, and other processes import it.",
            fix="Save it as a module and name it by import path.",
        )
    return Path(file)
