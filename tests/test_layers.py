"""Packages import only lower layers, engines only their adapters; settings have descriptions."""

import ast
import functools
import importlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from sluice.base.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("sluice", "assets", "checks", "pipelines")
"""Folders of the repository. The links ``sluice/assets``, ``sluice/checks`` and
``sluice/pipelines`` make the last three part of the package.
"""

LAYERS = (
    {"base"},
    {"data", "findings", "metrics", "observability", "reports"},
    {"models", "verdicts", "eventlog"},
    {"workloads"},
    {"cluster", "rollout", "trace"},
    {"training"},
    {"probes", "registry", "tuning"},
    {"evaluation", "serving", "tracking"},
    {"config"},
    {"drift", "failfast"},
    {"rollout_control", "scaffold"},
    {"rehearsal"},
    {"bench"},
    {"assets"},
    {"checks"},
    {"pipelines"},
    {"api"},
    {"cli"},
)
"""The packages of ``sluice``, lowest layer first. A package may import itself and the packages of
lower layers; this includes type-only imports.
"""

ENGINES = {
    "ray",
    "great_expectations",
    "wandb",
    "matplotlib",
    "arch",
    "scipy.stats",
    "numba",
    "sklearn",
    "statsmodels",
    "optuna",
    "opentelemetry",
    "mlflow",
}
ONE_ADAPTER = {
    "great_expectations": {"checks/expectations.py"},
    "wandb": {
        "sluice/tracking/wandb_mirror.py",
        "sluice/tracking/wandb_run_writer.py",
    },
    "ray": {
        f"sluice/cluster/{name}.py"
        for name in (
            "autoscaling",
            "ray_address",
            "ray_processes",
            "ray_session",
            "ray_train",
            "trial_resources",
        )
    }
    | {
        "sluice/bench/search/ray_tune_baseline.py",
        "sluice/bench/search/wrapper_cost.py",
        "sluice/serving/ray_serve.py",
        "sluice/tracking/wandb_trials.py",
    }
    | {
        f"sluice/tuning/resumable/{name}.py"
        for name in (
            *("driver", "event_order", "open_study", "proxies", "snapshots"),
            *("study", "tune_trials", "tuner_runs", "wrappers"),
        )
    }
    | {
        f"sluice/tuning/{name}.py"
        for name in (
            "schedulers",
            "searchers",
            "trainable",
            "tune_classes",
            "tune_space",
            "tuner",
        )
    },
    "optuna": {"sluice/bench/search/wrapper_cost.py", "sluice/tuning/searchers.py"},
    "opentelemetry": {"sluice/observability/spans.py"},
    "mlflow": {"sluice/tracking/mlflow_mirror.py", "sluice/tracking/mlflow_predictions.py"},
}
SUBCLASSES_OF_RAY = Path("sluice/tuning/resumable")
"""Its classes derive from schedulers and searchers of Ray Tune, so importing it imports Ray."""
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
TEXTS = sorted(
    path
    for folder in (*FOLDERS, "tests", "requirements", "deploy", ".ci", ".github")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".md", ".yaml", ".yml", ".toml", ".sh", ".txt", "")
    and path.is_file()
    and "__pycache__" not in path.parts
    and path != Path(__file__).resolve()  # contains examples of forbidden text
)


def imported_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@functools.cache
def imports_of(path: Path) -> frozenset[str]:
    return frozenset(imported_names(ast.parse(path.read_text())))


def at_module_level(tree: ast.Module) -> ast.Module:
    """Return the tree without code that importing the module does not run."""

    class ImportTimeCode(ast.NodeTransformer):
        def visit_FunctionDef(self, node):  # noqa: ARG002
            return None

        visit_AsyncFunctionDef = visit_FunctionDef

        def visit_If(self, node):
            if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
                node.body = []
            return self.generic_visit(node)

    return ImportTimeCode().visit(tree)


def matching_engines(path: str, engines: set[str]) -> set[str]:
    return {e for e in engines if path == e or path.startswith(f"{e}.")}


def module_of(path: Path) -> str:
    """Return the dotted name of a source file; a package has that of its folder."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    if parts[0] != "sluice":
        parts.insert(0, "sluice")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in SOURCES}


def package_of(module: str) -> str:
    """Return the package of ``sluice`` that contains a module or name; "" if none does."""
    parts = module.split(".")
    return parts[1] if parts[0] == "sluice" and len(parts) > 1 else ""


def wrong_imports(package: str, tree: ast.AST) -> set[str]:
    """Return imports of packages of the same or a higher layer, and of Dagster below its layers."""
    layer = next(i for i, packages in enumerate(LAYERS) if package in packages)
    allowed = set().union(*LAYERS[:layer]) | {package, ""}
    dagster = set() if package in FOLDERS else {"dagster"}
    return {
        path
        for path in imported_names(tree)
        if matching_engines(path, dagster | set(FOLDERS[1:]))
        or (path.startswith("sluice.") and package_of(path) not in allowed | {"__version__"})
    }


def imported_modules(module: str) -> set[str]:
    """Return the modules of ``sluice`` that a module imports, also inside functions."""
    return {
        found if found in MODULES else found.rpartition(".")[0]
        for found in imports_of(MODULES[module])
        if found.startswith("sluice.")
    } & set(MODULES) - {module}


def import_cycles(edges: Mapping[str, set[str]]) -> list[set[str]]:
    """Return every group of two or more modules that import each other, directly or indirectly."""
    remaining, groups = dict(edges), []
    while True:
        # A module without imports, or that no other module imports, is in no cycle.
        imported = set().union(*remaining.values())
        outside = {name for name in remaining if not remaining[name] or name not in imported}
        if not outside:
            break
        remaining = {name: remaining[name] - outside for name in remaining.keys() - outside}
    while remaining:
        start = next(iter(remaining))
        group = _reached(start, remaining) & _reached(start, _reverse(remaining))
        if len(group) > 1:
            groups.append(group)
        handled = group | {start}
        remaining = {name: remaining[name] - handled for name in remaining.keys() - handled}
    return groups


def _reached(start: str, edges: Mapping[str, set[str]]) -> set[str]:
    seen, todo = set(), [start]
    while todo:
        for name in edges[todo.pop()] - seen:
            seen.add(name)
            todo.append(name)
    return seen


def _reverse(edges: Mapping[str, set[str]]) -> dict[str, set[str]]:
    reversed_edges: dict[str, set[str]] = {name: set() for name in edges}
    for name, targets in edges.items():
        for target in targets:
            reversed_edges[target].add(name)
    return reversed_edges


def engines_loaded_on_import(tree: ast.Module) -> set[str]:
    found = (matching_engines(path, ENGINES) for path in imported_names(at_module_level(tree)))
    return set().union(*found)


@pytest.mark.parametrize(
    ("package", "code", "wrong"),
    [
        ("cli", "import dagster as dg", {"dagster"}),
        ("base", "def f():\n    from sluice.data.x import y", {"sluice.data.x.y"}),
        ("trace", "from sluice.cluster import jobs", {"sluice.cluster.jobs"}),
        ("data", "from sluice import checks, __version__", {"sluice.checks"}),
        ("data", "from sluice.base.x import y\nfrom sluice.data import z\nimport sluice", set()),
        (
            "base",
            "if TYPE_CHECKING:\n    from sluice.cli.app import main",
            {"sluice.cli.app.main"},
        ),
        ("assets", "import dagster, sluice.base.home, sluice.checks", {"sluice.checks"}),
        ("pipelines", "import sluice, sluice.assets, sluice.checks, dagster", set()),
        ("pipelines", "from sluice.assets.x import y\nimport pipelines", {"pipelines"}),
        ("assets", "from assets.x import y", {"assets.x.y"}),
    ],
)
def test_import_order_rule_reports_forbidden_imports(package, code, wrong):
    assert wrong_imports(package, ast.parse(code)) == wrong


@pytest.mark.parametrize(
    ("edges", "found"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"a"}, "c": {"a"}}, [{"a", "b"}]),
        (
            {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}},
            [{"a", "b", "c"}, {"d", "e"}],
        ),
    ],
)
def test_import_cycles_are_found(edges, found):
    assert sorted(map(sorted, import_cycles(edges))) == sorted(map(sorted, found))


def test_modules_have_no_import_cycle():
    assert import_cycles({module: imported_modules(module) for module in MODULES}) == []


def test_every_package_belongs_to_one_layer():
    packages = [package for layer in LAYERS for package in layer]

    assert len(packages) == len(set(packages))
    assert {package_of(module) for module in MODULES} - {"", "__main__"} == set(packages)


@pytest.mark.parametrize(
    ("code", "engines"),
    [
        ("import ray.tune", {"ray"}),
        ("from scipy import stats", {"scipy.stats"}),
        ("class A:\n    import wandb", {"wandb"}),
        ("def f():\n    import wandb", set()),
        ("if TYPE_CHECKING:\n    import matplotlib", set()),
        ("from scipy.special import ndtri\nimport archive", set()),
    ],
)
def test_engine_rule_reports_imports_at_module_level(code, engines):
    assert engines_loaded_on_import(ast.parse(code)) == engines


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_module_imports_lower_layers_and_loads_no_engine(path):
    tree = ast.parse(path.read_text())
    relative_path = path.relative_to(ROOT)

    if package := package_of(module_of(path)).removeprefix("__main__"):
        wrong = wrong_imports(package, tree)
        assert wrong == set(), (
            f"{relative_path} imports from a package of its own or a higher layer"
        )
    subclasses = relative_path.is_relative_to(SUBCLASSES_OF_RAY)
    early = engines_loaded_on_import(tree) - ({"ray"} if subclasses else set())
    assert early == set(), f"{relative_path}: import engines inside functions only"
    package = ".".join(SUBCLASSES_OF_RAY.parts)
    above = {
        name
        for name in imported_names(at_module_level(tree))
        if f"{name}.".startswith(f"{package}.")
    }
    assert subclasses or above == set(), f"{relative_path}: import {package} inside functions only"


@pytest.mark.parametrize("engine", ONE_ADAPTER)
def test_engine_is_imported_only_by_its_adapters(engine):
    users = {
        str(path.relative_to(ROOT))
        for path in SOURCES
        if any(matching_engines(found, {engine}) for found in imports_of(path))
    }

    assert users == ONE_ADAPTER[engine]


@pytest.mark.parametrize("folder", FOLDERS[1:])
def test_folder_is_linked_into_the_package(folder):
    link = ROOT / "sluice" / folder

    assert link.is_symlink()
    assert link.readlink() == Path("..", folder)


def settings_classes() -> list[type[Settings]]:
    for path in SOURCES:
        if path.is_relative_to(ROOT / "sluice") and "Settings" in path.read_text():
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    found, todo = [], list(Settings.__subclasses__())
    while todo:
        cls = todo.pop()
        todo += cls.__subclasses__()
        if cls.__module__.split(".")[0] == "sluice":
            found.append(cls)
    return found


def test_every_setting_has_a_description():
    undescribed = {
        f"{cls.__name__}.{name}"
        for cls in settings_classes()
        for name, field in cls.model_fields.items()
        # A group of settings is explained by its own class, a tag by what it selects.
        if not (isinstance(field.annotation, type) and issubclass(field.annotation, Settings))
        and not str(field.annotation).startswith("typing.Literal")
        and not field.description
        and field.discriminator is None
    }

    assert undescribed == set()
    assert len(settings_classes()) > 10


def find_forbidden(text: str) -> list[str]:
    """Return forbidden parts: non-ASCII characters, home folders, TODOs without an issue."""
    return [
        *re.findall(r"[^\x00-\x7f]+", text),
        *re.findall(r"(?<![\w.~$])/(?:root|home)/\w+", text),
        *re.findall(r"TODO(?!\(#\d+\))", text),
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("plain \u2013 dash", ["\u2013"]),
        ("see /home/someone/x", ["/home/someone"]),
        ("# TODO: later", ["TODO"]),
        ("# TODO(#12): later, in ~/home/x", []),
    ],
)
def test_text_rule_reports_forbidden_parts(text, found):
    assert find_forbidden(text) == found


def test_no_file_contains_forbidden_text():
    found = {str(p.relative_to(ROOT)): find_forbidden(p.read_text()) for p in TEXTS}

    assert {path: what for path, what in found.items() if what} == {}


def test_lock_files_name_no_package_host():
    for path in sorted((ROOT / "requirements").glob("*.txt")):
        for line in path.read_text().splitlines():
            assert not re.search(r"://|--(find-links|index-url|extra-index-url)|@ ", line), path
