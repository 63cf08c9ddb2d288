"""Decides which code a version may run: Sluice's, the pipeline's, or code that the user trusts.

A version names code by import path: its workload, and the class of its network unless that is
built in. When Python imports a module, it runs the module's code. So a path that occurs only in a
version from another registry is rejected before Python imports it, unless the user trusted it with
``sluice registry import --trust``. ``loading.rebuild_workload``, through which everything is built
from a version, makes this check.
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

_IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_BUILT_IN_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_MAX_PATH_CHARS = 300
"""Maximum length of an import path [characters]."""

_UNTRUSTED_CAUSE = "Running it gives the author of the file the permissions of this process."

_SLUICE_CLASS = re.compile(r"(sluice\.(?:workloads|models)\.[a-z_]+):(\w+)", re.ASCII)
"""Import paths of the classes of Sluice. Every version may name them, even an imported one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeAcceptance:
    """Import paths of a version's user code, by the reason why this code may run here."""

    accepted_paths: tuple[str, ...]
    """Import paths that the local pipeline uses as well."""

    trusted_paths: tuple[str, ...]
    """Import paths that the person who imports the version trusts explicitly."""


def named_code_paths(lineage: Lineage) -> tuple[str, ...]:
    """Return the import paths of user code that a version names, without paths of Sluice.

    Raises:
        ContractError: A path is missing, malformed, or belongs to Python's standard library.
    """
    who = f"The version of {lineage.model}"
    config = lineage.resolved_config
    model = config.get("model")
    paths = [config.get("workload")]
    architecture = model.get("architecture") if isinstance(model, dict) else None
    if not (isinstance(architecture, str) and _BUILT_IN_NAME.fullmatch(architecture)):
        paths.append(architecture)
    for path in paths:
        if (
            not isinstance(path, str)
            or len(path) > _MAX_PATH_CHARS
            or _IMPORT_PATH.fullmatch(path) is None
        ):
            raise ContractError(
                f"{who} must name its workload and its architecture as 'module:Class', got "
                f"{str(path)[:80]!r}.",
                cause="Its settings were not written by Sluice, or were changed later.",
                fix="Export it again from the registry that trained it.",
            )
        top_package = path.partition(":")[0].partition(".")[0]
        if top_package in sys.stdlib_module_names:
            raise ContractError(
                f"{who} names '{path}', which is in Python's standard library.",
                cause="The standard library contains no workloads or networks, so the path would "
                "run other code.",
                fix="Do not use the version; find out who created it.",
            )
    return tuple(path for path in map(str, paths) if not _is_sluice_code(path))


def local_code_paths(versions: Iterable[Version]) -> set[str]:
    """Return the import paths of user code that the versions trained in this registry name.

    Imported versions are ignored, and so are versions that name no valid import path.
    """
    paths: set[str] = set()
    for version in versions:
        if not version.is_imported:
            with contextlib.suppress(ContractError):
                paths.update(named_code_paths(version.lineage))
    return paths


def accept_code(
    lineage: Lineage, *, local_paths: Collection[str], trusted_paths: Collection[str]
) -> CodeAcceptance:
    """Decide which code of a version in a file may run here, and for which reason.

    Args:
        lineage: Lineage from the file.
        local_paths: Import paths that the local pipeline uses.
        trusted_paths: Import paths that the user trusts with ``--trust``, as typed.

    Raises:
        ContractError: See ``named_code_paths``.
        UntrustedCode: The version names a path that is in neither ``local_paths`` nor
            ``trusted_paths``.
        SettingsError: ``trusted_paths`` contains a path that the version does not name.
    """
    named_paths = named_code_paths(lineage)
    unknown_paths = sorted(set(trusted_paths) - set(named_paths))
    if unknown_paths:
        raise SettingsError(
            f"--trust must name code of the version, but '{unknown_paths[0]}' is no such code: the "
            f"version names {', '.join(named_paths) or 'only code of Sluice'}.",
            fix="Omit the option, or correct the path.",
        )
    refused_paths = [
        path for path in named_paths if path not in trusted_paths and path not in local_paths
    ]
    if refused_paths:
        raise _untrusted_code_error(
            f"The version of {lineage.model} in the file {_describe_refusal(refused_paths)}",
            refused_paths,
        )
    return CodeAcceptance(
        accepted_paths=tuple(path for path in named_paths if path not in trusted_paths),
        trusted_paths=tuple(path for path in named_paths if path in trusted_paths),
    )


def require_accepted_code(version: Version) -> None:
    """Reject a version whose code must not be imported here.

    Raises:
        ContractError: See ``named_code_paths``.
        UntrustedCode: The version was imported, and names a path that was neither used by the
            pipeline nor trusted by the user when the version was imported.
    """
    named_paths = named_code_paths(version.lineage)
    if not version.is_imported:
        return
    allowed_paths = {*version.accepted_code, *version.trusted_code}
    refused_paths = [path for path in named_paths if path not in allowed_paths]
    if refused_paths:
        raise _untrusted_code_error(
            f"{version.model} version {version.number}, which was imported, "
            f"{_describe_refusal(refused_paths)}",
            refused_paths,
        )


def require_trusted_modules(version: Version) -> None:
    """Reject stored modules of an imported version unless all its paths are explicitly trusted.

    It is not sufficient that the local pipeline uses the same paths, because the stored modules
    may contain other code under the same name.

    Raises:
        ContractError: See ``named_code_paths``.
        UntrustedCode: The version was imported, and not all of its paths are trusted, or it names
            none.
    """
    if not version.is_imported:
        return
    who = f"The code stored with {version.model} version {version.number}, which was imported,"
    named_paths = named_code_paths(version.lineage)
    if not named_paths:
        raise UntrustedCode(
            f"{who} cannot be trusted, because the version names no user code.",
            cause=_UNTRUSTED_CAUSE,
            fix="Use the installed code, because the version only names code of Sluice.",
        )
    refused_paths = [path for path in named_paths if path not in version.trusted_code]
    if refused_paths:
        raise _untrusted_code_error(
            f"{who} may only run if you trust every path that the version names, but "
            f"{', '.join(refused_paths)} {'is' if len(refused_paths) == 1 else 'are'} not trusted.",
            refused_paths,
        )


@functools.lru_cache(maxsize=1024)
def _is_sluice_code(path: str) -> bool:
    """Return whether a path names a class defined in a module of Sluice.

    It is not sufficient that the module belongs to Sluice: whatever the module imports, such as
    torch, is an attribute of it too. The source is parsed and not imported.
    """
    match = _SLUICE_CLASS.fullmatch(path)
    spec = importlib.util.find_spec(match[1]) if match else None
    if match is None or spec is None or spec.origin is None:
        return False
    statements = ast.parse(Path(spec.origin).read_bytes()).body
    return any(isinstance(node, ast.ClassDef) and node.name == match[2] for node in statements)


def _describe_refusal(refused_paths: Collection[str]) -> str:
    return (
        f"may only run code of the pipeline or trusted code, but names {', '.join(refused_paths)}."
    )


def _untrusted_code_error(what: str, refused_paths: Collection[str]) -> UntrustedCode:
    options = " ".join(f"--trust {path}" for path in refused_paths)
    return UntrustedCode(
        what,
        cause=_UNTRUSTED_CAUSE,
        fix="Read that code first. If you trust it and the modules stored in the file, import it "
        f"with: sluice registry import FILE {options}",
    )
