"""``sluice rollout``: follow a rollout, and rehearse one."""

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
    from sluice.rollout_control.standing import Standing

_LOOK_S = 1.0


def register(app: typer.Typer) -> None:
    """Add ``rollout`` and its commands to the command line."""
    group = typer.Typer(
        name="rollout",
        help="A challenger on its way into production.",
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
    once: Annotated[bool, typer.Option("--once", help="Print where it stands, and end.")] = False,
    as_json: AsJson = False,
) -> None:
    """Follow a model's rollout until it is over; nothing is changed.

    With --json it prints one object a line, whenever something changed.
    """
    from sluice.registry.rollouts import RolloutLedger

    home = Home.from_environment(os.environ, cwd=Path.cwd())
    with RolloutLedger.open(
        home.registry_url, clock=lambda: datetime.now(UTC), create=False
    ) as ledger:
        standings = _standings(ledger, model, once=once)
        if as_json:
            _print_lines(standings, whole=once)
        else:
            _draw(standings)


def _standings(ledger: "RolloutLedger", model: str, *, once: bool) -> "Iterator[Standing]":
    from sluice.cli.registry_access import known
    from sluice.rollout_control.standing import read_standing

    known(ledger, model)
    while True:
        standing = read_standing(ledger, model, now=datetime.now(UTC))
        yield standing
        if once or standing.rollout.is_over:
            return
        time.sleep(_LOOK_S)


def _draw(standings: "Iterator[Standing]") -> None:
    """On a terminal one picture that changes; elsewhere the last one, and what happened before."""
    from rich.live import Live

    from sluice.rollout_control.view import standing_view, transitions_table

    console = results()
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            for standing in standings:
                live.update(standing_view(standing), refresh=True)
        return
    told = 0
    last = None
    for standing in standings:
        if last is not None and len(standing.transitions) > told:
            console.print(
                transitions_table(standing.transitions[told:], since=standing.rollout.started_at)
            )
        told, last = len(standing.transitions), standing
    if last is not None:
        console.print(standing_view(last))


def _print_lines(standings: "Iterator[Standing]", *, whole: bool) -> None:
    if whole:
        print_json(next(standings))
        return
    before = None
    for standing in standings:
        state = standing.model_copy(update={"at": standing.rollout.started_at})
        if state != before:
            sys.stdout.write(standing.model_dump_json() + "\n")
            sys.stdout.flush()
        before = state
