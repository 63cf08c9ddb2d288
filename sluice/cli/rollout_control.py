"""``sluice rollout status|pause|resume|abort|list``: what a person may do to a rollout."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer
from rich.table import Table
from rich.text import Text

from sluice.base.errors import RolloutConflict, UnknownVersion
from sluice.cli.output import print_json, results
from sluice.cli.registry_access import (
    Actor,
    AsJson,
    KeyFile,
    Model,
    as_text,
    current_user,
    known,
    open_rollouts,
    show_result,
)

if TYPE_CHECKING:
    from pathlib import Path

    from sluice.rollout.state import Rollout, Transition

_TRIES = 20
"""The sensor looks every few seconds, and each look may come in between."""

Why = Annotated[
    str,
    typer.Option(
        "--reason", help="Why, for the history.", callback=as_text, show_default="by hand"
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
    """Say where a model's last rollout stands, and what a look at it would do now."""
    from sluice.rollout_control.drive import look_at
    from sluice.rollout_control.standing import read_standing
    from sluice.rollout_control.view import drift_words, standing_view

    now = datetime.now(UTC)
    with open_rollouts() as ledger:
        standing = read_standing(ledger, known(ledger, model), now=now)
        rollout = standing.rollout
        look = None if rollout.is_over else look_at(ledger, rollout, now=now)
        resumed = None
        if look is not None and look.rollout.phase == "paused":
            rolling = rollout.model_copy(update={"phase": "rolling"})
            resumed = look_at(ledger, rolling, now=now)
    last = standing.transitions[-1]
    if as_json:
        print_json(
            standing.model_dump(mode="json")
            | {
                "lease_left_s": standing.lease_left_s,
                "looked_at_now": None if look is None else look.model_dump(mode="json"),
                "if_it_rolled": None if resumed is None else resumed.model_dump(mode="json"),
            }
        )
        return
    drift = "" if look is None or look.drift is None else drift_words(look.drift)
    results().print(standing_view(standing, drift=drift))
    _tell("ended with" if look is None else "looked at now", look or last)
    if resumed is not None:
        _tell("if it rolled", resumed)


def list_rollouts(model: Model, as_json: AsJson = False) -> None:
    """List a model's rollouts, oldest first, with how each ended."""
    with open_rollouts() as ledger:
        ids = ledger.rollout_ids(known(ledger, model))
        told = [ledger.rollout_transitions(rollout_id) for rollout_id in ids]
    if as_json:
        print_json([_brief(transitions) for transitions in told])
    elif not told:
        show_result(Text(f"{model} never had a rollout."))
    else:
        show_result(_table(told))


def pause(
    model: Model,
    reason: Why = "by hand",
    actor: Actor = None,
    key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Pause: the share stays, the guards watch, no step ends."""
    from sluice.rollout import changes

    _change(changes.pause, model, reason, actor, key, as_json=as_json)


def resume(
    model: Model,
    reason: Why = "by hand",
    actor: Actor = None,
    key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Go on where it was paused, with the same share and new patience."""
    from sluice.rollout import changes

    _change(changes.resume, model, reason, actor, key, as_json=as_json)


def abort(
    model: Model,
    reason: Why = "by hand",
    actor: Actor = None,
    key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Send everything back to production; the challenger is done with."""
    from sluice.rollout import changes

    _change(changes.abort, model, reason, actor, key, as_json=as_json)


class _Change(Protocol):
    def __call__(
        self, rollout: "Rollout", *, now: datetime, actor: str, reason: str
    ) -> "Transition": ...


def _change(
    change: _Change,
    model: str,
    reason: str,
    actor: str | None,
    key: "Path | None",
    *,
    as_json: bool,
) -> None:
    done = _changed(change, model, actor=actor or current_user(), reason=reason, key=key)
    if as_json:
        print_json(done.model_dump(mode="json") | {"summary": done.summary})
    else:
        show_result(Text(done.summary))


def _changed(
    change: _Change, model: str, *, actor: str, reason: str, key: "Path | None"
) -> "Transition":
    """Record the change, on what is there now; a look in between is no reason to refuse it."""
    with open_rollouts(key) as ledger:
        for left in range(_TRIES, 0, -1):
            rollout = ledger.rollout(known(ledger, model))
            if rollout is None:
                raise UnknownVersion(
                    f"{model} never had a rollout.",
                    fix=f"See its versions: sluice registry list {model}",
                )
            done = change(rollout, now=datetime.now(UTC), actor=actor, reason=reason)
            try:
                ledger.record_transition(rollout, done)
                return done
            except RolloutConflict:
                if left == 1:
                    raise
    raise AssertionError("the last try returns or raises")


def _brief(transitions: "Sequence[Transition]") -> dict[str, Any]:
    first, last = transitions[0], transitions[-1]
    rollout = last.rollout
    return {
        "id": rollout.id,
        "model": rollout.model,
        "version": rollout.version,
        "replaces": rollout.production_version,
        "strategy": rollout.settings.strategy,
        "phase": rollout.phase,
        "started_at": first.at.isoformat(),
        "started_by": first.actor,
        "last": last.outcome,
        "last_at": last.at.isoformat(),
        "reason": last.reason,
    }


def _table(told: "Sequence[Sequence[Transition]]") -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("Rollout", "Version", "Strategy", "Started UTC", "By", "Phase", "Why"):
        table.add_column(name, overflow="fold", no_wrap=name in ("Rollout", "Started UTC"))
    for transitions in told:
        first, last = transitions[0], transitions[-1]
        rollout = last.rollout
        cells = (
            rollout.id[:12],
            f"{rollout.version} for {rollout.production_version}",
            rollout.settings.strategy,
            f"{first.at:%Y-%m-%d %H:%M}",
            first.actor,
            rollout.phase.replace("_", " "),
            last.reason,
        )
        table.add_row(*map(Text, cells))
    return table


def _tell(when: str, seen: "Transition") -> None:
    what = seen.outcome.replace("_", " ")
    show_result(Text(f"{when}: {what}. {seen.reason} {seen.remedy}".rstrip()))
