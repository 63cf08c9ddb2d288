"""The public names of ``sluice`` are complete, lazily imported and visible to type checkers."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import sluice

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """
import json, sys
import sluice
getattr(sluice, sys.argv[1])
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def read_typed_names() -> dict[str, str]:
    """Return the modules by name of the imports under ``TYPE_CHECKING``."""
    tree = ast.parse((ROOT / "sluice" / "__init__.py").read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    return {alias.name: node.module for node in block.body for alias in node.names}


def test_type_checker_imports_equal_lazy_imports():
    typed = read_typed_names()

    assert typed.pop("trace") == "sluice.trace.block"
    assert typed == sluice._MODULES
    assert sorted([*typed, "trace"], key=str) == sorted(sluice.__all__)
    assert set(sluice.__all__) <= set(dir(sluice))


@pytest.mark.slow
def test_every_name_is_documented():
    for name in sluice.__all__:
        value = getattr(sluice, name)
        assert (value.__doc__ or "").strip(), name
        assert callable(value)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'chek'"):
        _ = sluice.chek


@pytest.mark.parametrize(
    ("name", "absent"),
    [
        ("trace", {"torch", "pandas", "pydantic"}),
        ("compare", {"torch", "dagster", "sqlalchemy", "matplotlib"}),
        ("Registry", {"torch", "dagster", "sqlalchemy"}),
        ("serve", {"torch", "dagster", "fastapi"}),
    ],
)
def test_public_name_imports_only_what_it_needs(name, absent):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, name], capture_output=True, text=True, check=True, cwd=ROOT
    )

    assert set(json.loads(done.stdout)) & absent == set()


def test_trace_is_a_callable_package(tmp_path):
    import sluice.trace.settings

    assert sluice.trace is sys.modules["sluice.trace"]
    assert type(sluice.trace(tmp_path)).__name__ == "TracedBlock"
