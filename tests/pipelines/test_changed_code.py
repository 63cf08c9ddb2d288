"""Code that a workload imports is code of the model: changed, it is trained on again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipelines.conftest import home_at, ledger_of
from tests.pipelines.test_users_folder import ROOT, project, sluice

pytestmark = pytest.mark.slow

NAME = "sluice_probe_changed"
TICK = f"""
import sys
from pathlib import Path
from sluice.assets.resources import SluiceState
from sluice.base.home import Home
from sluice.config.pipeline import read_pipeline
from sluice.config.resolved import resolve
from sluice.pipelines.schedules import request_retraining
from sluice.pipelines.source_poll import SourcePoll
pipeline = resolve(read_pipeline(Path("{NAME}.yaml")))
home = Home.from_environment({{"SLUICE_HOME": "home"}}, cwd=Path.cwd())
asked = request_retraining(
    "{NAME}",
    pipeline.search,
    pipeline.settings.seeds,
    SluiceState.at(home),
    SourcePoll(pipeline.workload),
)
print(getattr(asked, "skip_message", None) or asked.tags["sluice/changed"])
"""


def tick(folder: Path) -> str:
    """Return what the retraining schedule says, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", TICK],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(folder / "site")])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def run(folder: Path, *options: str) -> str:
    done = sluice(
        "run",
        f"{NAME}.yaml",
        "--no-rehearsal",
        *options,
        cwd=folder,
        SLUICE_HOME="home",
        PYTHONPATH=os.pathsep.join([str(ROOT), str(folder / "site")]),
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stderr


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A folder with a workload, a helper, its helper, a package, a data file, and one run."""
    folder = project(tmp_path / "own", NAME).parent
    module = folder / f"{NAME}.py"
    module.write_text(
        module.read_text().replace(
            "class Demand(Workload):",
            'class Demand(Workload):\n    data_files = ("words.txt",)\n\n'
            "    def losses(self, output, y):\n"
            "        return FACTOR * super().losses(output, y)\n",
        )
        + f"\n\nfrom {NAME}_losses import FACTOR\n"
    )
    (folder / f"{NAME}_losses.py").write_text(
        f"from {NAME}_deep import FACTOR\nimport {NAME}_package\n"
    )
    (folder / f"{NAME}_deep.py").write_text("FACTOR = 1.0\n")
    (folder / "words.txt").write_text("one\n")
    (folder / "unrelated.py").write_text("x = 1\n")
    site = folder / "site"
    (site / f"{NAME}_package-1.0.dist-info").mkdir(parents=True)
    (site / f"{NAME}_package.py").write_text("")
    (site / f"{NAME}_package-1.0.dist-info" / "RECORD").write_text(f"{NAME}_package.py,,\n")
    run(folder)
    return folder


def test_the_schedule_names_what_changed_and_a_run_trains_again(trained: Path) -> None:
    def write(name: str, text: str) -> None:
        (trained / name).write_text(text)

    assert tick(trained).startswith("Nothing changed since version 1")
    write("unrelated.py", "x = 1  # a comment\n")
    assert tick(trained).startswith("Nothing changed since version 1")

    losses = (trained / f"{NAME}_losses.py").read_text()
    write(f"{NAME}_losses.py", f"{losses}# changed\n")
    assert f"module {NAME}_losses changed" in tick(trained)
    write(f"{NAME}_losses.py", losses)

    site = trained / "site"
    (site / f"{NAME}_package-1.0.dist-info").rename(site / f"{NAME}_package-2.0.dist-info")
    assert f"package {NAME}_package 1.0 -> 2.0" in tick(trained)
    (site / f"{NAME}_package-2.0.dist-info").rename(site / f"{NAME}_package-1.0.dist-info")

    write("words.txt", "two\n")
    assert "data file words.txt changed" in tick(trained)
    write("words.txt", "one\n")
    assert tick(trained).startswith("Nothing changed since version 1")

    write(f"{NAME}_deep.py", "FACTOR = 99.0\n")
    assert f"module {NAME}_deep changed" in tick(trained)
    # Production is of the old code, and is scored with it.
    said = run(trained, "--set", "production_code=stored")

    assert "reused" not in said
    with ledger_of(home_at(trained / "home")) as ledger:
        first, second = (ledger.version(NAME, number) for number in (1, 2))
        receipts = [
            next(r.receipt for r in ledger.receipts(NAME, number) if r.receipt.gate == "poc").digest
            for number in (1, 2)
        ]
    assert second.lineage.metrics["loss"] > 20 * first.lineage.metrics["loss"]
    assert first.lineage.code != second.lineage.code
    assert receipts[0] != receipts[1]
