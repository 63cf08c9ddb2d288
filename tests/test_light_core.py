"""The core installation without extras: gates and tracer run, other features name their extra."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]

SCRIPT = """
import numpy as np, pandas as pd, torch, sluice
from sluice.base.errors import SettingsError

noise = np.random.default_rng(0)
comparison = sluice.compare(
    noise.normal(0.9, 0.1, (5, 600)), noise.normal(1.0, 0.1, (5, 600)), horizon_rows=0
)

network = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
with sluice.trace("traces") as traced:
    for _ in range(12):
        x = torch.randn(8, 3)
        (network(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()

rows = pd.DataFrame(noise.normal(size=(400, 2)), columns=["a", "b"])
rows["price"] = rows.a + rows.b
poc = sluice.check(
    frame=rows, target="price", level="minimum", model=sluice.ModelSettings(architecture="linear"),
    stop=False,
)

errors = {}
for name, call in {
    "registry": sluice.Registry().models,
    "serve": lambda: sluice.serve("prices"),
    "report": comparison.report,
    "cluster": lambda: sluice.fit(
        frame=rows, target="price", compute=sluice.ComputeSettings(address="auto")
    ),
}.items():
    try:
        call()
    except SettingsError as error:
        errors[name] = str(error)

import json
from sluice.cli.app import COMMANDS, run_command
codes = {}
for command in (
    ["run", "digits"], ["tune", "digits"], ["dev"], ["registry", "list"], ["suites", "list"],
    ["rollout", "watch", "digits", "--once"], ["serve", "digits"],
):
    codes[command[0]] = run_command(command)
print(json.dumps({
    "verdict": comparison.outcome,
    "faults": [finding.fault for finding in traced.findings],
    "replay": len(traced.replay().html),
    "poc": {result.check_id: result.outcome for result in poc.results},
    "errors": errors,
    "codes": codes,
}))
"""


def requirements_of(name: str) -> list[Requirement]:
    return [Requirement(line) for line in distribution(name).requires or []]


def core_distributions() -> set[str]:
    """Return the distributions that the project requires, also indirectly, without extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: set[str] = set()
    pending = [Requirement(line) for line in project["dependencies"]]
    while pending:
        requirement = pending.pop()
        extras = requirement.extras or {""}
        if requirement.marker and not any(
            requirement.marker.evaluate({"extra": extra}) for extra in {"", *extras}
        ):
            continue
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name in found:
            continue
        found.add(name)
        pending += [
            dependency
            for dependency in requirements_of(requirement.name)
            if not dependency.marker
            or any(dependency.marker.evaluate({"extra": extra}) for extra in extras)
        ]
    return found


def top_level_entries(installed: Distribution) -> set[str]:
    """Return the files and folders of a distribution in site-packages."""
    return {
        file.parts[0]
        for file in installed.files or []
        if file.parts[0] not in ("..", "__pycache__") and not file.parts[0].startswith("/")
    }


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with only Sluice and its required dependencies."""
    folder = tmp_path_factory.mktemp("core") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    site = next((folder / "lib").glob("python*/site-packages"))
    site_packages = Path(sysconfig.get_path("purelib"))
    for name in core_distributions():
        for entry in top_level_entries(distribution(name)):
            if not (site / entry).exists():
                (site / entry).symlink_to(site_packages / entry)
    (site / "sluice").symlink_to(ROOT / "sluice")
    return folder / "bin" / "python"


def run(python: Path, *arguments: str, cwd: Path, exit_code: int = 0) -> str:
    environ = {
        k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "SLUICE", "DAGSTER"))
    }
    done = subprocess.run(
        [str(python), *arguments], cwd=cwd, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == exit_code, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def test_core_requires_no_package_of_an_extra():
    from sluice.base.extras import EXTRAS

    modules = {module.replace("_", "-") for modules in EXTRAS.values() for module in modules}
    distributions = core_distributions()

    assert {"torch", "pandas", "scipy", "typer"} <= distributions
    assert distributions & (modules | {"pillow"}) == set()


def test_gates_and_tracer_run_and_other_features_name_their_extra(python, tmp_path):
    script = tmp_path / "use_core.py"
    script.write_text(SCRIPT)

    *_, line = run(python, str(script), cwd=tmp_path).splitlines()

    results = json.loads(line)
    assert results["verdict"] == "PROMOTE"
    assert "missing zero_grad" in results["faults"]
    assert results["replay"] > 10_000
    assert set(results["poc"].values()) <= {"pass", "warn"}, results["poc"]
    extras = {"registry": "registry", "serve": "serving", "report": "reports", "cluster": "search"}
    for name, extra in extras.items():
        assert results["errors"][name].endswith(f"pip install '.[{extra}]'")
    assert results["codes"] == dict.fromkeys(results["codes"], 2)


def test_core_commands_run(python, tmp_path):
    losses = tmp_path / "losses.csv"
    losses.write_text(
        "seed,fold,row,loss\n"
        + "".join(f"{s},0,{r},{1 + (s * r) % 7 / 10}\n" for s in range(5) for r in range(300))
    )
    (tmp_path / "train.py").write_text("import torch\ntorch.nn.Linear(2, 1)(torch.ones(1, 2))\n")

    options = ("--baseline", "losses.csv", "--candidate", "losses.csv", "--json")
    verdict = run(python, "-m", "sluice", "gate", *options, cwd=tmp_path, exit_code=1)
    run(python, "-m", "sluice", "trace", "--", str(python), "train.py", cwd=tmp_path)
    help_text = run(python, "-m", "sluice", "--help", cwd=tmp_path)

    assert json.loads(verdict)["outcome"] == "INCONCLUSIVE"
    assert "registry" in help_text
