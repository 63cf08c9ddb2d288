"""Measures how much each searched parameter affects the loss, and whether its range is too narrow.

All trials are compared at the same epoch: the earliest epoch after which a trial was stopped early,
or the last epoch if no trial was stopped early. If each trial counted with its own last epoch, the
values of a trial that was stopped early would seem worse only because the trial was short. A trial
that ended before the epoch of the comparison counts with its last epoch.
"""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sluice.base.settings import Record
from sluice.models.settings import ModelSettings
from sluice.training.settings import TrainSettings
from sluice.tuning.parameters import Choice, Parameter, Value
from sluice.tuning.records import SearchResult, TrialRecord
from sluice.tuning.spaces import WORKLOAD_GROUP, Space, split_path

MIN_TRIALS = 10
"""Importance is measured if at least this number of trials has a finite loss. With fewer trials,
the random forest fits noise."""
MIN_FIT = 0.2
"""The importance counts as meaningful if the out-of-bag R2 of the random forest is at least this
value. For 60 trials with random losses, the R2 is lower."""
_NUM_TREES, _NUM_PERMUTATIONS, _NUM_GRID_POINTS = 100, 8, 21
_EDGE_WIDTH = 0.05
"""The best value is at an edge if its position on the scale from 0 to 1 is at most this far from
0 or from 1."""
_MIN_DECREASE = 0.05
"""A range counts as too narrow only if the expected loss decreases towards the edge by more than
this fraction of the interquartile range of the losses. A smaller decrease is noise."""


class SensitivityPoint(Record):
    """Point of a partial dependence curve: the expected loss at one value of a parameter.

    A random forest predicts the rank of a trial's loss. Its prediction is averaged over the tried
    values of the other parameters, and converted to a loss.
    """

    value: Value
    loss: float


class ParameterReport(Record):
    """Importance and sensitivity of one parameter."""

    path: str = Field(description="Dotted path of the parameter.")
    share: float = Field(description="Share of the total importance, 0..1.")
    sensitivity: tuple[SensitivityPoint, ...] = Field(
        description="Expected loss over the range of the parameter."
    )
    best: Value | None = Field(description="Value in the best trial; None if it is inactive there.")
    edge: Literal["", "low", "high"] = Field(
        description="'low' or 'high' if a range that is wider at this end may be better; otherwise "
        "empty. A wider range may be better if the best value is at the end, the setting accepts "
        "values beyond the end, the expected loss decreases towards the end, and the random forest "
        "predicts well enough. A choice has no ends."
    )
    advice: str = Field("", description="Recommendation to widen the range; empty without an edge.")


class Importance(Record):
    """Importance of all parameters of a search."""

    outcome: Literal["known", "insufficient"]
    reason: str = Field(description="Why the data are insufficient; empty otherwise.")
    at_epoch: int = Field(description="Epoch at which trials were compared; 0 if insufficient.")
    num_trials: int = Field(description="Number of trials with a finite loss.")
    fit: float = Field(
        description="Out-of-bag R2 of the random forest on the ranks of the losses; 0 if it is "
        "negative or was not computed."
    )
    parameters: tuple[ParameterReport, ...] = Field(
        description="Parameters, the most important first."
    )

    @property
    def is_clear(self) -> bool:
        """Whether the random forest predicts well enough for the shares to be meaningful."""
        return self.outcome == "known" and self.fit >= MIN_FIT


def measure_importance(result: SearchResult, space: Space, *, seed: int) -> Importance:
    """Return each parameter's importance, sensitivity, and whether its best value is at an edge.

    A random forest is fitted to the ranks of the losses, so that a few diverged trials do not
    dominate. The importance of a parameter is the increase of the forest's error when the values of
    that parameter are permuted. For the sensitivity, the same value of the parameter is inserted
    into all trials in which the parameter is active. The mean of the predicted ranks is converted
    to a loss. These steps are repeated for each value of a grid over the range.

    Args:
        result: Result of the search.
        space: The searched space.
        seed: Seed of the forest and the permutations.

    Cost:
        About half a second.

    Source:
        Breiman (2001), "Random Forests", Machine Learning 45.
    """
    finite_trials = [trial for trial in result.trials if math.isfinite(trial.loss)]
    searched_parameters = {path: space.parameters[path] for path in result.strategy.parameters}
    at_epoch = min((len(t.epochs) for t in finite_trials if t.state == "pruned"), default=0)
    at_epoch = at_epoch or max((len(t.epochs) for t in finite_trials), default=0)
    losses_N = np.array([_loss_at_epoch(trial, at_epoch) for trial in finite_trials])
    reason = _insufficiency_reason(losses_N)
    if reason:
        return Importance(
            outcome="insufficient",
            reason=reason,
            at_epoch=0,
            num_trials=len(finite_trials),
            fit=0.0,
            parameters=(),
        )
    values_ND = np.array(
        [_scaled_values(trial, searched_parameters) for trial in finite_trials], dtype=np.float64
    )
    forest = _Forest(values_ND, losses_N, seed=seed)
    shares_D = _importance_shares(forest, seed=seed)
    loss_iqr = float(np.quantile(losses_N, 0.75) - np.quantile(losses_N, 0.25))
    if forest.out_of_bag_r2 < MIN_FIT:
        loss_iqr = math.inf  # so that no edge is reported: the sensitivity is noise
    reports = [
        _report_parameter(
            path,
            parameter,
            float(shares_D[d]),
            forest.sensitivity_curve(d, parameter),
            result,
            loss_iqr,
        )
        for d, (path, parameter) in enumerate(searched_parameters.items())
    ]
    return Importance(
        outcome="known",
        reason="",
        at_epoch=at_epoch,
        num_trials=len(finite_trials),
        fit=forest.out_of_bag_r2,
        parameters=tuple(sorted(reports, key=lambda report: (-report.share, report.path))),
    )


class _Forest:
    """Random forest that predicts the rank of a trial's loss, 0..1, from its parameters' values.

    Every value is converted to a number: its position in the range, 0..1; the index of a choice; -1
    if the parameter is off; -2 if it is inactive.
    """

    def __init__(self, values_ND: NDArray[np.float64], losses_N: NDArray[np.float64], *, seed: int):
        from sklearn.ensemble import RandomForestRegressor

        self.values_ND = values_ND
        self.sorted_losses_N = np.sort(losses_N)
        # searchsorted gives equal losses equal ranks.
        self.ranks_N = np.searchsorted(self.sorted_losses_N, losses_N) / (len(losses_N) - 1)
        self._regressor = RandomForestRegressor(
            _NUM_TREES, min_samples_leaf=2, oob_score=True, random_state=seed % 2**32, n_jobs=1
        ).fit(values_ND, self.ranks_N)
        self.out_of_bag_r2 = max(0.0, float(self._regressor.oob_score_))

    def error_increase(self, column: int, rng: np.random.Generator) -> float:
        """Return the increase of the error when the values of ``column`` are permuted."""
        # S: the original values, followed by their permutations. All losses are predicted in one
        # call, because the fixed cost of a call is larger than the cost of the rows.
        permuted_SND = np.tile(self.values_ND, (_NUM_PERMUTATIONS + 1, 1, 1))
        for permuted_ND in permuted_SND[1:]:
            permuted_ND[:, column] = rng.permutation(permuted_ND[:, column])
        predicted_ranks = self._regressor.predict(np.concatenate(permuted_SND))
        ranks_SN = predicted_ranks.reshape(_NUM_PERMUTATIONS + 1, -1)
        error_S = ((ranks_SN - self.ranks_N) ** 2).mean(axis=1)
        return max(0.0, float(error_S[1:].mean() - error_S[0]))

    def sensitivity_curve(self, column: int, parameter: Parameter) -> tuple[SensitivityPoint, ...]:
        """Return the loss at the mean predicted rank, for each value of a grid over the range.

        The result is empty if the parameter is inactive in all trials.
        """
        grid = _grid_values(parameter)
        active_ND = self.values_ND[self.values_ND[:, column] != _INACTIVE]
        if not len(active_ND):
            return ()
        changed_GND = np.tile(active_ND, (len(grid), 1, 1))
        for changed_ND, value in zip(changed_GND, grid, strict=True):
            changed_ND[:, column] = _scaled_value(parameter, value)
        ranks_GN = self._regressor.predict(np.concatenate(changed_GND)).reshape(len(grid), -1)
        losses_G = np.quantile(self.sorted_losses_N, ranks_GN.mean(axis=1).clip(0, 1))
        return tuple(
            SensitivityPoint(value=value, loss=float(loss))
            for value, loss in zip(grid, losses_G, strict=True)
        )


_OFF, _INACTIVE = -1.0, -2.0
"""Numbers that represent a parameter that is off or inactive."""


def _importance_shares(forest: _Forest, *, seed: int) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    increase_D = np.array([forest.error_increase(d, rng) for d in range(forest.values_ND.shape[1])])
    return increase_D / increase_D.sum() if increase_D.sum() > 0 else increase_D


def _insufficiency_reason(losses_N: NDArray[np.float64]) -> str:
    if losses_N.size < MIN_TRIALS:
        return (
            f"Importance is unknown: it requires {MIN_TRIALS} trials with a finite loss, got "
            f"{losses_N.size}."
        )
    if np.ptp(losses_N) == 0:
        return "All trials have the same loss."
    return ""


def _loss_at_epoch(trial: TrialRecord, epoch: int) -> float:
    return trial.epochs[min(epoch, len(trial.epochs)) - 1].kept_loss


def _scaled_values(trial: TrialRecord, searched_parameters: dict[str, Parameter]) -> list[float]:
    # The initial values are used, because PBT copies later values from other trials.
    params = trial.schedule[0].params
    return [
        _scaled_value(parameter, params[path]) if path in params else _INACTIVE
        for path, parameter in searched_parameters.items()
    ]


def _scaled_value(parameter: Parameter, value: Value) -> float:
    if isinstance(parameter, Choice):
        return float(list(map(repr, parameter.options)).index(repr(value)))
    position = parameter.position(value)
    return _OFF if position is None else position


def _grid_values(parameter: Parameter) -> Sequence[Value]:
    if isinstance(parameter, Choice):
        return parameter.options
    values: list[Value] = [
        parameter.value_at(i / (_NUM_GRID_POINTS - 1)) for i in range(_NUM_GRID_POINTS)
    ]
    return list(dict.fromkeys(values))


def _report_parameter(
    path: str,
    parameter: Parameter,
    share: float,
    curve: tuple[SensitivityPoint, ...],
    result: SearchResult,
    loss_iqr: float,
) -> ParameterReport:
    """Return the report of one parameter, with advice if its range is too narrow."""
    best = result.winner.params.get(path)
    edge = _find_edge(path, parameter, best)
    # An edge is reported only if the expected loss also decreases towards the edge, because the
    # best trial may be there by chance.
    curve_towards_edge = curve if edge == "high" else curve[::-1]
    if edge and not _decreases(curve_towards_edge, _MIN_DECREASE * loss_iqr):
        edge = ""
    advice = ""
    if edge and not isinstance(parameter, Choice):
        end = parameter.low if edge == "low" else parameter.high
        advice = (
            f"The best value of {path}, {best:.4g}, is at the {edge} end of its range ({end:g}): "
            "the optimum may be outside. Widen the range and search again."
        )
    return ParameterReport(
        path=path, share=share, sensitivity=curve, best=best, edge=edge, advice=advice
    )


def _find_edge(path: str, parameter: Parameter, best: Value | None) -> Literal["", "low", "high"]:
    """Return the end of the range at which the best value is, if the range may be extended."""
    position = None if best is None or isinstance(parameter, Choice) else parameter.position(best)
    if position is None or isinstance(parameter, Choice):
        return ""
    if position <= _EDGE_WIDTH and _may_extend(path, parameter.low, -1):
        return "low"
    if position >= 1 - _EDGE_WIDTH and _may_extend(path, parameter.high, 1):
        return "high"
    return ""


def _decreases(curve: Sequence[SensitivityPoint], min_decrease: float) -> bool:
    """Return whether the last quarter of the curve falls by more than ``min_decrease``."""
    num_last = math.ceil((len(curve) - 1) / 4)
    return curve[-1 - num_last].loss - curve[-1].loss > min_decrease


def _may_extend(path: str, end: float, direction: int) -> bool:
    """Return whether the setting accepts values beyond ``end`` of the range."""
    group, name, mapping_key = split_path(path)
    if mapping_key or group == WORKLOAD_GROUP:
        return True  # user code defines the limits
    settings_class = ModelSettings if group == "model" else TrainSettings
    for limit in settings_class.model_fields[name].metadata:
        lowest = getattr(limit, "ge", getattr(limit, "gt", None))
        highest = getattr(limit, "le", getattr(limit, "lt", None))
        if direction < 0 and lowest is not None and end <= lowest:
            return False
        if direction > 0 and highest is not None and end >= highest:
            return False
    return True
