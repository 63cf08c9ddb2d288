"""Which code a version may run: Sluice's own, the pipeline's own, or what its importer trusts.

A version names code by import path: its workload, and its network's class when that is no built-in
one. Importing a module runs it, so a path that only a file states is refused before the import.
Every caller that builds something from a version comes through here, by ``loading.rebuild``.
"""

import ast
import contextlib
import functools
import importlib.util
import re
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from sluice.base.errors import ContractError, SettingsError, UntrustedCode
from sluice.registry.lineage import Lineage
from sluice.registry.records import Version

_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_BUILT_IN = re.compile(r"[a-z][a-z0-9_]{0,39}")
_MAX_PATH = 300
"""Longest import path [characters]."""

_SLUICES_OWN = re.compile(r"(sluice\.(?:workloads|models)\.[a-z_]+):(\w+)", re.ASCII)
"""Modules whose classes a version may name wherever it comes from: Sluice comes with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeAcceptance:
    """The paths of a version that are not Sluice's own, by the reason why they may run here."""

    accepted: tuple[str, ...]
    """Paths that are the pipeline's own here."""

    trusted: tuple[str, ...]
    """Paths that the importer named."""


def named_code(lineage: Lineage) -> tuple[str, ...]:
    """Return the import paths of the user's code that a version names, without Sluice's own.

    Raises:
        ContractError: A path is missing, malformed, or leads into Python's standard library.
    """
    who = f"The version of {lineage.model}"
    config = lineage.resolved_config
    model = config.get("model")
    paths = [config.get("workload")]
    architecture = model.get("architecture") if isinstance(model, dict) else None
    if not (isinstance(architecture, str) and _BUILT_IN.fullmatch(architecture)):
        paths.append(architecture)
    for path in paths:
        if not isinstance(path, str) or len(path) > _MAX_PATH or _PATH.fullmatch(path) is None:
            raise ContractError(
                f"{who} must name its workload and its architecture as 'module:Class', got "
                f"{str(path)[:80]!r}.",
                cause="Its settings were not written by Sluice, or were changed.",
                fix="Export it again from the registry that trained it.",
            )
        top = path.partition(":")[0].partition(".")[0]
        if top in sys.stdlib_module_names:
            raise ContractError(
                f"{who} names '{path}', which is in Python's standard library.",
                cause="No workload and no network is there; a path into it runs something else.",
                fix="Do not use the version; find out who made it.",
            )
    return tuple(path for path in map(str, paths) if not _is_sluices_own(path))


def code_trained_here(versions: Iterable[Version]) -> set[str]:
    """Return the import paths of the versions that were trained here, which are the pipeline's own.

    A version from before its workload was recorded names none.
    """
    found: set[str] = set()
    for version in versions:
        if not version.is_imported:
            with contextlib.suppress(ContractError):
                found.update(named_code(version.lineage))
    return found


def accept_code(
    lineage: Lineage, *, own: Collection[str], trust: Collection[str]
) -> CodeAcceptance:
    """Return why the code that a file's version names may run here.

    Args:
        lineage: From the file.
        own: Import paths that the pipeline here has itself.
        trust: Import paths that the importer trusts, as typed.

    Raises:
        ContractError: See ``named_code``.
        UntrustedCode: The version names a path that is neither.
        SettingsError: A trusted path is not one that the version names.
    """
    named = named_code(lineage)
    idle = sorted(set(trust) - set(named))
    if idle:
        raise SettingsError(
            f"--trust must name code of the version, and '{idle[0]}' is not: it names "
            f"{', '.join(named) or 'only code that comes with Sluice'}.",
            fix="Leave it out, or correct the path.",
        )
    refused = [path for path in named if path not in trust and path not in own]
    if refused:
        raise _untrusted(f"The version of {lineage.model} in the file", refused)
    return CodeAcceptance(
        accepted=tuple(path for path in named if path not in trust),
        trusted=tuple(path for path in named if path in trust),
    )


def require_accepted_code(version: Version) -> None:
    """Refuse a version whose code may not be imported here.

    Raises:
        ContractError: See ``named_code``.
        UntrustedCode: It came in a file and names a path that was not accepted then.
    """
    named = named_code(version.lineage)
    if not version.is_imported:
        return
    allowed = {*version.accepted_code, *version.trusted_code}
    refused = [path for path in named if path not in allowed]
    if refused:
        raise _untrusted(f"{version.model} version {version.number}, which was imported,", refused)


def require_trusted_modules(version: Version) -> None:
    """Refuse to run modules that came in a file, unless the importer trusts what they are.

    The pipeline's own path is not enough: the modules in the file only have its name.

    Raises:
        ContractError: See ``named_code``.
        UntrustedCode: The version came in a file, and not all of its paths are trusted.
    """
    if not version.is_imported:
        return
    named = named_code(version.lineage)
    refused = [path for path in named if path not in version.trusted_code]
    if refused or not named:
        raise _untrusted(
            f"The code stored with {version.model} version {version.number}, which was imported,",
            refused,
        )


@functools.lru_cache(maxsize=1024)
def _is_sluices_own(path: str) -> bool:
    """Return whether a path names a class that is written in a module of Sluice's.

    A module's name is not enough: what it imports are attributes of it too, all of torch with them.
    The source is read and nothing is imported.
    """
    match = _SLUICES_OWN.fullmatch(path)
    spec = importlib.util.find_spec(match[1]) if match else None
    if match is None or spec is None or spec.origin is None:
        return False
    written = ast.parse(Path(spec.origin).read_bytes()).body
    return any(isinstance(node, ast.ClassDef) and node.name == match[2] for node in written)


def _untrusted(who: str, paths: Collection[str]) -> UntrustedCode:
    options = " ".join(f"--trust {path}" for path in paths)
    named = ", ".join(paths) or "no code of its own"
    return UntrustedCode(
        f"{who} must run code that is the pipeline's own or trusted, and names {named}.",
        cause="Running it gives the author of the file the rights of this process.",
        fix="Read that code first. If you trust it and the modules stored in the file, import it "
        f"with: sluice registry import FILE {options}"
        if paths
        else "Use the code here: it is Sluice's own.",
    )
