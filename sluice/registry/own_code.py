"""The modules of a user that a workload and its network consist of, and whether they changed.

Own modules are those that are read from a source file outside the standard library, the installed
packages and Sluice: the modules of the workload's classes and of the architecture, and what they
import, transitively. Their content is what is compared; where it lies does not matter.
"""

import ast
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Literal
from weakref import WeakKeyDictionary

import sluice
from sluice.artifacts import ArtifactStore
from sluice.digests import digest_bytes, short
from sluice.errors import OtherCode
from sluice.imports import import_named
from sluice.models.settings import ModelSettings
from sluice.registry.lineage import Lineage
from sluice.registry.stored_code import CODE, StoredModule, pack_code, unpack_code
from sluice.workloads.workload import Workload

_READ: WeakKeyDictionary[ModuleType, StoredModule] = WeakKeyDictionary()
"""Each module of this process as it was read first. A file that was changed since is not what the
process runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeComparison:
    """A version's own modules beside those of this process."""

    outcome: Literal["same", "other", "unknown"]
    """"unknown" for a version that was stored without its code."""

    before: str
    """Digest of the version's own modules; "" when unknown."""

    now: str
    """Digest of the own modules of this process."""

    differences: tuple[str, ...] = ()
    """What differs, a phrase for each module."""


def collect_own_modules(workload: Workload, model: ModelSettings) -> dict[str, StoredModule]:
    """Return the user's modules that the workload and the network consist of, by dotted name.

    A module is as this process read it first: what is in memory, not what lies on disk since.

    Raises:
        SettingsError: The architecture does not import.
    """
    waiting = {cls.__module__ for cls in type(workload).__mro__}
    if ":" in model.architecture:
        import_named(model.architecture, what="architecture")
        waiting.add(model.architecture.partition(":")[0])
    found: dict[str, StoredModule] = {}
    looked_at: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in looked_at:
            continue
        looked_at.add(name)
        module = _read(name)
        if module is not None:
            found[name] = module
            waiting.update(_imports(name, module))
    return found


def compare_code(
    lineage: Lineage, store: ArtifactStore, workload: Workload, model: ModelSettings
) -> CodeComparison:
    """Compare a version's own modules with those of this process.

    Raises:
        SettingsError: The architecture does not import.
        IntegrityError: The stored code is missing or damaged.
    """
    present = collect_own_modules(workload, model)
    now = digest_bytes(pack_code(present))
    before = lineage.artifacts.get(CODE, "")
    if not before:
        return CodeComparison(outcome="unknown", before="", now=now)
    if before == now:
        return CodeComparison(outcome="same", before=before, now=now)
    differences = tuple(_differences(unpack_code(store.get(before)), present))
    return CodeComparison(outcome="other", before=before, now=now, differences=differences)


def require_same_code(who: str, lineage: Lineage, comparison: CodeComparison) -> None:
    """Refuse a version of other code.

    Args:
        who: Names the version.
        lineage: Of the version.
        comparison: From ``compare_code``.

    Raises:
        OtherCode: The version was trained with other code than this process runs.
    """
    if comparison.outcome == "other":
        raise OtherCode(
            f"{who} must run the code that it was trained with ({short(comparison.before)}), and "
            f"the code here is {short(comparison.now)}: {'; '.join(comparison.differences)}.",
            cause="Its weights in a network of other code make other predictions than those that "
            "the gates judged.",
            fix=f"Restore that code ({_commit(lineage)}), or train again, or start with the code "
            f"that is stored with the version: sluice serve {lineage.model} --code stored",
        )


def code_sentence(who: str, lineage: Lineage, comparison: CodeComparison) -> str:
    """Return whether the code went back with a version, for a rollback."""
    match comparison.outcome:
        case "same":
            return f"The code here is that of {who}."
        case "unknown":
            return uncompared(who, lineage)
        case "other":
            return (
                f"The code did not go back: {who} was trained with other code "
                f"({short(comparison.before)}; here {short(comparison.now)}): "
                f"{'; '.join(comparison.differences)}. This checkout does not serve it until that "
                f"code is restored ({_commit(lineage)}), or with: sluice serve {lineage.model} "
                "--code stored"
            )


def uncompared(who: str, lineage: Lineage) -> str:
    """Return a warning for a version that was stored without its code; "" for every other."""
    if CODE in lineage.artifacts:
        return ""
    return f"{who} was stored without its code, so the code here cannot be compared with it."


def _commit(lineage: Lineage) -> str:
    changed = " with uncommitted changes" if lineage.git.dirty else ""
    return f"git commit {lineage.git.commit[:12]}{changed}"


def _differences(
    before: Mapping[str, StoredModule], now: Mapping[str, StoredModule]
) -> Iterator[str]:
    for name in sorted(before.keys() | now.keys()):
        if name not in now:
            yield f"module {name} is gone"
        elif name not in before:
            yield f"module {name} is new"
        elif before[name] != now[name]:
            yield f"module {name} changed"


def _read(name: str) -> StoredModule | None:
    """Return a module of the user's, or None for any other."""
    module = sys.modules.get(name)
    if module is not None and module in _READ:
        return _READ[module]
    origin = _find(name) if module is None else getattr(module, "__file__", None)
    if origin is None or not origin.endswith(".py") or _is_foreign(name, Path(origin)):
        return None
    found = StoredModule(
        source=Path(origin).read_bytes(), is_package=Path(origin).name == "__init__.py"
    )
    if module is not None:
        _READ[module] = found
    return found


def _find(name: str) -> str | None:
    """Return the file of a module that is not imported yet, without importing anything."""
    folders, spec = None, None
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:end]), folders)
        if spec is None:
            return None
        folders = spec.submodule_search_locations
        if folders is None and end < len(parts):
            return None
    return None if spec is None else spec.origin


def _is_foreign(name: str, file: Path) -> bool:
    if name.partition(".")[0] == sluice.__name__:
        return True
    paths = sysconfig.get_paths()
    folders = {Path(paths[key]).resolve() for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    return any(file.resolve().is_relative_to(folder) for folder in folders)


def _imports(name: str, module: StoredModule) -> Iterator[str]:
    """Yield every name that a module may import, its parents included."""
    parts = name.split(".")
    yield from (".".join(parts[:end]) for end in range(1, len(parts)))
    package = parts if module.is_package else parts[:-1]
    for node in ast.walk(ast.parse(module.source)):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            targets = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        else:
            continue
        for target in targets:
            steps = target.split(".")
            yield from (".".join(steps[:end]) for end in range(1, len(steps) + 1))
