"""ROLL-2: what ``sluice rollout rehearse`` says while it goes on."""

import io
from datetime import timedelta

from rich.console import Console

from sluice.cli.rollout_rehearsal import sample_display
from sluice.rehearsal.traffic import RequestCounts
from sluice.rollout import transitions as changes
from sluice.rollout.observations import merge_counts
from sluice.rollout.settings import RolloutSettings
from sluice.rollout.state import PredictionDrift, Transition
from sluice.rollout_control.status import RolloutStatus
from sluice.rollout_control.view import describe_drift
from tests.sluice.registry.ledger_samples import NOW

BEGUN = changes.first_transition(
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
ABORTED = changes.abort(
    BEGUN.rollout, now=NOW + timedelta(seconds=12.5), actor="ada", reason="Enough."
)


def status(*transitions: Transition) -> RolloutStatus:
    rollout = transitions[-1].rollout
    return RolloutStatus(
        at=NOW,
        rollout=rollout,
        production=1,
        window=merge_counts({}, rollout=rollout.id, epoch=rollout.epoch, since=NOW),
        guards=(),
        quality=None,
        servers=(),
        transitions=transitions,
    )


def test_a_log_gets_a_line_a_transition_and_no_table() -> None:
    console = Console(file=io.StringIO(), width=40)
    with sample_display(console, quiet=False) as tell:
        for seen in ((BEGUN,), (BEGUN,), (BEGUN, ABORTED)):
            tell(status(*seen), RequestCounts(), "")

    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines() == [
        "   0.0 s  start, 5 %: A [rehearsal].",
        f"  12.5 s  abort, 0 %: {ABORTED.reason}",
    ]


def test_json_is_left_alone() -> None:
    console = Console(file=io.StringIO())
    with sample_display(console, quiet=True) as tell:
        tell(status(BEGUN), RequestCounts(), "")

    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == ""


def test_predictions_that_are_not_compared_yet_are_no_number() -> None:
    for rows, requests in ((3, "3 requests"), (1, "1 request")):
        drift = PredictionDrift(distance=float("nan"), limit=4, rows=rows)
        assert describe_drift(drift) == f"not compared yet: both arms answered only {requests}"
