"""Follows the imports of a program's own modules in their source, without running them.

A module is one of the program's own modules if it belongs neither to an installed distribution, nor
to Sluice, nor to Python's standard library. All imports in its source are followed, also inside
functions. An import whose name is computed at run time cannot be followed and is reported.
"""

import ast
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.machinery import BYTECODE_SUFFIXES, EXTENSION_SUFFIXES, SOURCE_SUFFIXES
from pathlib import Path

from sluice.base.digests import digest_bytes
from sluice.training.distributions import Distribution, distribution_of

_SLUICE = "sluice"
"""Name of Sluice's own package, whose modules are recorded and not followed."""

_DYNAMIC_CALLS = frozenset(
    {
        "__import__",
        "import_module",
        "run_path",
        "run_module",
        "spec_from_file_location",
        "exec",
        "eval",
    }
)
"""Functions that may run code whose name or location cannot be read from the source."""


@dataclass(slots=True)
class ImportGraph:
    """A program's own modules and their dependencies."""

    own_modules: dict[str, Path] = field(default_factory=dict)
    """File of each own module, by dotted name."""

    sluice_modules: dict[str, Path] = field(default_factory=dict)
    """File of each module of Sluice that an own module imports; not followed."""

    distributions: dict[str, str] = field(default_factory=dict)
    """Version of each installed distribution that an own module imports, by distribution name."""

    not_followed: set[str] = field(default_factory=set)
    """Places that may run code outside of this graph: imports and calls as 'module, line N: call',
    and modules whose source cannot be followed as 'module: reason'."""


def follow_imports(roots: Iterable[str]) -> ImportGraph:
    """Return the graph of all imports that start at the given modules.

    Args:
        roots: Dotted names of modules. A module that Python has already imported is read from its
            loaded file; any other module is searched for on ``sys.path``.
    """
    graph, finder = ImportGraph(), _Finder()
    pending_names = list(roots)
    visited: set[str] = set()
    while pending_names:
        name = pending_names.pop()
        if name in visited or _is_standard_library(name):
            continue
        visited.add(name)
        module = finder.find(name)
        if module is None:
            continue
        # Sluice's modules come first, because Sluice may be installed as a distribution.
        if name.split(".")[0] == _SLUICE:
            if module.file is not None:
                graph.sluice_modules[name] = module.file
            continue
        distribution = finder.distribution(name)
        if distribution is not None:
            graph.distributions[distribution.name] = distribution.version
        else:
            pending_names += _parents(name)
            if module.file is not None:
                graph.own_modules[name] = module.file
                pending_names += _read_imports(name, module, graph)
    return graph


def _read_imports(name: str, module: "_Module", graph: ImportGraph) -> Iterator[str]:
    """Yield the modules that a module imports; record in ``graph`` what cannot be followed."""
    assert module.file is not None
    if not module.file.name.endswith(tuple(SOURCE_SUFFIXES)):
        graph.not_followed.add(f"{name}: compiled, its imports are unknown")
        return
    content = module.file.read_bytes()
    imports = _cached_imports(digest_bytes(content), content)
    graph.not_followed |= {f"{name}, line {line}: {call}" for line, call in imports.dynamic_calls}
    package = name if module.is_package else name.rpartition(".")[0]
    for level, target in imports.targets:
        if not level:
            yield target
        elif package:
            parts = package.split(".")
            yield ".".join([*parts[: len(parts) - level + 1], *([target] if target else [])])


@dataclass(frozen=True, slots=True)
class _Imports:
    """Imports and dynamic calls in the source of one module."""

    targets: tuple[tuple[int, str], ...]
    """Imported names as (level, dotted name). Level 0 is an absolute import. For ``from a import
    b``, both 'a' and 'a.b' are targets, because 'b' may be a module or an attribute."""

    dynamic_calls: tuple[tuple[int, str], ...]
    """Calls that cannot be followed, as (line, call)."""


_imports_by_digest: dict[str, _Imports] = {}
"""Cache by the digest of the source, so that a process parses each version of a file once."""


def _cached_imports(digest: str, content: bytes) -> _Imports:
    if digest not in _imports_by_digest:
        _imports_by_digest[digest] = _parse(content)
    return _imports_by_digest[digest]


def _parse(content: bytes) -> _Imports:
    try:
        tree = ast.parse(content)
    except SyntaxError as error:
        return _Imports((), ((error.lineno or 0, "the source does not parse"),))
    targets: list[tuple[int, str]] = []
    dynamic_calls: list[tuple[int, str]] = []
    nodes = list(_executed_nodes(tree))
    aliases = {
        alias.asname or alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name in _DYNAMIC_CALLS
    }
    literal_calls: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            targets += [(0, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            targets.append((node.level, base))
            dot = "." if base else ""
            targets += [(node.level, f"{base}{dot}{a.name}") for a in node.names if a.name != "*"]
        elif isinstance(node, ast.Call) and (literal := _literal_import(node)):
            targets.append((0, literal))
            literal_calls.add(id(node.func))
    for node in nodes:
        name = _dynamic_name(node, aliases)
        if name and id(node) not in literal_calls:
            dynamic_calls.append((node.lineno, f"{name}(...)"))  # type: ignore[attr-defined]
    return _Imports(tuple(targets), tuple(sorted(set(dynamic_calls))))


def _executed_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield every node except those under ``if TYPE_CHECKING``, which never run."""
    pending_nodes: list[ast.AST] = [tree]
    while pending_nodes:
        node = pending_nodes.pop()
        yield node
        children = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.If) and _is_type_checking(node.test):
            children = list(node.orelse)
        pending_nodes += children


def _is_type_checking(test: ast.expr) -> bool:
    """Return whether a condition is exactly ``TYPE_CHECKING``."""
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    return bool(name == "TYPE_CHECKING")


def _dynamic_name(node: ast.AST, aliases: set[str]) -> str:
    """Return the name of a function that may run unknown code; "" for any other node.

    ``aliases`` are the names under which the module imported such functions with ``from ...
    import``. ``exec`` and ``eval`` count only as builtins: ``model.eval()`` is a method of another
    object.
    """
    if isinstance(node, ast.Name):
        return node.id if node.id in aliases or node.id in ("__import__", "exec", "eval") else ""
    if not isinstance(node, ast.Attribute) or node.attr not in _DYNAMIC_CALLS:
        return ""
    owner = getattr(node.value, "id", "")
    return node.attr if node.attr not in ("eval", "exec") or owner == "builtins" else ""


def _literal_import(call: ast.Call) -> str:
    """Return the module of ``import_module("a.b")``; "" if the name is computed."""
    function = call.func
    function_name = (
        function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    )
    if function_name not in ("import_module", "__import__") or len(call.args) != 1 or call.keywords:
        return ""
    name = getattr(call.args[0], "value", None)
    return name if isinstance(name, str) and not name.startswith(".") else ""


@dataclass(frozen=True, slots=True)
class _Module:
    """Location of a module."""

    file: Path | None
    """Source or compiled file; None for a namespace package."""

    folders: tuple[Path, ...]
    """Folders of its submodules; empty if the module is not a package."""

    @property
    def is_package(self) -> bool:
        return bool(self.folders)


class _Finder:
    """Finds the files of modules like Python's import system, without importing parent packages."""

    def __init__(self) -> None:
        self._modules: dict[str, _Module | None] = {}

    def find(self, name: str) -> _Module | None:
        """Return the location of a module, or None if it does not exist."""
        if name not in self._modules:
            self._modules[name] = _loaded_module(name) or self._search(name)
        return self._modules[name]

    def distribution(self, name: str) -> Distribution | None:
        """Return the distribution that installed a module, or None for an own module."""
        top_level = name.split(".")[0]
        module = self.find(top_level)
        if module is None or (module.file is None and not module.folders):
            return None
        if module.is_package and module.file is None:
            # A namespace package may contain modules of several distributions.
            return self._namespace_distribution(name, module)
        path = module.file or module.folders[0]
        return distribution_of(path.parent.parent if module.is_package else path.parent, top_level)

    def _namespace_distribution(self, name: str, namespace: _Module) -> Distribution | None:
        """Return the distribution of a module in a namespace package; None if unknown."""
        module = self.find(name)
        if module is None or module.file is None:
            return None
        folders = [folder for folder in namespace.folders if module.file.is_relative_to(folder)]
        return distribution_of(folders[0].parent, name) if folders else None

    def _search(self, name: str) -> _Module | None:
        parent, _, inner_name = name.rpartition(".")
        if not parent:
            return _search_folders(
                inner_name, [Path(entry or ".") for entry in sys.path]
            ) or _search_with_finders(name)
        package = self.find(parent)
        return _search_folders(inner_name, package.folders) if package is not None else None


def _loaded_module(name: str) -> _Module | None:
    """Return the location of a module that Python has already imported; None otherwise."""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if module is None or (file is None and not hasattr(module, "__path__")):
        return None
    folders = tuple(Path(folder) for folder in getattr(module, "__path__", ()))
    return _Module(Path(file) if file and Path(file).is_file() else None, folders)


def _search_folders(name: str, folders: Iterable[Path]) -> _Module | None:
    """Search for a module in folders, in Python's order; ``name`` is without parent packages."""
    portions: list[Path] = []
    for folder in folders:
        inner_path = folder / name
        for suffix in (*EXTENSION_SUFFIXES, *SOURCE_SUFFIXES, *BYTECODE_SUFFIXES):
            if (inner_path / f"__init__{suffix}").is_file():
                return _Module(inner_path / f"__init__{suffix}", (inner_path,))
            if (folder / f"{name}{suffix}").is_file():
                return _Module(folder / f"{name}{suffix}", ())
        if inner_path.is_dir():
            portions.append(inner_path)
    return _Module(None, tuple(portions)) if portions else None


def _search_with_finders(name: str) -> _Module | None:
    """Search with all finders of Python, including the finders that editable installs add.

    For a top-level name this imports nothing.
    """
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    folders = tuple(Path(f) for f in spec.submodule_search_locations or ())
    file = Path(spec.origin)
    return _Module(file, folders) if file.is_file() else None


def _parents(name: str) -> list[str]:
    """Return the packages that Python imports before a module."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def _is_standard_library(name: str) -> bool:
    return name.split(".")[0] in sys.stdlib_module_names
