"""Status of a rollout or rehearsal as a terminal view."""

import math
from collections.abc import Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from sluice.rollout.state import (
    GuardReading,
    PredictionDrift,
    Rollout,
    Transition,
    TransitionOutcome,
)
from sluice.rollout_control.status import RolloutStatus

_PHASE = {
    "rolling": "cyan",
    "paused": "yellow",
    "awaiting_promotion": "cyan",
    "promoted": "green",
    "rolled_back": "red",
}
_OUTCOME: dict[TransitionOutcome, str] = {
    "advance": "green",
    "promote": "green",
    "inconclusive": "yellow",
    "pause": "yellow",
    "roll_back": "red",
    "abort": "red",
}
_VERDICT = {"ok": "green", "warn": "yellow", "breach": "red"}
_BAR = 24
_NEWEST = 8


def status_view(status: RolloutStatus, *, drift: str = "") -> RenderableType:
    """Return the full status of a rollout for the terminal.

    Args:
        status: Status of the rollout.
        drift: Distance of the predictions, in words; "" when it was not measured.
    """
    began = status.rollout.started_at
    parts: list[RenderableType] = [_headline(status), _share(status.rollout), Text("")]
    parts += [_arms(status), Text(""), _guards(status.guards)]
    if drift:
        parts.append(Text(f"predictions  {drift}"))
    if status.quality is not None:
        parts.append(Text(f"labels       {status.quality} on labelled pairs"))
    parts.append(_servers(status))
    parts += [Text(""), transitions_table(status.transitions[-_NEWEST:], since=began)]
    return Group(*parts)


def describe_drift(drift: PredictionDrift) -> str:
    """Describe the distance between the predictions of both arms."""
    if math.isnan(drift.distance):
        return f"not compared yet: {drift.rows} requests that both arms answered"
    return (
        f"{drift.distance:.3g} times the distance on held-out rows, rolls back above "
        f"{drift.limit:.3g} ({drift.rows} requests)"
    )


def transition_line(transition: Transition, *, since: datetime) -> str:
    """Return a transition as one line: time, outcome, share and reason."""
    passed_s = (transition.at - since).total_seconds()
    what, share = transition.outcome.replace("_", " "), 100 * transition.rollout.users_share
    return f"{passed_s:6.1f} s  {what}, {share:g} %: {transition.reason}"


def transitions_table(transitions: Sequence[Transition], *, since: datetime) -> Table:
    """Return the transitions as a table, with the seconds since a moment."""
    table = Table(box=None, pad_edge=False, expand=False)
    table.add_column("s", justify="right", no_wrap=True)
    table.add_column("what happened", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("why", overflow="fold")
    for transition in transitions:
        colour = _OUTCOME.get(transition.outcome, "cyan")
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
        (phase, _PHASE[rollout.phase]),
        f" at step {rollout.step + 1} of {len(rollout.settings.steps)}",
    )
    if rollout.is_over:
        now = "nothing" if production is None else f"version {production}"
        return line.append(f"; in production: {now}")
    return line.append(f"; lease {status.lease_left_s:.0f} s")


def _share(rollout: Rollout) -> Text:
    share = rollout.users_share
    full = round(_BAR * share)
    shadow = " and shadow requests" if not rollout.is_over and rollout.current_step.shadow else ""
    return Text.assemble(
        "share        ",
        ("#" * full, "green" if share else ""),
        ("-" * (_BAR - full), "dim"),
        f" {100 * share:g} % of the users{shadow}",
    )


def _arms(status: RolloutStatus) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("at this step")
    for name in ("requests", "errors", "late", "not finite", "slower"):
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
    table.add_column("")
    for reading in guards:
        colour = _VERDICT[reading.verdict]
        table.add_row(
            reading.guard.replace("_", " "),
            f"{reading.evidence:.3g}",
            f"{reading.limit:.3g}",
            f"[{colour}]{reading.verdict}[/{colour}]",
        )
    return table


def _servers(status: RolloutStatus) -> Text:
    if not status.servers:
        return Text("servers      none reported recently", style="yellow")
    text = Text(f"servers      {len(status.servers)}")
    text.append(f", {sum(s.challenger is not None for s in status.servers)} with the challenger")
    for problem in dict.fromkeys(p for s in status.servers for p in s.problems):
        text.append(f"\n             {problem}", style="yellow")
    return text
