"""A version's own source code, kept as an artifact, and loaded from there when a person asks.

The artifact is a zip archive of Python sources with a manifest; it holds no compiled code and no
pickles, and equal sources give equal bytes. Loading it runs that code with the rights of the
process. Nothing here does so by itself: the caller passes on what a person asked for.

The stored modules have the names that the checkout's modules have. They are imported while those
are set aside, and set aside themselves afterwards: classes that were loaded keep working with the
modules they were loaded from.
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

CodeChoice = Literal["present", "stored"]
"""Whose code a version is loaded with: that of this checkout, or what is stored with it."""

CODE = "code"
"""Role of the archive among a version's artifacts."""

_MANIFEST = "manifest.json"
_EARLIEST = (1980, 1, 1, 0, 0, 0)
"""The only date that an entry has: equal sources give equal bytes."""

_IMPORTING = threading.Lock()
"""Two versions' modules of one name must not be imported at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredModule:
    """One module as it was when the version was trained."""

    source: bytes
    is_package: bool


def pack_code(modules: Mapping[str, StoredModule]) -> bytes:
    """Return a zip archive of modules by dotted name; equal modules give equal bytes."""
    buffer = io.BytesIO()
    manifest = {name: {"package": module.is_package} for name, module in modules.items()}
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        entries = {_MANIFEST: json.dumps(manifest, sort_keys=True).encode()}
        entries |= {f"{name}.py": modules[name].source for name in sorted(modules)}
        for name, content in entries.items():
            archive.writestr(zipfile.ZipInfo(name, _EARLIEST), content)
    return buffer.getvalue()


def unpack_code(content: bytes) -> dict[str, StoredModule]:
    """Return the modules of an archive made by ``pack_code``; nothing is run.

    Raises:
        IntegrityError: It is no such archive.
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
            f"The stored code must be an archive written by Sluice, and is none ({error!r}).",
            fix="Restore the artifact from a backup, or serve from a checkout of the version's "
            "commit.",
        ) from error


@contextlib.contextmanager
def stored_modules(modules: Mapping[str, StoredModule]) -> Iterator[None]:
    """Import the stored modules, and nothing else of their packages, within the context.

    Code that is loaded here keeps its modules. It must not import them again later, from inside a
    function: the name means the checkout's module then, so such a module is refused.

    Args:
        modules: By dotted name.

    Raises:
        ContractError: A module imports another one of them inside a function.
    """
    tops = {name.partition(".")[0] for name in modules}
    _refuse_late_imports(modules, tops)
    finder = _StoredFinder(modules, tops)
    with _IMPORTING:
        aside = _take_out(tops)
        sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            sys.meta_path.remove(finder)
            _take_out(tops)
            sys.modules.update(aside)


def _take_out(tops: set[str]) -> dict[str, ModuleType]:
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
                        "function, so it cannot be loaded apart from this checkout.",
                        cause="The import would find the checkout's module and not the stored one.",
                        fix="Serve from a checkout of the version's commit. Write such imports at "
                        "the top of the module for later versions.",
                    )


def _imported(node: ast.AST) -> Sequence[str]:
    """Return what a statement imports by name; "" for a relative import, of the same package."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return ["" if node.level else node.module or ""]
    return []


class _StoredFinder(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Finds the stored modules and refuses every other one of their packages."""

    def __init__(self, modules: Mapping[str, StoredModule], tops: set[str]) -> None:
        self._modules = modules
        self._tops = tops
        self._archive = short(digest_bytes(pack_code(modules)))

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002  the names are the protocol's
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
        module.__file__ = self._file(module.__name__)  # module code may name its folder
        super().exec_module(module)

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.get_source(fullname), self._file(fullname), "exec", dont_inherit=True)

    def _is_parent(self, fullname: str) -> bool:
        return any(name.startswith(f"{fullname}.") for name in self._modules)

    def _file(self, fullname: str) -> str:
        return f"<stored code {self._archive}>/{fullname}.py"
