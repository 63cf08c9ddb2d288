"""``sluice rollout``: follows rollouts, and rehearses them."""

import os
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sluice.base.home import Home
from sluice.cli import rollout_control
from sluice.cli.output import print_json, results
from sluice.cli.registry_access import AsJson, Model
from sluice.cli.rollout_rehearsal import rehearse

if TYPE_CHECKING:
    from sluice.registry.rollouts import RolloutLedger
    from sluice.rollout_control.status import RolloutStatus

_POLL_S = 1.0
"""Interval between two reads of the status [s]."""


def register(app: typer.Typer) -> None:
    """Add ``rollout`` and its commands to the command line."""
    group = typer.Typer(
        name="rollout",
        help="Rollouts of challengers into production.",
        epilog="Example: sluice rollout watch sp500_volatility",
        no_args_is_help=True,
    )
    for name, command, example in (
        ("watch", watch, "watch sp500_volatility --once"),
        ("rehearse", rehearse, "rehearse sp500_volatility --fault errors"),
    ):
        group.command(name, epilog=f"Example: sluice rollout {example}")(command)
    rollout_control.add_to(group)
    app.add_typer(group)


def watch(
    model: Model,
    once: Annotated[
        bool, typer.Option("--once", help="Print the present status and exit.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the status of a model's rollout until it has ended; read-only.

    With --json, one line is printed per change.
    """
    from sluice.registry.rollouts import RolloutLedger

    home = Home.from_environment(os.environ, cwd=Path.cwd())
    with RolloutLedger.open(
        home.registry_url, clock=lambda: datetime.now(UTC), create=False
    ) as ledger:
        statuses = _statuses(ledger, model, once=once)
        if as_json:
            _print_lines(statuses, whole=once)
        else:
            _draw(statuses)


def _statuses(ledger: "RolloutLedger", model: str, *, once: bool) -> "Iterator[RolloutStatus]":
    from sluice.cli.registry_access import require_model
    from sluice.rollout_control.status import read_status

    require_model(ledger, model)
    while True:
        status = read_status(ledger, model, now=datetime.now(UTC))
        yield status
        if once or status.rollout.is_over:
            return
        time.sleep(_POLL_S)


def _draw(statuses: "Iterator[RolloutStatus]") -> None:
    """Draw a live view on a terminal; elsewhere print the transitions and the last status."""
    from rich.live import Live

    from sluice.rollout_control.view import status_view, transitions_table

    console = results()
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            for status in statuses:
                live.update(status_view(status), refresh=True)
        return
    printed = 0
    last = None
    for status in statuses:
        if last is not None and len(status.transitions) > printed:
            console.print(
                transitions_table(status.transitions[printed:], since=status.rollout.started_at)
            )
        printed, last = len(status.transitions), status
    if last is not None:
        console.print(status_view(last))


def _print_lines(statuses: "Iterator[RolloutStatus]", *, whole: bool) -> None:
    if whole:
        print_json(next(statuses))
        return
    before = None
    for status in statuses:
        state = status.model_copy(update={"at": status.rollout.started_at})
        if state != before:
            sys.stdout.write(status.model_dump_json() + "\n")
            sys.stdout.flush()
        before = state
