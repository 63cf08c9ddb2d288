"""Imports point one way, engines stay in their adapters, and settings explain themselves."""

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

LINES = (
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
"""The packages of ``sluice``, bottom first. Each may import itself and those on the lines before
its own, type-only imports included."""

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
"""Its classes are schedulers and searchers of Ray Tune, so it loads Ray when it is imported."""
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
TEXTS = sorted(
    path
    for folder in (*FOLDERS, "tests", "requirements", "deploy", ".ci", ".github")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".md", ".yaml", ".yml", ".toml", ".sh", ".txt", "")
    and path.is_file()
    and "__pycache__" not in path.parts
    and path != Path(__file__).resolve()  # names what is forbidden
)


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@functools.cache
def imports_of(path: Path) -> frozenset[str]:
    return frozenset(imported(ast.parse(path.read_text())))


def at_module_level(tree: ast.Module) -> ast.Module:
    """Return the tree without what importing the module does not run."""

    class Outside(ast.NodeTransformer):
        def visit_FunctionDef(self, node):  # noqa: ARG002
            return None

        visit_AsyncFunctionDef = visit_FunctionDef

        def visit_If(self, node):
            if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
                node.body = []
            return self.generic_visit(node)

    return Outside().visit(tree)


def names(path: str, engines: set[str]) -> set[str]:
    return {e for e in engines if path == e or path.startswith(f"{e}.")}


def module_of(path: Path) -> str:
    """Return the dotted name of a source file; a package has that of its folder."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    if parts[0] != "sluice":
        parts.insert(0, "sluice")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in SOURCES}


def package_of(module: str) -> str:
    """Return the package of ``sluice`` that a module or a name in one belongs to; "" for none."""
    parts = module.split(".")
    return parts[1] if parts[0] == "sluice" and len(parts) > 1 else ""


def wrong_imports(package: str, tree: ast.AST) -> set[str]:
    """Return imports of packages on the same or a later line, and of Dagster below its layers."""
    line = next(at for at, packages in enumerate(LINES) if package in packages)
    below = set().union(*LINES[:line]) | {package, ""}
    dagster = set() if package in FOLDERS else {"dagster"}
    return {
        path
        for path in imported(tree)
        if names(path, dagster | set(FOLDERS[1:]))
        or (path.startswith("sluice.") and package_of(path) not in below | {"__version__"})
    }


def imported_modules(module: str) -> set[str]:
    """Return the modules of ``sluice`` that a module imports, anywhere in it."""
    return {
        found if found in MODULES else found.rpartition(".")[0]
        for found in imports_of(MODULES[module])
        if found.startswith("sluice.")
    } & set(MODULES) - {module}


def circles(edges: Mapping[str, set[str]]) -> list[set[str]]:
    """Return every group of two or more modules that reach each other."""
    left, groups = dict(edges), []
    while True:
        # A module that imports nothing, or that nothing imports, is in no circle.
        wanted = set().union(*left.values())
        outside = {name for name in left if not left[name] or name not in wanted}
        if not outside:
            break
        left = {name: left[name] - outside for name in left.keys() - outside}
    while left:
        start = next(iter(left))
        ahead, behind = _reached(start, left), _reached(start, _reversed(left))
        group = ahead & behind
        if len(group) > 1:
            groups.append(group)
        gone = group | {start}
        left = {name: left[name] - gone for name in left.keys() - gone}
    return groups


def _reached(start: str, edges: Mapping[str, set[str]]) -> set[str]:
    seen, todo = set(), [start]
    while todo:
        for name in edges[todo.pop()] - seen:
            seen.add(name)
            todo.append(name)
    return seen


def _reversed(edges: Mapping[str, set[str]]) -> dict[str, set[str]]:
    turned: dict[str, set[str]] = {name: set() for name in edges}
    for name, targets in edges.items():
        for target in targets:
            turned[target].add(name)
    return turned


def early_engines(tree: ast.Module) -> set[str]:
    found = (names(path, ENGINES) for path in imported(at_module_level(tree)))
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
def test_the_import_order_rule_reports_what_it_should(package, code, wrong):
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
def test_circles_are_found(edges, found):
    assert sorted(map(sorted, circles(edges))) == sorted(map(sorted, found))


def test_no_modules_import_each_other_in_a_circle():
    assert circles({module: imported_modules(module) for module in MODULES}) == []


def test_every_package_has_its_line():
    packages = [package for line in LINES for package in line]

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
def test_the_engine_rule_sees_what_it_should(code, engines):
    assert early_engines(ast.parse(code)) == engines


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_imports_downwards_and_loads_no_engine(path):
    tree = ast.parse(path.read_text())
    place = path.relative_to(ROOT)

    if package := package_of(module_of(path)).removeprefix("__main__"):
        wrong = wrong_imports(package, tree)
        assert wrong == set(), f"{place} imports from a package on its own line or above"
    subclasses = place.is_relative_to(SUBCLASSES_OF_RAY)
    early = early_engines(tree) - ({"ray"} if subclasses else set())
    assert early == set(), f"{place}: import engines inside functions only"
    package = ".".join(SUBCLASSES_OF_RAY.parts)
    above = {
        name for name in imported(at_module_level(tree)) if f"{name}.".startswith(f"{package}.")
    }
    assert subclasses or above == set(), f"{place}: import {package} inside functions only"


@pytest.mark.parametrize("engine", ONE_ADAPTER)
def test_an_engine_has_one_adapter(engine):
    users = {
        str(path.relative_to(ROOT))
        for path in SOURCES
        if any(names(found, {engine}) for found in imports_of(path))
    }

    assert users == ONE_ADAPTER[engine]


@pytest.mark.parametrize("folder", FOLDERS[1:])
def test_a_folder_of_the_repository_is_installed_inside_the_package(folder):
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


def test_every_setting_says_what_it_is():
    silent = {
        f"{cls.__name__}.{name}"
        for cls in settings_classes()
        for name, field in cls.model_fields.items()
        # A group of settings is explained by its own class, a tag by what it selects.
        if not (isinstance(field.annotation, type) and issubclass(field.annotation, Settings))
        and not str(field.annotation).startswith("typing.Literal")
        and not field.description
        and field.discriminator is None
    }

    assert silent == set()
    assert len(settings_classes()) > 10


def forbidden(text: str) -> list[str]:
    """Return what no committed text holds: other alphabets, homes of users, unowned promises."""
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
def test_the_text_rule_sees_what_it_should(text, found):
    assert forbidden(text) == found


def test_no_text_holds_what_is_forbidden():
    found = {str(p.relative_to(ROOT)): forbidden(p.read_text()) for p in TEXTS}

    assert {path: what for path, what in found.items() if what} == {}


def test_lock_files_name_no_package_host():
    for path in sorted((ROOT / "requirements").glob("*.txt")):
        for line in path.read_text().splitlines():
            assert not re.search(r"://|--(find-links|index-url|extra-index-url)|@ ", line), path
