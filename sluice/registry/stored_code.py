"""A version's source code, stored as an artifact and loaded from there on explicit request.

The artifact is a zip archive of Python sources with a manifest, without compiled code or pickles.
Equal sources give equal bytes. Loading the code executes it with the permissions of the process, so
callers load it only if a person requested it.

The stored modules have the same names as the modules of the checkout. While stored modules are
imported, the modules of the checkout are removed from ``sys.modules``, and restored afterwards.
Classes that were loaded from stored modules continue to use the stored modules.
"""

import ast
import contextlib
import importlib.abc
import importlib.util
import io
import json
import sys
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Literal

from sluice.base.digests import digest_bytes, short
from sluice.base.errors import ContractError, IntegrityError

CodeSource = Literal["current", "stored"]
"""Code with which a version is loaded: code of the checkout, or code stored with the version."""

CODE_ROLE = "code"
"""Role of the code archive among the artifacts of a version."""

_MANIFEST = "manifest.json"
_ENTRY_DATE = (1980, 1, 1, 0, 0, 0)
"""Fixed date of all entries of the archive, so that equal sources give equal bytes. It is the
earliest date of the zip format."""

_IMPORT_LOCK = threading.Lock()
"""Prevents concurrent imports of modules with the same name from two versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredModule:
    """Source of one module at the time when the version was trained."""

    source: bytes
    is_package: bool


def pack_code(modules: Mapping[str, StoredModule]) -> bytes:
    """Return a zip archive of modules; equal modules give equal bytes.

    Args:
        modules: Modules by dotted name.
    """
    buffer = io.BytesIO()
    manifest = {name: {"package": module.is_package} for name, module in modules.items()}
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        entries = {_MANIFEST: json.dumps(manifest, sort_keys=True).encode()}
        entries |= {f"{name}.py": modules[name].source for name in sorted(modules)}
        for name, content in entries.items():
            archive.writestr(zipfile.ZipInfo(name, _ENTRY_DATE), content)
    return buffer.getvalue()


def unpack_code(content: bytes) -> dict[str, StoredModule]:
    """Return the modules of an archive written by ``pack_code``, without executing them.

    Raises:
        IntegrityError: The content is not such an archive.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            manifest = json.loads(archive.read(_MANIFEST))
            return {
                name: StoredModule(
                    source=archive.read(f"{name}.py"), is_package=bool(entry["package"])
                )
                for name, entry in manifest.items()
            }
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError, AttributeError) as error:
        raise IntegrityError(
            f"The stored code is not an archive written by Sluice ({error!r}).",
            fix="Restore the artifact from a backup, or serve from a checkout of the version's "
            "commit.",
        ) from error


@contextlib.contextmanager
def use_stored_modules(modules: Mapping[str, StoredModule]) -> Iterator[None]:
    """Context in which imports of the stored packages use the stored modules.

    A stored module that imports another stored module inside a function is rejected. Such an import
    may run after the context, and would then find the module of the checkout.

    Args:
        modules: Modules by dotted name.

    Raises:
        ContractError: A module imports another stored module inside a function.
    """
    packages = {name.partition(".")[0] for name in modules}
    _reject_late_imports(modules, packages)
    finder = _StoredModuleFinder(modules, packages)
    with _IMPORT_LOCK:
        checkout_modules = _remove_modules(packages)
        sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            sys.meta_path.remove(finder)
            _remove_modules(packages)
            sys.modules.update(checkout_modules)


def _remove_modules(packages: set[str]) -> dict[str, ModuleType]:
    """Remove all modules of top-level packages from ``sys.modules``, and return them by name."""
    names = [name for name in sys.modules if name.partition(".")[0] in packages]
    return {name: sys.modules.pop(name) for name in names}


def _reject_late_imports(modules: Mapping[str, StoredModule], packages: set[str]) -> None:
    for name, module in modules.items():
        for function in ast.walk(ast.parse(module.source)):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for node in ast.walk(function):
                late_imports = [
                    module_name
                    for module_name in _imported_modules(node)
                    if module_name.partition(".")[0] in {*packages, ""}
                ]
                if late_imports:
                    raise ContractError(
                        f"The stored module {name} imports {late_imports[0] or 'a sibling module'} "
                        "inside a function, so it cannot be loaded separately from this checkout.",
                        cause="The import would find the module of the checkout, not the stored "
                        "module.",
                        fix="Serve from a checkout of the version's commit. For later versions, "
                        "move such imports to the top of the module.",
                    )


def _imported_modules(node: ast.AST) -> Sequence[str]:
    """Return the names of the modules that a statement imports; "" for a relative import."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return ["" if node.level else node.module or ""]
    return []


class _StoredModuleFinder(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Meta path finder for the stored modules; rejects other modules of their packages."""

    def __init__(self, modules: Mapping[str, StoredModule], packages: set[str]) -> None:
        self._modules = modules
        self._packages = packages
        self._archive_digest = short(digest_bytes(pack_code(modules)))

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002  names of the protocol
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in self._packages:
            return None
        if fullname not in self._modules and not self._is_parent(fullname):
            raise ModuleNotFoundError(
                f"No module named '{fullname}' in the stored code {self._archive_digest}",
                name=fullname,
            )
        return importlib.util.spec_from_loader(fullname, self, origin=self._file_name(fullname))

    def is_package(self, fullname: str) -> bool:
        module = self._modules.get(fullname)
        return module is None or module.is_package

    def get_source(self, fullname: str) -> str:
        module = self._modules.get(fullname)  # None for a folder without __init__.py
        return "" if module is None else importlib.util.decode_source(module.source)

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = self._file_name(module.__name__)  # modules may use their __file__
        super().exec_module(module)

    def get_code(self, fullname: str) -> CodeType:
        source, file_name = self.get_source(fullname), self._file_name(fullname)
        return compile(source, file_name, "exec", dont_inherit=True)

    def _is_parent(self, fullname: str) -> bool:
        """Return whether a name is a package that contains a stored module."""
        return any(name.startswith(f"{fullname}.") for name in self._modules)

    def _file_name(self, fullname: str) -> str:
        return f"<stored code {self._archive_digest}>/{fullname}.py"
