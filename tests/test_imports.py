"""Importing a module has no side effects: it loads no engine, prints nothing, writes no file.

Dagster imports every module in the process of each step, so an engine at module level costs seconds
per step (great_expectations 4.2 s, ray.tune 1.4 s, scipy.stats 1.0 s).
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SUBCLASSES_OF_RAY = "sluice.tuning.resumable"
"""The only package with subclasses of Ray classes. Other modules import it inside functions."""
DAGSTER_COMMANDS = "sluice.cli.orchestration"
"""The commands that need Dagster."""
ENGINES = ["ray", "great_expectations", "wandb", "matplotlib", "arch", "scipy.stats", "statsmodels"]
SCRIPT = """
import importlib, json, sys
modules, engines = json.loads(sys.argv[1])
blamed = {}
for module in modules:
    importlib.import_module(module)
    for engine in engines:
        if engine in sys.modules:
            blamed.setdefault(engine, module)
print(json.dumps(blamed))
"""


def list_modules(package: str) -> list[str]:
    """Return every module of a package except ``__main__``, which runs when it is imported."""
    prefix = "" if package.startswith("sluice") else "sluice."
    return [
        prefix + ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted((ROOT / package).rglob("*.py"))
        if path.stem != "__main__" and "defs" not in path.parts
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("packages", "engines"),
    [
        (["sluice"], [*ENGINES, "dagster"]),
        (["sluice/cli/orchestration", "assets", "checks", "pipelines"], ENGINES),
    ],
    ids=["sluice", "dagster side"],
)
def test_no_module_loads_an_engine(packages, engines, tmp_path):
    names = [
        name
        for package in packages
        for name in list_modules(package)
        if not name.startswith(SUBCLASSES_OF_RAY)
        and not ("dagster" in engines and name.startswith(DAGSTER_COMMANDS))
    ]

    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps([names, engines])],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PATH": "", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)},
    )

    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == {}, "engine: the module whose import loaded it"
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []
