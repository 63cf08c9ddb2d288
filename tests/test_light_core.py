"""The plain installation, without any extra, runs the gates and the tracer, and names the rest."""

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


def core() -> set[str]:
    """Return the distributions that the dependencies of the project need, without any extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: set[str] = set()
    pending = [Requirement(line) for line in project["dependencies"]]
    while pending:
        one = pending.pop()
        extras = one.extras or {""}
        if one.marker and not any(one.marker.evaluate({"extra": extra}) for extra in {"", *extras}):
            continue
        name = re.sub(r"[-_.]+", "-", one.name).lower()
        if name in found:
            continue
        found.add(name)
        pending += [
            need
            for need in requirements_of(one.name)
            if not need.marker or any(need.marker.evaluate({"extra": extra}) for extra in extras)
        ]
    return found


def top_level(installed: Distribution) -> set[str]:
    """Return the files and folders of a distribution in site-packages."""
    return {
        file.parts[0]
        for file in installed.files or []
        if file.parts[0] not in ("..", "__pycache__") and not file.parts[0].startswith("/")
    }


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has Sluice, and only what it requires."""
    folder = tmp_path_factory.mktemp("core") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    site = next((folder / "lib").glob("python*/site-packages"))
    here = Path(sysconfig.get_path("purelib"))
    for name in core():
        for entry in top_level(distribution(name)):
            if not (site / entry).exists():
                (site / entry).symlink_to(here / entry)
    (site / "sluice").symlink_to(ROOT / "sluice")
    return folder / "bin" / "python"


def run(python: Path, *arguments: str, cwd: Path, allowed: int = 0) -> str:
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "SLUICE", "DAGSTER"))
    }
    done = subprocess.run(
        [str(python), *arguments], cwd=cwd, env=kept, capture_output=True, text=True, check=False
    )
    assert done.returncode == allowed, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def test_the_core_has_none_of_the_packages_of_the_extras():
    from sluice.base.extras import EXTRAS

    modules = {module.replace("_", "-") for modules in EXTRAS.values() for module in modules}
    distributions = core()

    assert {"torch", "pandas", "scipy", "typer"} <= distributions
    assert distributions & (modules | {"pillow"}) == set()


def test_gates_and_tracer_run_and_everything_else_names_its_extra(python, tmp_path):
    script = tmp_path / "use_core.py"
    script.write_text(SCRIPT)

    *_, line = run(python, str(script), cwd=tmp_path).splitlines()

    seen = json.loads(line)
    assert seen["verdict"] == "PROMOTE"
    assert "missing zero_grad" in seen["faults"]
    assert seen["replay"] > 10_000
    assert set(seen["poc"].values()) <= {"pass", "warn"}, seen["poc"]
    extras = {"registry": "registry", "serve": "serving", "report": "reports", "cluster": "search"}
    for name, extra in extras.items():
        assert seen["errors"][name].endswith(f"pip install '.[{extra}]'")
    assert seen["codes"] == dict.fromkeys(seen["codes"], 2)


def test_the_commands_of_the_core_run(python, tmp_path):
    losses = tmp_path / "losses.csv"
    losses.write_text(
        "seed,fold,row,loss\n"
        + "".join(f"{s},0,{r},{1 + (s * r) % 7 / 10}\n" for s in range(5) for r in range(300))
    )
    (tmp_path / "train.py").write_text("import torch\ntorch.nn.Linear(2, 1)(torch.ones(1, 2))\n")

    both = ("--baseline", "losses.csv", "--candidate", "losses.csv", "--json")
    verdict = run(python, "-m", "sluice", "gate", *both, cwd=tmp_path, allowed=1)
    run(python, "-m", "sluice", "trace", "--", str(python), "train.py", cwd=tmp_path)
    shown = run(python, "-m", "sluice", "--help", cwd=tmp_path)

    assert json.loads(verdict)["outcome"] == "INCONCLUSIVE"
    assert "registry" in shown
