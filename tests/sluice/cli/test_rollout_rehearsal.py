"""Progress output of ``sluice rollout rehearse`` (ROLL-2)."""

import io
from datetime import timedelta

from rich.console import Console

from sluice.cli.rollout_rehearsal import sample_display
from sluice.rehearsal.traffic import RequestCounts
from sluice.rollout import transitions
from sluice.rollout.observations import merge_counts
from sluice.rollout.settings import RolloutSettings
from sluice.rollout.state import PredictionDrift, Transition
from sluice.rollout_control.status import RolloutStatus
from sluice.rollout_control.view import describe_drift
from tests.sluice.registry.ledger_samples import NOW

STARTED = transitions.first_transition(
    rollout_id="r",
    model="m",
    version=2,
    candidate="c",
    production="p",
    production_version=1,
    pointer_revision=1,
    epoch=2,
    settings=RolloutSettings(),
    actor="ada",
    reason="A [rehearsal].",
    now=NOW,
)
ABORTED = transitions.abort(
    STARTED.rollout, now=NOW + timedelta(seconds=12.5), actor="ada", reason="Enough."
)


def make_status(*history: Transition) -> RolloutStatus:
    rollout = history[-1].rollout
    return RolloutStatus(
        at=NOW,
        rollout=rollout,
        production=1,
        window=merge_counts({}, rollout=rollout.id, epoch=rollout.epoch, since=NOW),
        guards=(),
        quality=None,
        servers=(),
        transitions=history,
    )


def test_log_output_has_one_line_per_transition_and_no_table() -> None:
    console = Console(file=io.StringIO(), width=40)
    with sample_display(console, quiet=False) as show:
        for seen in ((STARTED,), (STARTED,), (STARTED, ABORTED)):
            show(make_status(*seen), RequestCounts(), "")

    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines() == [
        "   0.0 s  start, 5 %: A [rehearsal].",
        f"  12.5 s  abort, 0 %: {ABORTED.reason}",
    ]


def test_quiet_display_prints_nothing() -> None:
    console = Console(file=io.StringIO())
    with sample_display(console, quiet=True) as show:
        show(make_status(STARTED), RequestCounts(), "")

    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == ""


def test_drift_without_enough_predictions_is_described_in_words() -> None:
    for rows, requests in ((3, "3 requests"), (1, "1 request")):
        drift = PredictionDrift(distance=float("nan"), limit=4, rows=rows)
        assert describe_drift(drift) == f"not compared yet: both arms answered only {requests}"
