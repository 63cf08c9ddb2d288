"""Shows the status of a rollout or rehearsal in the terminal."""

import math
from collections.abc import Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from sluice.base.pluralize import pluralize
from sluice.rollout.state import (
    GuardReading,
    PredictionDrift,
    Rollout,
    Transition,
    TransitionOutcome,
)
from sluice.rollout_control.status import RolloutStatus

_PHASE_COLOURS = {
    "rolling": "cyan",
    "paused": "yellow",
    "awaiting_promotion": "cyan",
    "promoted": "green",
    "rolled_back": "red",
}
_OUTCOME_COLOURS: dict[TransitionOutcome, str] = {
    "advance": "green",
    "promote": "green",
    "inconclusive": "yellow",
    "pause": "yellow",
    "roll_back": "red",
    "abort": "red",
}
_VERDICT_COLOURS = {"ok": "green", "warn": "yellow", "breach": "red"}
_BAR_WIDTH = 24
"""Width of the bar that shows the share [characters]."""
_MAX_TRANSITIONS = 8
"""Maximum number of the newest transitions that are shown."""


def status_view(status: RolloutStatus, *, drift_text: str = "") -> RenderableType:
    """Return the full status of a rollout for the terminal.

    Args:
        status: Status of the rollout.
        drift_text: Distance of the predictions, from ``describe_drift``; "" if it was not measured.
    """
    sections: list[RenderableType] = [_headline(status), _share(status.rollout), Text("")]
    sections += [_arms(status), Text(""), _guards(status.guards)]
    if drift_text:
        sections.append(Text(f"predictions  {drift_text}"))
    if status.quality is not None:
        sections.append(
            Text(f"labels       {status.quality} on labelled requests that both arms answered")
        )
    sections.append(_servers(status))
    sections += [
        Text(""),
        transitions_table(status.transitions[-_MAX_TRANSITIONS:], since=status.rollout.started_at),
    ]
    return Group(*sections)


def describe_drift(drift: PredictionDrift) -> str:
    """Describe the distance between the predictions of both arms."""
    if math.isnan(drift.distance):
        return f"not compared yet: both arms answered only {pluralize(drift.rows, 'request')}"
    return (
        f"{drift.distance:.3g} times the distance on held-out rows, from {drift.rows} requests; "
        f"rolls back above {drift.limit:.3g} times"
    )


def transition_line(transition: Transition, *, since: datetime) -> str:
    """Return a transition as one line: time, outcome, share and reason."""
    elapsed_s = (transition.at - since).total_seconds()
    outcome, share = transition.outcome.replace("_", " "), 100 * transition.rollout.users_share
    return f"{elapsed_s:6.1f} s  {outcome}, {share:g} %: {transition.reason}"


def transitions_table(transitions: Sequence[Transition], *, since: datetime) -> Table:
    """Return the transitions as a table, with the time from ``since`` to each of them."""
    table = Table(box=None, pad_edge=False, expand=False)
    table.add_column(escape("time [s]"), justify="right", no_wrap=True)
    table.add_column("transition", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("reason", overflow="fold")
    for transition in transitions:
        colour = _OUTCOME_COLOURS.get(transition.outcome, "cyan")
        table.add_row(
            f"{(transition.at - since).total_seconds():.1f}",
            f"[{colour}]{transition.outcome.replace('_', ' ')}[/{colour}]",
            f"{100 * transition.rollout.users_share:g} %",
            escape(transition.reason),
        )
    return table


def _headline(status: RolloutStatus) -> Text:
    rollout = status.rollout
    phase = rollout.phase.replace("_", " ")
    production = status.production
    line = Text.assemble(
        (rollout.model, "bold"),
        f": version {rollout.version} against version {rollout.production_version}, ",
        (phase, _PHASE_COLOURS[rollout.phase]),
        f" at step {rollout.step + 1} of {len(rollout.settings.steps)}",
    )
    if rollout.is_over:
        production_text = "nothing" if production is None else f"version {production}"
        return line.append(f"; in production: {production_text}")
    return line.append(f"; lease ends in {status.lease_left_s:.0f} s")


def _share(rollout: Rollout) -> Text:
    share = rollout.users_share
    num_filled = round(_BAR_WIDTH * share)
    is_shadowed = not rollout.is_over and rollout.current_step.is_shadowed
    return Text.assemble(
        "share        ",
        ("#" * num_filled, "green" if share else ""),
        ("-" * (_BAR_WIDTH - num_filled), "dim"),
        f" {100 * share:g} % of the users{' and shadow requests' if is_shadowed else ''}",
    )


def _arms(status: RolloutStatus) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("in this step")
    for name in ("requests", "errors", "timeouts", "not finite", "slower"):
        table.add_column(name, justify="right")
    for arm, counts in (
        ("challenger", status.window.challenger),
        ("production", status.window.production),
    ):
        numbers = (
            counts.requests,
            counts.errors,
            counts.timeouts,
            counts.not_finite,
            counts.slower,
        )
        table.add_row(arm, *map(str, numbers))
    return table


def _guards(guards: Sequence[GuardReading]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("guard")
    table.add_column("evidence", justify="right")
    table.add_column("rolls back at", justify="right")
    table.add_column("verdict")
    for reading in guards:
        colour = _VERDICT_COLOURS[reading.verdict]
        table.add_row(
            reading.guard.replace("_", " "),
            f"{reading.evidence:.3g}",
            f"{reading.limit:.3g}",
            f"[{colour}]{reading.verdict}[/{colour}]",
        )
    return table


def _servers(status: RolloutStatus) -> Text:
    if not status.servers:
        return Text("servers      no server has reported recently", style="yellow")
    text = Text(f"servers      {len(status.servers)}")
    text.append(f", {sum(s.challenger is not None for s in status.servers)} with the challenger")
    for problem in dict.fromkeys(p for s in status.servers for p in s.problems):
        text.append(f"\n             {problem}", style="yellow")
    return text
