"""Where a rollout stands, drawn for a terminal: the same for a real one and for a rehearsal."""

import math
from collections.abc import Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from sluice.rollout.state import GuardReading, Outcome, PredictionDrift, Rollout, Transition
from sluice.rollout_control.standing import Standing

_PHASE = {
    "rolling": "cyan",
    "paused": "yellow",
    "held": "cyan",
    "promoted": "green",
    "rolled_back": "red",
}
_OUTCOME: dict[Outcome, str] = {
    "advance": "green",
    "promote": "green",
    "inconclusive": "yellow",
    "pause": "yellow",
    "roll_back": "red",
    "abort": "red",
}
_VERDICT = {"calm": "green", "suspect": "yellow", "breach": "red"}
_BAR = 24
_NEWEST = 8


def standing_view(standing: Standing, *, drift: str = "") -> RenderableType:
    """Return everything a person wants to see of a rollout.

    Args:
        standing: Where it stands.
        drift: How far apart the predictions are, in words; "" when it was not measured.
    """
    began = standing.rollout.started_at
    parts: list[RenderableType] = [_headline(standing), _share(standing.rollout), Text("")]
    parts += [_arms(standing), Text(""), _guards(standing.guards)]
    if drift:
        parts.append(Text(f"predictions  {drift}"))
    if standing.quality is not None:
        parts.append(Text(f"labels       {standing.quality} on labelled pairs"))
    parts.append(_servers(standing))
    parts += [Text(""), transitions_table(standing.transitions[-_NEWEST:], since=began)]
    return Group(*parts)


def drift_words(drift: PredictionDrift) -> str:
    """Say how far apart the predictions are."""
    if math.isnan(drift.distance):
        return f"not compared yet: {drift.rows} requests that both arms answered"
    return (
        f"{drift.distance:.3g} times as far apart as on held-out rows, rolls back above "
        f"{drift.limit:.3g} ({drift.rows} requests)"
    )


def transition_line(transition: Transition, *, since: datetime) -> str:
    """Return what happened in a line: when, what, the share and why."""
    passed_s = (transition.at - since).total_seconds()
    what, share = transition.outcome.replace("_", " "), 100 * transition.rollout.users_share
    return f"{passed_s:6.1f} s  {what}, {share:g} %: {transition.reason}"


def transitions_table(transitions: Sequence[Transition], *, since: datetime) -> Table:
    """Return what happened, a line each, with the seconds since a moment."""
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


def _headline(standing: Standing) -> Text:
    rollout = standing.rollout
    phase = rollout.phase.replace("_", " ")
    production = standing.production
    line = Text.assemble(
        (rollout.model, "bold"),
        f": version {rollout.version} against version {rollout.production_version}, ",
        (phase, _PHASE[rollout.phase]),
        f" at step {rollout.step + 1} of {len(rollout.settings.steps)}",
    )
    if rollout.is_over:
        now = "nothing" if production is None else f"version {production}"
        return line.append(f"; in production: {now}")
    return line.append(f"; lease {standing.lease_left_s:.0f} s")


def _share(rollout: Rollout) -> Text:
    share = rollout.users_share
    full = round(_BAR * share)
    copies = " and copies" if not rollout.is_over and rollout.current_step.shadow else ""
    return Text.assemble(
        "share        ",
        ("#" * full, "green" if share else ""),
        ("-" * (_BAR - full), "dim"),
        f" {100 * share:g} % of the users{copies}",
    )


def _arms(standing: Standing) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("at this step")
    for name in ("requests", "errors", "late", "not finite", "slower"):
        table.add_column(name, justify="right")
    for arm, counts in (
        ("challenger", standing.window.challenger),
        ("production", standing.window.production),
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


def _servers(standing: Standing) -> Text:
    if not standing.servers:
        return Text("servers      none was heard of a moment ago", style="yellow")
    text = Text(f"servers      {len(standing.servers)}")
    text.append(f", {sum(s.challenger is not None for s in standing.servers)} with the challenger")
    for problem in dict.fromkeys(p for s in standing.servers for p in s.problems):
        text.append(f"\n             {problem}", style="yellow")
    return text
