"""The tracer in an environment with only torch, pydantic, numpy and their dependencies."""

import subprocess
import venv
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters())
x, y = torch.randn(64, 8), torch.randn(64)
for _ in range(12):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
print("done")
"""


def installed_dependencies(*names: str) -> set[str]:
    """Return the names of the distributions and of all their dependencies."""
    dependencies: set[str] = set()
    remaining = list(names)
    while remaining:
        name = remaining.pop()
        if name in dependencies:
            continue
        dependencies.add(name)
        requirements = map(Requirement, distribution(name).requires or [])
        remaining += [
            requirement.name
            for requirement in requirements
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        ]
    return dependencies


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """Return the interpreter of an environment with only these packages."""
    folder = tmp_path / "environment"
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in installed_dependencies("torch", "pydantic", "numpy"):
        package = distribution(name)
        top_level = {file.parts[0] for file in package.files or []} - {"..", "__pycache__"}
        for entry in top_level:
            if not (site / entry).exists():
                (site / entry).symlink_to(Path(str(package.locate_file(entry))))
    (site / "sluice").symlink_to(ROOT / "sluice")
    return folder / "bin" / "python"


@pytest.mark.slow
def test_a_program_in_an_environment_without_other_packages_is_traced(
    python: Path, tmp_path: Path
) -> None:
    """TRACE-1: outside the repository, without the project's other dependencies."""
    (tmp_path / "work").mkdir()
    script = tmp_path / "work" / "train.py"
    script.write_text(PROGRAM)

    result = subprocess.run(
        [python, "-m", "sluice.trace", "--out", "traces", "--", python, script],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
        cwd=tmp_path / "work",
        capture_output=True,
        text=True,
        check=False,
    )

    assert (result.returncode, result.stdout) == (0, "done\n"), result.stderr
    assert "error, step 1: loss broadcasting" in result.stderr
    dagster_import = subprocess.run(
        [python, "-c", "import dagster"], capture_output=True, check=False
    )
    assert dagster_import.returncode == 1
