"""A version's source code, stored as an artifact and loaded from there on explicit request.

The artifact is a zip archive of Python sources with a manifest, without compiled code or pickles;
equal sources give equal bytes. Loading it runs that code with the permissions of the process, so
callers do it only if a person requested it.

The stored modules have the same names as the modules of the checkout, which are removed from
``sys.modules`` during the import and restored afterwards. Loaded classes keep working with the
modules from which they were loaded.
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
"""Code with which a version is loaded: that of the checkout, or the code stored with it."""

CODE_ROLE = "code"
"""Role of the code archive among the artifacts of a version."""

_MANIFEST = "manifest.json"
_EARLIEST = (1980, 1, 1, 0, 0, 0)
"""Fixed date of all entries, so that equal sources give equal bytes."""

_IMPORTING = threading.Lock()
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
            archive.writestr(zipfile.ZipInfo(name, _EARLIEST), content)
    return buffer.getvalue()


def unpack_code(content: bytes) -> dict[str, StoredModule]:
    """Return the modules of an archive written by ``pack_code``; nothing is executed.

    Raises:
        IntegrityError: The content is not such an archive.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            manifest = json.loads(archive.read(_MANIFEST))
            return {
                name: StoredModule(
                    source=archive.read(f"{name}.py"), is_package=bool(facts["package"])
                )
                for name, facts in manifest.items()
            }
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError, AttributeError) as error:
        raise IntegrityError(
            f"The stored code is not an archive written by Sluice ({error!r}).",
            fix="Restore the artifact from a backup, or serve from a checkout of the version's "
            "commit.",
        ) from error


@contextlib.contextmanager
def stored_modules(modules: Mapping[str, StoredModule]) -> Iterator[None]:
    """Resolve imports of the stored packages from the stored modules, inside the block.

    Modules with imports of stored modules inside functions are rejected: such an import runs after
    the block and would find the module of the checkout.

    Args:
        modules: Modules by dotted name.

    Raises:
        ContractError: A module imports another stored module inside a function.
    """
    tops = {name.partition(".")[0] for name in modules}
    _refuse_late_imports(modules, tops)
    finder = _StoredFinder(modules, tops)
    with _IMPORTING:
        aside = _remove_modules(tops)
        sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            sys.meta_path.remove(finder)
            _remove_modules(tops)
            sys.modules.update(aside)


def _remove_modules(tops: set[str]) -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name.partition(".")[0] in tops]
    return {name: sys.modules.pop(name) for name in names}


def _refuse_late_imports(modules: Mapping[str, StoredModule], tops: set[str]) -> None:
    for name, module in modules.items():
        for function in ast.walk(ast.parse(module.source)):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for node in ast.walk(function):
                late = [t for t in _imported(node) if t.partition(".")[0] in {*tops, ""}]
                if late:
                    raise ContractError(
                        f"The stored module {name} imports {late[0] or 'a sibling'} inside a "
                        "function, so it cannot be loaded separately from this checkout.",
                        cause="The import would find the module of the checkout, not the stored "
                        "one.",
                        fix="Serve from a checkout of the version's commit. For later versions, "
                        "move such imports to the top of the module.",
                    )


def _imported(node: ast.AST) -> Sequence[str]:
    """Return the modules that a statement imports; "" for a relative import."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return ["" if node.level else node.module or ""]
    return []


class _StoredFinder(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Meta path finder for the stored modules; rejects other modules of their packages."""

    def __init__(self, modules: Mapping[str, StoredModule], tops: set[str]) -> None:
        self._modules = modules
        self._tops = tops
        self._archive = short(digest_bytes(pack_code(modules)))

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002  names of the protocol
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in self._tops:
            return None
        if fullname not in self._modules and not self._is_parent(fullname):
            raise ModuleNotFoundError(
                f"No module named '{fullname}' in the stored code {self._archive}", name=fullname
            )
        return importlib.util.spec_from_loader(fullname, self, origin=self._file(fullname))

    def is_package(self, fullname: str) -> bool:
        module = self._modules.get(fullname)
        return module is None or module.is_package

    def get_source(self, fullname: str) -> str:
        module = self._modules.get(fullname)  # a folder without __init__.py has none
        return "" if module is None else importlib.util.decode_source(module.source)

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = self._file(module.__name__)  # modules may use their __file__
        super().exec_module(module)

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.get_source(fullname), self._file(fullname), "exec", dont_inherit=True)

    def _is_parent(self, fullname: str) -> bool:
        return any(name.startswith(f"{fullname}.") for name in self._modules)

    def _file(self, fullname: str) -> str:
        return f"<stored code {self._archive}>/{fullname}.py"
