"""``sluice rollout status|pause|resume|abort|list``: what a person may do to a rollout."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Protocol

import typer
from rich.table import Table
from rich.text import Text

from sluice.commands.output import print_json
from sluice.commands.registry_access import (
    Actor,
    AsJson,
    KeyFile,
    Model,
    current_user,
    known,
    open_rollouts,
    show_result,
)
from sluice.errors import RolloutConflict, UnknownVersion

if TYPE_CHECKING:
    from sluice.registry.rollouts import RolloutLedger
    from sluice.rollout.state import Rollout, Transition

_TRIES = 20
"""The sensor looks every few seconds, and each look may come in between."""

Why = Annotated[
    str, typer.Option("--reason", help="Why, for the history.", show_default="by hand")
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
    """Say where a model's last rollout stands, and what its step still lacks."""
    from sluice.delivery.standing import read_standing
    from sluice.delivery.view import standing_view

    with open_rollouts() as ledger:
        standing = read_standing(ledger, known(ledger, model), now=datetime.now(UTC))
    if as_json:
        print_json(standing)
        return
    show_result(standing_view(standing))
    if standing.lacking:
        show_result(Text(f"\nlacking      {standing.lacking}", style="yellow"))


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
