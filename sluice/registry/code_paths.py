"""Decides which code a version may run: code of Sluice, of the local pipeline, or trusted code.

A version names code by import path: the class of its workload, and the class of its network if
Sluice does not contain this network. When Python imports a module, it runs the module's code. So a
path that occurs only in a version from another registry is rejected before Python imports it. The
user can trust such a path with ``sluice registry import --trust``. The module ``loading`` makes
this check before it imports the code of a version; no other module imports such code.
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
_BUILT_IN_ARCHITECTURE = re.compile(r"[a-z][a-z0-9_]{0,39}")
_MAX_IMPORT_PATH_CHARS = 300
"""Maximum length of an import path [characters]."""

_UNTRUSTED_CAUSE = "Running it gives the author of the file the permissions of this process."

_SLUICE_CLASS_PATH = re.compile(r"(sluice\.(?:workloads|models)\.[a-z_]+):(\w+)", re.ASCII)
"""Import path of a class of Sluice. Every version may name such a class, even an imported one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeAcceptance:
    """Import paths of a version's user code, by the reason why this code may run here."""

    accepted_paths: tuple[str, ...]
    """Import paths that the local pipeline uses as well."""

    trusted_paths: tuple[str, ...]
    """Import paths that the user trusts with ``--trust``."""


def user_code_paths(lineage: Lineage) -> tuple[str, ...]:
    """Return the import paths of user code that a version names, without paths of Sluice.

    Raises:
        ContractError: A path is missing, malformed, or belongs to Python's standard library.
    """
    version_name = f"The version of {lineage.model}"
    config = lineage.resolved_config
    model_settings = config.get("model")
    paths = [config.get("workload")]
    architecture = model_settings.get("architecture") if isinstance(model_settings, dict) else None
    if not (isinstance(architecture, str) and _BUILT_IN_ARCHITECTURE.fullmatch(architecture)):
        paths.append(architecture)
    for path in paths:
        if (
            not isinstance(path, str)
            or len(path) > _MAX_IMPORT_PATH_CHARS
            or _IMPORT_PATH.fullmatch(path) is None
        ):
            raise ContractError(
                f"{version_name} must name its workload and its architecture as 'module:Class', "
                f"got {str(path)[:80]!r}.",
                cause="The settings of the version were not written by Sluice, or were changed "
                "later.",
                fix="Export the version again from the registry in which it was trained.",
            )
        top_package = path.partition(":")[0].partition(".")[0]
        if top_package in sys.stdlib_module_names:
            raise ContractError(
                f"{version_name} names '{path}', which is in Python's standard library.",
                cause="The standard library contains no workloads or networks, so the path would "
                "run other code.",
                fix="Do not use the version; find out who created it.",
            )
    return tuple(path for path in map(str, paths) if not _is_sluice_code(path))


def local_code_paths(versions: Iterable[Version]) -> set[str]:
    """Return the import paths of user code in the versions that were trained in this registry.

    Imported versions and versions without valid import paths are ignored.
    """
    paths: set[str] = set()
    for version in versions:
        if not version.is_imported:
            with contextlib.suppress(ContractError):
                paths.update(user_code_paths(version.lineage))
    return paths


def accept_code(
    lineage: Lineage, *, local_paths: Collection[str], trusted_paths: Collection[str]
) -> CodeAcceptance:
    """Decide which code of a version in a file may run here, and for which reason.

    Args:
        lineage: Lineage from the file.
        local_paths: Import paths that are used by a version trained in this registry, or by the
            pipeline file of this model if Sluice ships one.
        trusted_paths: Import paths that the user trusts with ``--trust``, as typed.

    Raises:
        ContractError: See ``user_code_paths``.
        UntrustedCode: The version names a path that is in neither ``local_paths`` nor
            ``trusted_paths``.
        SettingsError: ``trusted_paths`` contains a path that the version does not name.
    """
    named_paths = user_code_paths(lineage)
    unknown_paths = sorted(set(trusted_paths) - set(named_paths))
    if unknown_paths:
        raise SettingsError(
            f"--trust must be an import path of the version's code, but the version does not name "
            f"'{unknown_paths[0]}'. It names {', '.join(named_paths) or 'only code of Sluice'}.",
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
        ContractError: See ``user_code_paths``.
        UntrustedCode: The version comes from another registry, and names a path that was not
            accepted when ``sluice registry import`` added it: the local pipeline did not use this
            path, and the user did not trust it.
    """
    named_paths = user_code_paths(version.lineage)
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

    It is not sufficient that the local pipeline uses the same paths. The stored modules may contain
    other code under the same names.

    Raises:
        ContractError: See ``user_code_paths``.
        UntrustedCode: The version was imported. It names a path that is not trusted, or it names no
            user code.
    """
    if not version.is_imported:
        return
    code_name = (
        f"The code stored with {version.model} version {version.number}, which was imported,"
    )
    named_paths = user_code_paths(version.lineage)
    if not named_paths:
        raise UntrustedCode(
            f"{code_name} cannot be trusted, because the version names no user code.",
            cause=_UNTRUSTED_CAUSE,
            fix="Use the installed code. The version names only code of Sluice.",
        )
    refused_paths = [path for path in named_paths if path not in version.trusted_code]
    if refused_paths:
        raise _untrusted_code_error(
            f"{code_name} may only run if you trust every path that the version names, but "
            f"{', '.join(refused_paths)} {'is' if len(refused_paths) == 1 else 'are'} not trusted.",
            refused_paths,
        )


@functools.lru_cache(maxsize=1024)
def _is_sluice_code(path: str) -> bool:
    """Return whether a path names a class that a module of Sluice defines.

    It is not sufficient that the module belongs to Sluice. Everything that the module imports, such
    as torch, is also an attribute of the module. The source is parsed and not imported.
    """
    match = _SLUICE_CLASS_PATH.fullmatch(path)
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
        fix="Read this code first. If you trust it and the modules stored in the file, run: "
        f"sluice registry import FILE {options}",
    )
