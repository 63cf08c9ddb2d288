"""Summarizes a finished search: its result, the importance of parameters, and warnings."""

from collections.abc import Sequence

from sluice.base.settings import Record
from sluice.tuning.importance import Importance, measure_importance
from sluice.tuning.parameters import Params, describe_range
from sluice.tuning.records import SearchResult, TrialRecord
from sluice.tuning.spaces import Space, TrialSettings
from sluice.tuning.tune_space import paths_outside_space

STATE_NAMES = {"pruned": "stopped early"}
"""Display names of trial states."""


class StudySummary(Record):
    """Space and result of a search, the importance of the parameters, and warnings."""

    space: Space
    base: TrialSettings
    result: SearchResult
    importance: Importance

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings for a reviewer of the search, of one or two sentences each.

        Possible reasons are a range that is too narrow, values of the pipeline file outside the
        space, failed trials, too few trials, and parameters without a clear effect.
        """
        failed_trials = [trial for trial in self.result.trials if trial.state == "failed"]
        lines = [report.advice for report in self.importance.parameters if report.advice]
        outside_paths = paths_outside_space(
            self.space.leading(len(self.result.strategy.parameters)), self.base
        )
        if outside_paths:
            outside_values = "; ".join(
                _value_outside(path, self.base, describe_range(self.space.parameters[path]))
                for path in outside_paths
            )
            lines.append(
                "No trial has the settings of the pipeline file, so the loss with these settings "
                f"may be lower than the winner's. Outside the space: {outside_values}."
            )
        if failed_trials:
            lines.append(
                f"{len(failed_trials)} of {self.result.num_trials} trials failed; trial "
                f"{failed_trials[0].id}: {failed_trials[0].reason}"
            )
        if self.importance.outcome == "insufficient":
            lines.append(self.importance.reason)
        elif not self.importance.is_clear:
            lines.append(
                "The losses depend little on the parameters (a random forest explains "
                f"{self.importance.fit:.0%} of the variance of their ranks), so the winner may be "
                "best by chance."
            )
        return tuple(lines)

    @property
    def ranking(self) -> tuple[TrialRecord, ...]:
        """The trials by loss, the lowest first."""
        return tuple(sorted(self.result.trials, key=lambda trial: (trial.loss, trial.id)))


def _value_outside(path: str, base: TrialSettings, value_range: str) -> str:
    value = base.value(path)
    value_text = "not set in the file" if value is None else str(value)
    return f"{path} {value_text} (space: {value_range})"


def summarize_study(
    result: SearchResult, space: Space, base: TrialSettings, *, seed: int
) -> StudySummary:
    """Return the summary of a finished search.

    Cost:
        About half a second for the random forest.
    """
    importance = measure_importance(result, space, seed=seed)
    return StudySummary(space=space, base=base, result=result, importance=importance)


def trial_rows(trials: Sequence[TrialRecord]) -> list[dict[str, object]]:
    """Return one table row per trial: state, epochs, loss, values and the reason of its end."""
    paths = sorted({path for trial in trials for path in trial.params})
    return [
        {
            "trial": trial.id,
            "state": STATE_NAMES.get(trial.state, trial.state),
            "epochs": len(trial.epochs),
            "validation loss": trial.loss,
            **{path.partition(".")[2]: display_value(trial.params, path) for path in paths},
            "why it ended": trial.reason,
        }
        for trial in trials
    ]


def display_value(params: Params, path: str) -> object:
    """Return the value of a parameter for display: 'off' for 0.0, 'not active' if inactive."""
    if path not in params:
        return "not active"
    value = params[path]
    return "off" if value == 0.0 and isinstance(value, float) else value
