"""``sluice rollout status|pause|resume|abort|list``: manual control of a rollout."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer
from rich.table import Table
from rich.text import Text

from sluice.base.current_user import current_user
from sluice.base.errors import RolloutConflict, UnknownVersion
from sluice.cli.output import print_json, results_console
from sluice.cli.registry_access import (
    Actor,
    AsJson,
    KeyFile,
    Model,
    check_storable,
    open_rollouts,
    require_model,
    show_result,
)

if TYPE_CHECKING:
    from pathlib import Path

    from sluice.rollout.state import Rollout, Transition

_MAX_ATTEMPTS = 20
"""Maximum number of attempts to record a change. An attempt fails if the controller changes the
rollout at the same time. The controller runs every few seconds."""

OptionalReason = Annotated[
    str,
    typer.Option(
        "--reason", help="Reason, for the history.", callback=check_storable, show_default="manual"
    ),
]


def add_to(group: typer.Typer) -> None:
    """Add the commands to the group ``sluice rollout``."""
    for name, command, example in (
        ("status", status, "status sp500_volatility"),
        ("list", list_rollouts, "list sp500_volatility"),
        ("pause", pause, "pause sp500_volatility --reason 'market opens'"),
        ("resume", resume, "resume sp500_volatility"),
        ("abort", abort, "abort sp500_volatility --reason 'errors since noon'"),
    ):
        group.command(name, epilog=f"Example: sluice rollout {example}")(command)


def status(model: Model, as_json: AsJson = False) -> None:
    """Show the status of a model's last rollout, and what the controller would do now."""
    from sluice.rollout_control.controller import assess
    from sluice.rollout_control.status import read_status
    from sluice.rollout_control.view import describe_drift, status_view

    now = datetime.now(UTC)
    with open_rollouts() as ledger:
        status = read_status(ledger, require_model(ledger, model), now=now)
        rollout = status.rollout
        assessment = None if rollout.is_over else assess(ledger, rollout, now=now)
        resumed_assessment = None
        if assessment is not None and assessment.rollout.phase == "paused":
            resumed_rollout = rollout.model_copy(update={"phase": "rolling"})
            resumed_assessment = assess(ledger, resumed_rollout, now=now)
    last_transition = status.transitions[-1]
    if as_json:
        print_json(
            status.model_dump(mode="json")
            | {
                "lease_left_s": status.lease_left_s,
                "looked_at_now": None if assessment is None else assessment.model_dump(mode="json"),
                "if_it_rolled": None
                if resumed_assessment is None
                else resumed_assessment.model_dump(mode="json"),
            }
        )
        return
    drift_text = (
        "" if assessment is None or assessment.drift is None else describe_drift(assessment.drift)
    )
    results_console().print(status_view(status, drift_text=drift_text))
    _print_transition(
        "ended with" if assessment is None else "assessed now", assessment or last_transition
    )
    if resumed_assessment is not None:
        _print_transition("if the rollout were resumed", resumed_assessment)


def list_rollouts(model: Model, as_json: AsJson = False) -> None:
    """List a model's rollouts, oldest first, with phase and reason of the last transition."""
    with open_rollouts() as ledger:
        ids = ledger.rollout_ids(require_model(ledger, model))
        histories = [ledger.rollout_transitions(rollout_id) for rollout_id in ids]
    if as_json:
        print_json([_rollout_summary(transitions) for transitions in histories])
    elif not histories:
        show_result(Text(f"{model} has had no rollout."))
    else:
        show_result(_table(histories))


def pause(
    model: Model,
    reason: OptionalReason = "manual",
    actor: Actor = None,
    key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Pause a rollout: its traffic share stays, its guards remain active, and no step ends."""
    from sluice.rollout import transitions

    _record_and_print(transitions.pause, model, reason, actor, key, as_json=as_json)


def resume(
    model: Model,
    reason: OptionalReason = "manual",
    actor: Actor = None,
    key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Resume a paused rollout with the same traffic share; the time limit of its step restarts."""
    from sluice.rollout import transitions

    _record_and_print(transitions.resume, model, reason, actor, key, as_json=as_json)


def abort(
    model: Model,
    reason: OptionalReason = "manual",
    actor: Actor = None,
    key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Abort a rollout: all traffic returns to production, and the challenger is removed."""
    from sluice.rollout import transitions

    _record_and_print(transitions.abort, model, reason, actor, key, as_json=as_json)


class _Change(Protocol):
    """Function that returns the transition of a manual change, such as a pause."""

    def __call__(
        self, rollout: "Rollout", *, now: datetime, actor: str, reason: str
    ) -> "Transition": ...


def _record_and_print(
    change: _Change,
    model: str,
    reason: str,
    actor: str | None,
    key: "Path | None",
    *,
    as_json: bool,
) -> None:
    transition = _record_change(
        change, model, actor=actor or current_user(), reason=reason, key=key
    )
    if as_json:
        print_json(transition.model_dump(mode="json") | {"summary": transition.summary})
    else:
        show_result(Text(transition.summary))


def _record_change(
    change: _Change, model: str, *, actor: str, reason: str, key: "Path | None"
) -> "Transition":
    """Record a change of the last rollout; retry if the controller changed it at the same time."""
    with open_rollouts(key) as ledger:
        for attempts_left in range(_MAX_ATTEMPTS, 0, -1):
            rollout = ledger.rollout(require_model(ledger, model))
            if rollout is None:
                raise UnknownVersion(
                    f"{model} has had no rollout.",
                    fix=f"List its versions: sluice registry list {model}",
                )
            transition = change(rollout, now=datetime.now(UTC), actor=actor, reason=reason)
            try:
                ledger.record_transition(rollout, transition)
                return transition
            except RolloutConflict:
                if attempts_left == 1:
                    raise
    raise AssertionError("The last attempt returns or raises.")


def _rollout_summary(transitions: "Sequence[Transition]") -> dict[str, Any]:
    first_transition, last_transition = transitions[0], transitions[-1]
    rollout = last_transition.rollout
    return {
        "id": rollout.id,
        "model": rollout.model,
        "version": rollout.version,
        "replaces": rollout.production_version,
        "strategy": rollout.settings.strategy,
        "phase": rollout.phase,
        "started_at": first_transition.at.isoformat(),
        "started_by": first_transition.actor,
        "last": last_transition.outcome,
        "last_at": last_transition.at.isoformat(),
        "reason": last_transition.reason,
    }


def _table(histories: "Sequence[Sequence[Transition]]") -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("Rollout", "Version", "Strategy", "Started UTC", "Started by", "Phase", "Reason"):
        table.add_column(name, overflow="fold", no_wrap=name in ("Rollout", "Started UTC"))
    for transitions in histories:
        first_transition, last_transition = transitions[0], transitions[-1]
        rollout = last_transition.rollout
        cells = (
            rollout.id[:12],
            f"{rollout.version} for {rollout.production_version}",
            rollout.settings.strategy,
            f"{first_transition.at:%Y-%m-%d %H:%M}",
            first_transition.actor,
            rollout.phase.replace("_", " "),
            last_transition.reason,
        )
        table.add_row(*map(Text, cells))
    return table


def _print_transition(label: str, transition: "Transition") -> None:
    outcome_text = transition.outcome.replace("_", " ")
    show_result(Text(f"{label}: {outcome_text}. {transition.reason} {transition.remedy}".rstrip()))
