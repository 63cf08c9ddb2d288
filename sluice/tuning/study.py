"""A finished search with what it says about its parameters."""

from collections.abc import Sequence

from sluice.base.settings import Record
from sluice.tuning.importance import Importance, measure_importance
from sluice.tuning.parameters import Params, range_of
from sluice.tuning.records import SearchResult, Trial
from sluice.tuning.spaces import Setup, Space
from sluice.tuning.tune_space import not_held

STATES = {"pruned": "stopped early"}
"""States of a trial that people read under another name."""


class Study(Record):
    """What was searched, what was found, and which parameters mattered."""

    space: Space
    base: Setup
    result: SearchResult
    importance: Importance

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reviewer should know: edges of the space, failed trials, too few trials.

        Also which of the file's own values the space does not hold: then no trial is the file's.
        """
        failed = [trial for trial in self.result.trials if trial.state == "failed"]
        lines = [report.advice for report in self.importance.parameters if report.advice]
        outside = not_held(self.space.leading(len(self.result.strategy.parameters)), self.base)
        if outside:
            named = "; ".join(
                _outside(path, self.base, range_of(self.space.parameters[path])) for path in outside
            )
            lines.append(f"Trial 0 is not the file's, so the winner may be worse than it: {named}.")
        if failed:
            lines.append(
                f"{len(failed)} of {self.result.num_trials} trials failed; trial {failed[0].id}: "
                f"{failed[0].reason}"
            )
        if self.importance.outcome == "insufficient":
            lines.append(self.importance.reason)
        elif not self.importance.clear:
            lines.append(
                f"The losses hardly depend on the parameters (a forest foresees "
                f"{self.importance.fit:.0%} of their order): do not read much into the winner."
            )
        return tuple(lines)

    @property
    def ranking(self) -> tuple[Trial, ...]:
        """The trials, the lowest loss first."""
        return tuple(sorted(self.result.trials, key=lambda trial: (trial.loss, trial.id)))


def _outside(path: str, base: Setup, ends: str) -> str:
    value = base.value(path)
    where = "is not set in the file" if value is None else f"{value} is outside the space"
    return f"{path} {where} ({ends})"


def make_study(result: SearchResult, space: Space, base: Setup, *, seed: int) -> Study:
    """Return the study of a finished search.

    Cost:
        About half a second, of the forest.
    """
    importance = measure_importance(result, space, seed=seed)
    return Study(space=space, base=base, result=result, importance=importance)


def trial_rows(trials: Sequence[Trial]) -> list[dict[str, object]]:
    """Return a line a trial for tables: state, epochs, loss, values and the reason of its end."""
    paths = sorted({path for trial in trials for path in trial.params})
    return [
        {
            "trial": trial.id,
            "state": STATES.get(trial.state, trial.state),
            "epochs": len(trial.epochs),
            "validation loss": trial.loss,
            **{path.partition(".")[2]: shown(trial.params, path) for path in paths},
            "why it ended": trial.reason,
        }
        for trial in trials
    ]


def shown(params: Params, path: str) -> object:
    """Return a value as people read it: off is off, and what did not count is said."""
    if path not in params:
        return "not active"
    value = params[path]
    return "off" if value == 0.0 and isinstance(value, float) else value
