"""The summary at the end of a run, and the commands that it suggests."""

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
    ("state", "command"),
    [
        ({"production": 2}, "serve my/demand.yaml"),
        ({"production": 1, "rolls_out": True}, "rollout watch demand"),
        ({"production": 1, "waits": "No server answers."}, "serve my/demand.yaml"),
        ({"production": None}, None),
    ],
)
def test_suggested_commands_fit_the_state_of_the_pipeline(
    state: dict[str, object], command: str | None
) -> None:
    report = RunReport.model_construct(pipeline="demand", version=2, **state)

    commands = [suggested for suggested, _ in next_commands(report, "my/demand.yaml")]

    middle = [] if command is None else [command]
    assert commands == ["registry show demand", *middle, "dev my/demand.yaml"]


def make_report(**changes: object) -> RunReport:
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


def test_headline_names_the_version_in_production() -> None:
    assert _headline(make_report()).endswith("no version is in production yet.")
    assert _headline(make_report(production=2)).endswith("version 2 stays in production.")


def render_summary(
    folder: Path, *, is_terminal: bool = False, width: int = 300, **changes: object
) -> str:
    """Return the printed summary of a run of version 1."""
    home = Home.from_environment({"SLUICE_HOME": str(folder)}, cwd=folder)
    with SluiceState.at(home).ledger() as ledger:
        promote_chain(ledger, ArtifactStore(home.artifacts), 1)
    console = Console(
        width=width, record=True, file=io.StringIO(), force_terminal=is_terminal, color_system=None
    )
    finished = make_report(pipeline=MODEL, version=1, **changes)
    print_summary(finished, home, console, pipeline="demand.yaml", program="sluice")
    return console.export_text()


STOPPED = "Stopped too early in 10 of 10 trainings. Set training.max_epochs to 20."


@pytest.mark.parametrize(
    ("reason", "line"),
    [
        ("Significantly better.", f"  training {STOPPED}\n"),
        (f"{STOPPED} No significant difference.", f"  why      {STOPPED} No"),
    ],
)
def test_training_problems_are_printed_once(tmp_path: Path, reason: str, line: str) -> None:
    text = render_summary(tmp_path, symptoms=(STOPPED,), reason=reason)

    assert line in text
    assert text.count(STOPPED) == 1


def test_refusal_states_the_advice_and_the_loss_unit(tmp_path: Path) -> None:
    text = render_summary(tmp_path)

    assert "  do       Leave production unchanged. Run: sluice run demand" in text
    assert "loss [MW squared]" in text
    assert "took     13.4 s wall time, of which training 9.0 s, evaluation 2.0 s, checks 1.0 s" in (
        text
    )


LONG_REASON = f"{'word ' * 20}end. Report: /srv/.sluice/reports/{'x' * 40}.html"


def test_terminal_output_wraps_long_texts_in_their_own_column(tmp_path: Path) -> None:
    lines = render_summary(tmp_path, is_terminal=True, width=60, reason=LONG_REASON).splitlines()

    first = next(number for number, line in enumerate(lines) if line.startswith("  why      word"))
    assert all(len(line) <= 60 for line in lines[first : first + 5])
    assert lines[first + 1].startswith(" " * 11 + "word")


def test_file_output_has_each_text_on_one_line(tmp_path: Path) -> None:
    assert f"  why      {LONG_REASON}\n" in render_summary(tmp_path, width=60, reason=LONG_REASON)
