"""Plots of a search: its trials, their learning curves, and the effect of each parameter."""

import math
import re
from typing import TYPE_CHECKING

from sluice.base.pluralize import pluralize
from sluice.reports.figures import INK, MUTED, TRAIN, VALIDATION, as_png, new_figure, set_headline
from sluice.tuning.importance import Importance, ParameterReport
from sluice.tuning.live_table import cell_text
from sluice.tuning.parameters import Choice, Integers, LogUniform, Parameter, PowersOfTwo, Value
from sluice.tuning.records import SearchResult, Strategy
from sluice.tuning.spaces import Space
from sluice.tuning.tune_functions import TuneFunction

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WARNING_COLOUR = "#b7791f"
"""Colour of failed trials, and of parameters whose best value is at an edge of the range."""
_HALF_WIDTH_IN = 5.0
"""Width of a plot on a page with two plots in a row [inches]."""
_STATE_STYLES = {"finished": ("o", VALIDATION), "pruned": ("x", MUTED)}
"""Marker and colour of a trial by its state."""


def trials_png(result: SearchResult, *, unit: str = "loss units") -> bytes:
    """Plot the loss of every trial in order, and the lowest loss so far as a line.

    Vertical lines mark failed trials.
    """
    figure, axes = new_figure(height_in=3.0)
    for state, (marker, colour) in _STATE_STYLES.items():
        trials = [t for t in result.trials if t.state == state and math.isfinite(t.loss)]
        if trials:
            label = "finished" if state == "finished" else "stopped early"
            ids, losses = [t.id for t in trials], [t.loss for t in trials]
            axes.plot(ids, losses, marker, color=colour, label=label, ms=5)
    lowest_loss, lowest_so_far = math.inf, []
    for trial in result.trials:
        lowest_loss = min(lowest_loss, trial.loss)
        lowest_so_far.append(lowest_loss if math.isfinite(lowest_loss) else math.nan)
    axes.plot(
        range(len(lowest_so_far)), lowest_so_far, color=INK, linewidth=1.2, drawstyle="steps-post"
    )
    failed_ids = [t.id for t in result.trials if t.state == "failed"]
    for trial_id in failed_ids:
        axes.axvline(trial_id, color=_WARNING_COLOUR, linewidth=0.8, linestyle=(0, (2, 3)))
    _limit_y_axis(axes, [t.loss for t in result.trials if math.isfinite(t.loss)])
    _set_integer_ticks(axes)
    axes.set_xlabel("trial")
    axes.set_ylabel(f"validation loss [{unit}]")
    counts_text = f"{pluralize(len(result.trials), 'trial')}, {len(failed_ids)} failed"
    set_headline(
        axes,
        f"Best: trial {result.best} with {result.winner.loss:.4g}",
        f"{counts_text}; {strategy_text(result.strategy)}",
        colour=INK,
    )
    axes.legend(loc="upper right", frameon=False, fontsize=8.5)
    return as_png(figure)


def curves_png(result: SearchResult, *, unit: str = "loss units") -> bytes:
    """Plot the validation loss of every trial over its epochs; the best trial has a thick line.

    Crosses mark trials that were stopped early, triangles mark copies by PBT.
    """
    figure, axes = new_figure(height_in=3.4)
    for trial in result.trials:
        losses = [epoch.val_loss for epoch in trial.epochs]
        colour = VALIDATION if trial.state == "finished" else MUTED
        axes.plot(range(1, len(losses) + 1), losses, color=colour, linewidth=0.8, alpha=0.35)
    best_losses = [epoch.val_loss for epoch in result.winner.epochs]
    label = f"best trial ({result.best})"
    axes.plot(
        range(1, len(best_losses) + 1), best_losses, color=VALIDATION, linewidth=2.2, label=label
    )
    stopped_trials = [trial for trial in result.trials if trial.state == "pruned" and trial.epochs]
    stop_points = [(len(trial.epochs), trial.epochs[-1].val_loss) for trial in stopped_trials]
    copy_points = [
        (exploit.epoch, result.trials[exploit.trial].epochs[exploit.epoch - 1].val_loss)
        for exploit in result.exploits
        if 0 < exploit.epoch <= len(result.trials[exploit.trial].epochs)
    ]
    for points, marker, label in (
        (stop_points, "x", "stopped early"),
        (copy_points, "^", "copied another trial"),
    ):
        if points:
            axes.plot(*zip(*points, strict=True), marker, color=MUTED, ms=4.5, label=label)
    _limit_y_axis(
        axes, [e.val_loss for t in result.trials for e in t.epochs if math.isfinite(e.val_loss)]
    )
    _set_integer_ticks(axes)
    axes.set_xlabel("epoch")
    axes.set_ylabel(f"validation loss [{unit}]")
    max_epochs = max(len(trial.epochs) for trial in result.trials)
    num_longest = sum(len(trial.epochs) == max_epochs for trial in result.trials)
    set_headline(
        axes,
        "Learning curves of the trials",
        f"{num_longest} of {len(result.trials)} trials trained for "
        f"{pluralize(max_epochs, 'epoch')}",
        colour=INK,
    )
    axes.legend(loc="upper right", frameon=False, fontsize=8.5)
    return as_png(figure)


def importance_png(importance: Importance) -> bytes:
    """Plot each parameter's share of the importance; another colour marks a narrow range."""
    reports = importance.parameters
    figure, axes = new_figure(height_in=1.4 + 0.34 * max(1, len(reports)))
    if importance.outcome != "known":
        axes.text(0.5, 0.5, importance.reason, transform=axes.transAxes, ha="center", color=INK)
        axes.set_axis_off()
        set_headline(axes, "Importance is unknown", "", colour=INK)
        return as_png(figure)
    for row, report in enumerate(reports):
        axes.barh(
            row, report.share, height=0.6, color=_WARNING_COLOUR if report.edge else VALIDATION
        )
        note = f" {report.share:.0%}" + (
            f", best value at the {report.edge} end" if report.edge else ""
        )
        axes.text(report.share, row, note, va="center", color=INK, fontsize=8.5)
    axes.set_yticks(range(len(reports)), [report.path for report in reports])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlim(0, 1.25 * max(report.share for report in reports) or 1)
    axes.set_xlabel("share of importance")
    set_headline(
        axes,
        f"{reports[0].path} matters most"
        if importance.is_clear
        else "No parameter clearly matters",
        f"{pluralize(importance.num_trials, 'trial')} at epoch {importance.at_epoch}; the random "
        f"forest explains {importance.fit:.0%} of the rank variance of held-out losses",
        colour=INK,
    )
    return as_png(figure)


def sensitivity_png(
    report: ParameterReport,
    result: SearchResult,
    space: Space,
    *,
    at_epoch: int,
    unit: str = "loss units",
) -> bytes:
    """Plot the losses of all trials over one parameter, and the expected loss at each value.

    The loss of a trial in which the parameter is off is drawn as a dotted line.

    Args:
        report: Report of the parameter.
        result: Result of the search.
        space: The searched space.
        at_epoch: Epoch at which trials are compared, as in ``Importance``.
        unit: Unit of the losses.
    """
    figure, axes = new_figure(height_in=2.9)
    figure.set_figwidth(_HALF_WIDTH_IN)
    parameter = space.parameters[report.path]
    tried_values = _tried_values(report.path, result, at_epoch)
    points = [
        (_x_coordinate(parameter, value), loss)
        for value, loss in tried_values
        if not _is_off(parameter, value)
    ]
    losses_when_off = [loss for value, loss in tried_values if _is_off(parameter, value)]
    axes.plot([x for x, _ in points], [loss for _, loss in points], "o", color=TRAIN, ms=4.5)
    for loss in losses_when_off:
        axes.axhline(loss, color=TRAIN, linewidth=0.7, linestyle=(0, (2, 3)))
    axes.plot(
        [_x_coordinate(parameter, point.value) for point in report.sensitivity],
        [point.loss for point in report.sensitivity],
        "s" if isinstance(parameter, Choice) else "-",
        color=VALIDATION,
        linewidth=2,
    )
    if report.best is not None and not _is_off(parameter, report.best):
        axes.axvline(_x_coordinate(parameter, report.best), color=INK, linewidth=1)
    if isinstance(parameter, LogUniform) or (
        isinstance(parameter, TuneFunction) and parameter.is_log
    ):
        axes.set_xscale("log")
    elif isinstance(parameter, PowersOfTwo):
        axes.set_xscale("log", base=2)
    elif isinstance(parameter, Integers):
        _set_integer_ticks(axes)
    elif isinstance(parameter, Choice):
        axes.set_xticks(range(len(parameter.options)), list(map(cell_text, parameter.options)))
    _limit_y_axis(axes, [loss for _, loss in tried_values])
    axes.set_xlabel(report.path)
    axes.set_ylabel(f"loss at epoch {at_epoch} [{unit}]")
    edge_title = f"{report.path}: best at the {report.edge} end of the range"
    set_headline(
        axes,
        edge_title if report.edge else f"Loss over {report.path}",
        f"{report.share:.0%} of the importance; best trial: {_value_text(parameter, report.best)}"
        + (
            f"; {pluralize(len(losses_when_off), 'trial')} with the parameter off (dotted)"
            if losses_when_off
            else ""
        ),
        colour=_WARNING_COLOUR if report.edge else INK,
    )
    return as_png(figure)


def strategy_text(strategy: Strategy) -> str:
    """Return how trials were suggested and stopped, as text with short class names."""
    proposals, scheduler = (
        re.split(r"[.:]", name)[-1] for name in (strategy.proposals, strategy.scheduler)
    )
    stopping_text = "no trial stopped early" if scheduler == "none" else f"scheduler {scheduler}"
    return f"proposals: {proposals}, {stopping_text}"


def _tried_values(path: str, result: SearchResult, at_epoch: int) -> list[tuple[Value, float]]:
    """Return the value of a parameter and the loss at ``at_epoch``, for each trial.

    Trials with a non-finite loss, and trials in which the parameter is inactive, are omitted.
    """
    return [
        (
            trial.schedule[0].params[path],
            trial.epochs[min(at_epoch, len(trial.epochs)) - 1].kept_loss,
        )
        for trial in result.trials
        if math.isfinite(trial.loss) and path in trial.schedule[0].params
    ]


def _limit_y_axis(axes: "Axes", losses: list[float]) -> None:
    """Limit the y axis to the lowest 90 % of the losses.

    With the loss of a diverged trial, the differences of the other losses would be invisible.
    """
    sorted_losses = sorted(losses)
    if not sorted_losses:
        return
    low, high = sorted_losses[0], sorted_losses[int(0.9 * (len(sorted_losses) - 1))]
    if high > low:
        axes.set_ylim(low - 0.1 * (high - low), high + 0.25 * (high - low))


def _set_integer_ticks(axes: "Axes") -> None:
    """Put ticks at integers only."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _x_coordinate(parameter: Parameter, value: Value) -> float:
    """Return the x coordinate of a value; options of a choice are numbered."""
    if isinstance(parameter, Choice):
        return float(list(map(repr, parameter.options)).index(repr(value)))
    assert isinstance(value, int | float), f"{value!r} has no position on an axis"
    return float(value)


def _value_text(parameter: Parameter, value: Value | None) -> str:
    if value is None:
        return "not active"
    if _is_off(parameter, value):
        return "off"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _is_off(parameter: Parameter, value: Value) -> bool:
    return isinstance(parameter, LogUniform) and not value
