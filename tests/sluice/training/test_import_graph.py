"""The import graph is read from source code; dynamic imports are reported."""

import sys
from pathlib import Path

import pytest

from sluice.training.import_graph import follow_imports

ROOT_NAME = "sluice_graph_root"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Return a function that writes modules to ``sys.path`` and follows the root's imports."""
    monkeypatch.syspath_prepend(tmp_path)

    def follow(root: str, **files: str):
        write_files(tmp_path, {"sluice_graph_root.py": root} | make_paths(files))
        return follow_imports([ROOT_NAME])

    yield follow
    for name in [name for name in sys.modules if name.startswith("sluice_graph")]:
        del sys.modules[name]


def make_paths(files: dict[str, str]) -> dict[str, str]:
    return {name.replace("__slash__", "/") + ".py": text for name, text in files.items()}


def write_files(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def imported_modules(graph) -> set[str]:
    return set(graph.own_modules) - {ROOT_NAME}


@pytest.mark.parametrize(
    ("statement", "found_imports"),
    [
        ("import sluice_graph_a", {"sluice_graph_a"}),
        ("from sluice_graph_a import x", {"sluice_graph_a"}),
        ("def f():\n    import sluice_graph_a", {"sluice_graph_a"}),
        ("try:\n    import sluice_graph_a\nexcept ImportError:\n    pass", {"sluice_graph_a"}),
        ("import importlib\nm = importlib.import_module('sluice_graph_a')", {"sluice_graph_a"}),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import sluice_graph_a", set()),
        ("x = 'import sluice_graph_a'", set()),
        ("if not TYPE_CHECKING:\n    import sluice_graph_a", {"sluice_graph_a"}),
        ("if TYPE_CHECKING or x:\n    import sluice_graph_a", {"sluice_graph_a"}),
        ("import sluice_graph_absent", set()),
    ],
)
def test_import_statements_that_can_run_are_found(project, statement, found_imports):
    assert imported_modules(project(statement, sluice_graph_a="x = 1")) == found_imports


def test_transitive_and_circular_imports_are_followed(project):
    graph = project(
        "import sluice_graph_a",
        sluice_graph_a="import sluice_graph_b",
        sluice_graph_b="import sluice_graph_a, sluice_graph_root",
    )

    assert imported_modules(graph) == {"sluice_graph_a", "sluice_graph_b"}


def test_parent_packages_and_relative_imports_are_followed(project):
    graph = project(
        "from sluice_graph_pkg.sub.deep import x",
        sluice_graph_pkg__slash____init__="",
        sluice_graph_pkg__slash__side="y = 1",
        sluice_graph_pkg__slash__idle="",
        sluice_graph_pkg__slash__sub__slash____init__="from . import near",
        sluice_graph_pkg__slash__sub__slash__near="",
        sluice_graph_pkg__slash__sub__slash__deep="from ..side import y\nx = y",
    )

    assert imported_modules(graph) == {
        "sluice_graph_pkg",
        "sluice_graph_pkg.sub",
        "sluice_graph_pkg.sub.near",
        "sluice_graph_pkg.sub.deep",
        "sluice_graph_pkg.side",
    }


def test_folder_without_init_file_is_a_namespace_package(project):
    graph = project(
        "import sluice_graph_space.inner", sluice_graph_space__slash__inner="import sluice_graph_a"
    )

    assert imported_modules(graph) == {"sluice_graph_space.inner"}


def test_followed_modules_are_not_executed(project):
    project("def f():\n    import sluice_graph_a", sluice_graph_a="raise SystemExit(9)")

    assert "sluice_graph_a" not in sys.modules


@pytest.mark.parametrize(
    ("code", "call"),
    [
        ("import importlib\nimportlib.import_module(name)", "import_module(...)"),
        ("__import__(name)", "__import__(...)"),
        ("exec(text)", "exec(...)"),
        ("import builtins\nbuiltins.exec(text)", "exec(...)"),
        ("from importlib import import_module as load\nload(name)", "load(...)"),
        ("import importlib\nf = importlib.import_module", "import_module(...)"),
        ("f = eval", "eval(...)"),
        ("eval(text)", "eval(...)"),
        (
            "import importlib.util as u\nu.spec_from_file_location('a', f)",
            "spec_from_file_location",
        ),
    ],
)
def test_dynamic_code_is_reported_with_its_line(project, code, call):
    (message,) = project("def f(name, text, u):\n    pass\n" + code).not_followed

    assert message.startswith(f"{ROOT_NAME}, line {2 + code.count(chr(10)) + 1}: {call}")


def test_eval_method_of_a_network_is_not_reported(project):
    assert project("def f(model):\n    model.eval()").not_followed == set()


def test_installed_distributions_are_recorded_by_version_and_not_followed(project):
    graph = project("import numpy as np\nimport sklearn.linear_model\nimport yaml, os, json")

    assert imported_modules(graph) == set()
    assert {"numpy", "scikit_learn", "pyyaml"} == set(graph.distributions)
    assert graph.distributions["numpy"] == sys.modules["numpy"].__version__


def test_package_in_any_folder_is_identified_by_its_metadata(project, tmp_path):
    write_files(
        tmp_path,
        {
            "sluice_graph_dist/__init__.py": "",
            "sluice_graph_dist-1.4.dist-info/RECORD": "sluice_graph_dist/__init__.py,,\n",
        },
    )

    graph = project("import sluice_graph_dist")

    assert graph.distributions == {"sluice_graph_dist": "1.4"}
    assert imported_modules(graph) == set()


def test_sluice_modules_are_recorded_and_not_followed(project):
    graph = project("from sluice.evaluation.mcnemar import mcnemar")

    assert set(graph.sluice_modules) >= {"sluice.evaluation.mcnemar"}
    assert "sluice.base.digests" not in graph.sluice_modules


def test_source_with_a_syntax_error_is_reported(project):
    graph = project("def f():\n    import sluice_graph_a", sluice_graph_a="def (")

    assert graph.not_followed == {"sluice_graph_a, line 1: the source does not parse"}
