"""Identity of the code that determines the bits of a trained model.

The digest covers:

- the module of the workload, and the module of an architecture given by import path;
- all user modules that these modules import, directly or indirectly;
- the versions of the installed distributions that these modules import;
- the data files that the workload declares;
- Sluice's own code for data, models, training and workloads, and Sluice's other modules that the
  user modules import.
"""

import errno
import functools
import hashlib
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import sluice
from sluice.base.digests import digest_bytes, digest_files, digest_json
from sluice.base.errors import SettingsError
from sluice.base.imports import import_object
from sluice.models.settings import ModelSettings
from sluice.training.code_identity import CodeIdentity
from sluice.training.distributions import distribution_of
from sluice.training.import_graph import ImportGraph, follow_imports
from sluice.training.settings import TrainSettings
from sluice.workloads.workload import Workload

_SLUICE_PACKAGES = ("data", "models", "training", "workloads")
"""Packages of Sluice whose code determines the bits of a trained model."""

_NUMERICAL_LIBRARIES = ("numpy", "pandas", "torch")
"""Distributions that every training uses; their versions are always part of the identity."""


def code_digest(workload: Workload, model: ModelSettings | None = None) -> str:
    """Return the digest of all code that determines the bits of a model; see ``identify_code``."""
    return identify_code(workload, model).digest


def identify_code(workload: Workload, model: ModelSettings | None = None) -> CodeIdentity:
    """Return the identity of all code that determines the bits of a model.

    Args:
        workload: The workload.
        model: Settings that name the architecture. Only an import path adds to the identity,
            because Sluice's own code contains the built-in architectures.

    Raises:
        SettingsError: A class was not read from a file (for example in an interactive session), the
            architecture cannot be imported, or a declared data file is missing.

    Cost:
        About 0.1 s for the first call in a process, milliseconds for a later call. Every call reads
        the sources, but parses only changed sources. Unchanged data files are read once.
    """
    graph = follow_code(workload, model)
    modules = {name: digest_bytes(path.read_bytes()) for name, path in graph.own_modules.items()}
    modules |= {
        name: digest_bytes(path.read_bytes())
        for name, path in graph.sluice_modules.items()
        # The package ``sluice`` itself only re-exports names of other modules.
        if name != "sluice" and name.split(".")[1] not in _SLUICE_PACKAGES
    }
    return CodeIdentity(
        modules=modules | _sluice_package_digests(),
        distributions=graph.distributions | _numerical_libraries(),
        data_files=dict(_data_file_digests(workload)),
        not_followed=tuple(sorted(graph.not_followed)),
    )


def optimizer_code(training: TrainSettings) -> dict[str, str]:
    """Return ``{"optimizer_code": digest}`` for an optimizer given by import path, else ``{}``.

    The digest is stored beside the settings and is not part of ``identify_code``. The load of a
    trained model needs only the code of its network, and must not import the optimizer.

    Args:
        training: Settings that name the optimizer.

    Raises:
        SettingsError: The optimizer cannot be imported, or was not read from a file.
    """
    path = training.optimizer
    if ":" not in path:
        return {}
    import_object(path, what="optimizer")
    module = path.partition(":")[0]
    _require_file(module)
    graph = follow_imports([module])
    identity = CodeIdentity(
        modules={name: digest_bytes(file.read_bytes()) for name, file in graph.own_modules.items()},
        distributions=graph.distributions,
        data_files={},
    )
    return {"optimizer_code": identity.digest}


def follow_code(workload: Workload, model: ModelSettings | None = None) -> ImportGraph:
    """Return the import graph of the user's modules that define a workload and its network.

    Args:
        workload: The workload.
        model: Settings that name the architecture; only an import path adds a module.

    Raises:
        SettingsError: A class was not read from a file, or the architecture cannot be imported.
    """
    roots = {
        cls.__module__
        for owner in (type(workload), workload.settings_type)
        for cls in owner.__mro__
    } - {"builtins", "abc"}
    if model is not None and ":" in model.architecture:
        import_object(model.architecture, what="architecture")
        roots.add(model.architecture.partition(":")[0])
    user_modules = {name for name in roots if not _is_library(name)}
    for name in user_modules:
        _require_file(name)
    return follow_imports(sorted(user_modules))


def _sluice_package_digests() -> dict[str, str]:
    root = Path(sluice.__file__).parent
    return {
        f"sluice.{package}": digest_files(
            {path.relative_to(root).as_posix(): path for path in (root / package).rglob("*.py")}
        )
        for package in _SLUICE_PACKAGES
    }


def _numerical_libraries() -> dict[str, str]:
    versions = {}
    for name in _NUMERICAL_LIBRARIES:
        file = getattr(sys.modules.get(name), "__file__", None)
        distribution = distribution_of(Path(file).parent.parent, name) if file else None
        if distribution is not None:
            versions[distribution.name] = distribution.version
    return versions


def _data_file_digests(workload: Workload) -> Iterator[tuple[str, str]]:
    for name in workload.data_files:
        path = workload.data_path(name)
        files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        try:
            digests = {p.relative_to(path.parent).as_posix(): _content_digest(p) for p in files}
            yield name, digest_json(digests)
        except OSError as error:
            raise SettingsError(
                f"The data file '{name}' that {type(workload).__name__} declares cannot be read "
                f"from {path}: {error.strerror or error}.",
                cause="A relative path is relative to the folder of the workload's module.",
                fix="Create the file at that path, or correct the workload's data_files.",
            ) from error


def _content_digest(file: Path) -> str:
    """Return the digest of a file; read again only if size, modification time or inode changed."""
    status = file.stat()
    if not stat.S_ISREG(status.st_mode):  # reading a device might never end
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a regular file")
    return _cached_digest(file, status.st_size, status.st_mtime_ns, status.st_ino)


@functools.lru_cache(maxsize=4096)
def _cached_digest(file: Path, *status: int) -> str:  # noqa: ARG001 - part of the cache key
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _is_library(name: str) -> bool:
    """Return whether a module belongs to Sluice, pydantic or Python, not to the user."""
    top_level = name.split(".")[0]
    return top_level in ("sluice", "pydantic") or (
        top_level in sys.stdlib_module_names and top_level != "__main__"
    )


def _require_file(name: str) -> None:
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None or not Path(file).is_file():
        raise SettingsError(
            f"The module '{name}' must be read from a file, but it has no source file.",
            cause="The source is part of the model's identity, and other processes import the "
            "module.",
            fix="Save the code as a module and use its import path.",
        )
