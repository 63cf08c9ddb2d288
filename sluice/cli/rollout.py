"""``sluice rollout``: watches, controls and rehearses rollouts."""

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
from sluice.cli.output import print_json, results_console
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
        bool, typer.Option("--once", help="Print the current status and exit.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the status of a model's rollout until the rollout ends.

    The command does not change the rollout.

    On a terminal the status is updated in place. Elsewhere, and with --json, one line is printed
    per change.
    """
    from sluice.registry.rollouts import RolloutLedger
    from sluice.rollout_control.view import status_view

    home = Home.from_environment(os.environ, cwd=Path.cwd())
    with RolloutLedger.open(
        home.registry_url, clock=lambda: datetime.now(UTC), create=False
    ) as ledger:
        statuses = _poll_statuses(ledger, model, once=once)
        if as_json:
            _print_json_lines(statuses, once=once)
        elif once:
            results_console().print(status_view(next(statuses)))
        else:
            _watch_statuses(statuses)


def _poll_statuses(ledger: "RolloutLedger", model: str, *, once: bool) -> "Iterator[RolloutStatus]":
    from sluice.cli.registry_access import require_model
    from sluice.rollout_control.status import read_status

    require_model(ledger, model)
    while True:
        status = read_status(ledger, model, now=datetime.now(UTC))
        yield status
        if once or status.rollout.is_over:
            return
        time.sleep(_POLL_S)


def _watch_statuses(statuses: "Iterator[RolloutStatus]") -> None:
    """Update a live view on a terminal; elsewhere print each transition, and the last status."""
    from rich.live import Live

    from sluice.rollout_control.view import status_view, transition_line

    console = results_console()
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            for status in statuses:
                live.update(status_view(status), refresh=True)
        return
    num_printed = 0
    last_status = None
    for last_status in statuses:
        for transition in last_status.transitions[num_printed:]:
            line = transition_line(transition, since=last_status.rollout.started_at)
            console.print(line, markup=False, soft_wrap=True)
        num_printed = len(last_status.transitions)
    if last_status is not None:
        console.print(status_view(last_status))


def _print_json_lines(statuses: "Iterator[RolloutStatus]", *, once: bool) -> None:
    if once:
        print_json(next(statuses))
        return
    previous_status = None
    for status in statuses:
        # Two statuses that differ only in their time are equal here.
        status_without_time = status.model_copy(update={"at": status.rollout.started_at})
        if status_without_time != previous_status:
            sys.stdout.write(status.model_dump_json() + "\n")
            sys.stdout.flush()
        previous_status = status_without_time
