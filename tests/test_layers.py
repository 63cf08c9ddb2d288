"""Imports point one way, engines stay in their adapters, and settings explain themselves."""

import ast
import functools
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.base.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ("sluice", "assets", "checks", "pipelines")
"""Each may import itself and those to its left. The last three are folders of the repository that
the links ``sluice/assets``, ``sluice/checks`` and ``sluice/pipelines`` make part of the package.
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
}
ONE_ADAPTER = {
    "great_expectations": {"checks/expectations.py"},
    "wandb": {"sluice/tracking/wandb_mirror.py"},
    "ray": {
        f"sluice/cluster/{name}.py"
        for name in (
            "autoscaling",
            "plain_tuner",
            "ray_address",
            "ray_session",
            "ray_train",
            "trial_resources",
        )
    }
    | {"sluice/serving/ray_serve.py", "sluice/tracking/wandb_trials.py"}
    | {
        f"sluice/tuning/resumable/{name}.py"
        for name in (
            *("driver", "links", "opening", "orders", "shadow", "snapshots"),
            *("study", "tune_trials", "wrappers"),
        )
    }
    | {
        f"sluice/tuning/{name}.py"
        for name in (
            "benchmark/wrapper_cost",
            "schedulers",
            "searchers",
            "trainable",
            "tune_classes",
            "tune_space",
            "tuner",
        )
    },
    "optuna": {"sluice/bench/search/wrapper_cost.py", "sluice/tuning/searchers.py"},
    "opentelemetry": {"sluice/observability/tracing.py"},
}
SUBCLASSES_OF_RAY = Path("sluice/tuning/resumable")
"""Its classes are schedulers and searchers of Ray Tune, so it loads Ray when it is imported."""
SOURCES = sorted(path for layer in LAYERS for path in (ROOT / layer).rglob("*.py"))
TEXTS = sorted(
    path
    for folder in (*LAYERS, "tests", "requirements", "deploy", ".ci", ".github")
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


def wrong_layers(layer: str, tree: ast.AST) -> set[str]:
    """Return imports of a layer above, and imports of a layer by its name in the repository."""
    above = {f"sluice.{name}" for name in LAYERS[LAYERS.index(layer) + 1 :]}
    engine = {"dagster"} if layer == "sluice" else set()
    wrong = above | engine | set(LAYERS[1:])
    return {path for path in imported(tree) if names(path, wrong)}


def early_engines(tree: ast.Module) -> set[str]:
    found = (names(path, ENGINES) for path in imported(at_module_level(tree)))
    return set().union(*found)


@pytest.mark.parametrize(
    ("layer", "code", "wrong"),
    [
        ("sluice", "import dagster as dg", {"dagster"}),
        ("sluice", "def f():\n    from sluice.assets.x import y", {"sluice.assets.x.y"}),
        ("sluice", "from sluice import checks", {"sluice.checks"}),
        ("assets", "import dagster, sluice.base.home, sluice.checks", {"sluice.checks"}),
        ("checks", "from sluice.pipelines import jobs", {"sluice.pipelines.jobs"}),
        ("pipelines", "import sluice, sluice.assets, sluice.checks, dagster", set()),
        ("pipelines", "from sluice.assets.x import y\nimport pipelines", {"pipelines"}),
        ("assets", "from assets.x import y", {"assets.x.y"}),
    ],
)
def test_the_layer_rule_sees_what_it_should(layer, code, wrong):
    assert wrong_layers(layer, ast.parse(code)) == wrong


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


@pytest.mark.parametrize(
    "path", sorted((ROOT / "sluice" / "cluster").glob("*.py")), ids=lambda p: p.name
)
def test_the_cluster_knows_neither_trainings_nor_searches(path):
    """It runs any job, so that both stand on it."""
    rooms = {"sluice.training", "sluice.tuning"}

    assert {
        found for found in imported(ast.parse(path.read_text())) if names(found, rooms)
    } == set()


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_keeps_its_layer_and_loads_no_engine(path):
    tree = ast.parse(path.read_text())
    place = path.relative_to(ROOT)

    assert wrong_layers(place.parts[0], tree) == set(), f"{place} imports from a layer above it"
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


@pytest.mark.parametrize("layer", LAYERS[1:])
def test_a_folder_of_the_repository_is_installed_inside_the_package(layer):
    link = ROOT / "sluice" / layer

    assert link.is_symlink()
    assert link.readlink() == Path("..", layer)


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
