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


def those_needed(*names: str) -> set[str]:
    """Return the distributions and all their installed dependencies."""
    found: set[str] = set()
    todo = list(names)
    while todo:
        name = todo.pop()
        if name in found:
            continue
        found.add(name)
        wanted = map(Requirement, distribution(name).requires or [])
        todo += [w.name for w in wanted if w.marker is None or w.marker.evaluate({"extra": ""})]
    return found


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """Return the interpreter of an environment with only these packages."""
    folder = tmp_path / "environment"
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in those_needed("torch", "pydantic", "numpy"):
        dist = distribution(name)
        tops = {file.parts[0] for file in dist.files or []} - {"..", "__pycache__"}
        for top in tops:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(dist.locate_file(top))))
    (site / "sluice").symlink_to(ROOT / "sluice")
    return folder / "bin" / "python"


@pytest.mark.slow
def test_a_program_in_another_environment_is_traced_and_its_fault_reported(
    python: Path, tmp_path: Path
) -> None:
    """TRACE-1: outside the repository, without the project's other dependencies."""
    (tmp_path / "work").mkdir()
    script = tmp_path / "work" / "train.py"
    script.write_text(PROGRAM)

    done = subprocess.run(
        [python, "-m", "sluice.trace", "--out", "traces", "--", python, script],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
        cwd=tmp_path / "work",
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert "error, step 1: loss broadcasting" in done.stderr
    missing = subprocess.run([python, "-c", "import dagster"], capture_output=True, check=False)
    assert missing.returncode == 1
