"""What a run says to do next."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from sluice.assets.resources import SluiceState
from sluice.base.artifacts import ArtifactStore
from sluice.base.home import Home
from sluice.pipelines.run import RunReport
from sluice.pipelines.summary import _headline, next_commands, print_summary
from tests.sluice.registry.ledger_samples import MODEL, promote_chain


@pytest.mark.parametrize(
    ("standing", "command"),
    [
        ({"production": 2}, "serve my/demand.yaml"),
        ({"production": 1, "rolls_out": True}, "rollout watch demand"),
        ({"production": 1, "waits": "No server answers."}, "serve my/demand.yaml"),
        ({"production": None}, None),
    ],
)
def test_it_names_commands_that_work_for_this_pipeline(
    standing: dict[str, object], command: str | None
) -> None:
    report = RunReport.model_construct(pipeline="demand", version=2, **standing)

    commands = [given for given, _ in next_commands(report, "my/demand.yaml")]

    middle = [] if command is None else [command]
    assert commands == ["registry show demand", *middle, "dev my/demand.yaml"]


def report(**changes: object) -> RunReport:
    values: dict[str, object] = {
        "pipeline": "demand",
        "run_id": "r",
        "verdict": "INCONCLUSIVE",
        "reason": "No significant difference.",
        "version": 3,
        "created": True,
        "production": None,
        "promoted": False,
        "compared_with": "the best simple rule (linear)",
        "metrics": {"loss": 2.0},
        "reference_metrics": {"loss": 2.5},
        "loss_unit": "MW squared",
        "remedy": "Leave production unchanged. Run: sluice run demand",
        "stage_seconds": {"features": 0.4, "training": 9.0, "evaluation": 2.0, "checks": 1.0},
        "wall_seconds": 13.4,
        "overhead_seconds": 1.0,
    }
    return RunReport.model_validate(values | changes)


def test_the_headline_says_what_is_in_production() -> None:
    assert _headline(report()).endswith("no version is in production yet.")
    assert _headline(report(production=2)).endswith("version 2 stays in production.")


def test_a_refusal_states_the_advice_and_the_unit_of_the_loss(tmp_path: Path) -> None:
    home = Home.from_environment({"SLUICE_HOME": str(tmp_path)}, cwd=tmp_path)
    store = ArtifactStore(home.artifacts)
    with SluiceState.at(home).ledger() as ledger:
        promote_chain(ledger, store, 1)
    console = Console(width=100, record=True, file=io.StringIO())
    refused = report(pipeline=MODEL, version=1)

    print_summary(refused, home, console, pipeline="demand.yaml", program="sluice")

    text = console.export_text()
    assert "  do       Leave production unchanged. Run: sluice run demand" in text
    assert "loss [MW squared]" in text
    assert "took     13.4 s wall time, of which training 9.0 s, evaluation 2.0 s, checks 1.0 s" in (
        text
    )
