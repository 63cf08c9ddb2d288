"""Changed code that a workload imports triggers a new training."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.pipelines.conftest import home_at, ledger_of
from tests.pipelines.test_users_folder import ROOT, project, sluice

pytestmark = pytest.mark.slow

NAME = "sluice_probe_changed"
TICKS = f"""
import json
import os
import sys
from pathlib import Path
from sluice.assets.resources import SluiceState
from sluice.base.home import Home
from sluice.config.pipeline import read_pipeline
from sluice.config.resolved import resolve
from sluice.pipelines.schedules import request_retraining
from sluice.pipelines.source_poll import SourcePoll


def tick():
    pipeline = resolve(read_pipeline(Path("{NAME}.yaml")))
    home = Home.from_environment({{"SLUICE_HOME": "home"}}, cwd=Path.cwd())
    result = request_retraining(
        "{NAME}",
        pipeline.search,
        pipeline.settings.seeds,
        SluiceState.at(home),
        SourcePoll(pipeline.workload),
    )
    return getattr(result, "skip_message", None) or result.tags["sluice/changed"]


for _line in sys.stdin:
    if not (child := os.fork()):
        print(json.dumps(tick()), flush=True)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit("A tick failed.")
"""


@pytest.fixture
def tick(trained: Path) -> Iterator[Callable[[], str]]:
    """Return a function that evaluates the retraining schedule once in a new process.

    Each process is forked from one that has imported Sluice, which takes seconds, but no module of
    the folder.
    """
    errors = trained / "ticks.log"
    with errors.open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", TICKS],
            cwd=trained,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(trained / "site")])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )

    def evaluate() -> str:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("tick\n")
        process.stdin.flush()
        line = process.stdout.readline()
        assert line, errors.read_text()
        return str(json.loads(line)).strip()

    yield evaluate
    process.communicate()


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
    """A folder with a workload, two levels of helper modules, a package, a data file and a run."""
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


def test_schedule_names_what_changed(trained: Path, tick: Callable[[], str]) -> None:
    def write(name: str, text: str) -> None:
        (trained / name).write_text(text)

    assert tick().startswith("Nothing changed since version 1")
    write("unrelated.py", "x = 1  # a comment\n")
    assert tick().startswith("Nothing changed since version 1")

    losses = (trained / f"{NAME}_losses.py").read_text()
    write(f"{NAME}_losses.py", f"{losses}# changed\n")
    assert f"module {NAME}_losses changed" in tick()
    write(f"{NAME}_losses.py", losses)

    site = trained / "site"
    (site / f"{NAME}_package-1.0.dist-info").rename(site / f"{NAME}_package-2.0.dist-info")
    assert f"package {NAME}_package 1.0 -> 2.0" in tick()
    (site / f"{NAME}_package-2.0.dist-info").rename(site / f"{NAME}_package-1.0.dist-info")

    write("words.txt", "two\n")
    assert "data file words.txt changed" in tick()
    write("words.txt", "one\n")
    assert tick().startswith("Nothing changed since version 1")

    write(f"{NAME}_deep.py", "FACTOR = 99.0\n")
    assert f"module {NAME}_deep changed" in tick()


@pytest.mark.exhaustive
def test_run_with_changed_code_trains_again(trained: Path) -> None:
    """The version in production is scored with its stored code."""
    (trained / f"{NAME}_deep.py").write_text("FACTOR = 99.0\n")
    output = run(trained, "--set", "production_code=stored")

    assert "reused" not in output
    with ledger_of(home_at(trained / "home")) as ledger:
        first, second = (ledger.version(NAME, number) for number in (1, 2))
        receipts = [
            next(r.receipt for r in ledger.receipts(NAME, number) if r.receipt.gate == "poc").digest
            for number in (1, 2)
        ]
    assert second.lineage.metrics["loss"] > 20 * first.lineage.metrics["loss"]
    assert first.lineage.code != second.lineage.code
    assert receipts[0] != receipts[1]
