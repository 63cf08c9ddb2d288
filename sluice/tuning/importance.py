"""Which parameters mattered, how, and where the space was too narrow (TUNE-4).

Trials that were stopped early are compared with the others at the last epoch all of them reached,
so that a short life is not mistaken for a bad value.
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
from sluice.tuning.records import SearchResult, Trial
from sluice.tuning.spaces import WORKLOAD, Space, split_path

MIN_TRIALS = 10
"""With fewer a forest fits the noise."""
MIN_FIT = 0.2
"""Of 60 trials whose losses are noise, a forest foresees less than this share."""
_TREES, _SHUFFLES, _GRID = 100, 8, 21
_EDGE = 0.05
"""Share of the scale that counts as its end."""
_FALL = 0.05
"""A smaller fall towards the end, as a share of the losses' middle half, is noise."""


class SensitivityPoint(Record):
    """What loss to expect at one value of a parameter, the others as they were tried."""

    value: Value
    loss: float


class ParameterReport(Record):
    """One parameter's part in the losses."""

    path: str
    share: float = Field(description="Of the importance of all parameters, 0..1.")
    sensitivity: tuple[SensitivityPoint, ...]
    best: Value | None = Field(description="In the best trial; None when it did not count there.")
    edge: Literal["", "low", "high"] = Field(description="End of the range the best value lies at.")
    advice: str = ""


class Importance(Record):
    """What a search says about its parameters."""

    outcome: Literal["known", "insufficient"]
    reason: str = Field(description="Why it is insufficient; empty otherwise.")
    at_epoch: int = Field(description="Epoch the trials were compared at; 0 when insufficient.")
    num_trials: int = Field(description="Trials with a finite loss.")
    fit: float = Field(description="Share of the losses' ranks that the forest predicts unseen.")
    parameters: tuple[ParameterReport, ...] = Field(description="The most important first.")

    @property
    def clear(self) -> bool:
        """Whether the forest foresees enough for the shares to mean something."""
        return self.outcome == "known" and self.fit >= MIN_FIT


def measure_importance(result: SearchResult, space: Space, *, seed: int) -> Importance:
    """Return each parameter's importance, sensitivity, and whether its best value is at an edge.

    A forest is fitted to the ranks of the losses, so that a few diverged trials do not drown all
    else. Importance is how much its error grows when one parameter's values are shuffled;
    sensitivity is its mean prediction with one parameter set to a value in all trials.

    Args:
        result: The search.
        space: What was searched.
        seed: Of the forest and the shuffling.

    Cost:
        About half a second.

    Source:
        Breiman (2001), "Random Forests", Machine Learning 45.
    """
    finite = [trial for trial in result.trials if math.isfinite(trial.loss)]
    searched = {path: space.parameters[path] for path in result.strategy.parameters}
    at_epoch = min((len(t.epochs) for t in finite if t.state == "pruned"), default=0)
    at_epoch = at_epoch or max((len(t.epochs) for t in finite), default=0)
    losses_N = np.array([_loss_at(trial, at_epoch) for trial in finite])
    reason = _too_little(losses_N)
    if reason:
        return Importance(
            outcome="insufficient",
            reason=reason,
            at_epoch=0,
            num_trials=len(finite),
            fit=0.0,
            parameters=(),
        )
    values_ND = np.array([_row(trial, searched) for trial in finite], dtype=np.float64)
    model = _Forest(values_ND, losses_N, seed=seed)
    shares_D = _shares(model, seed=seed)
    spread = float(np.quantile(losses_N, 0.75) - np.quantile(losses_N, 0.25))
    if model.fit < MIN_FIT:
        spread = math.inf  # what is noise has no edges
    reports = [
        _report(path, parameter, float(shares_D[d]), model.curve(d, parameter), result, spread)
        for d, (path, parameter) in enumerate(searched.items())
    ]
    return Importance(
        outcome="known",
        reason="",
        at_epoch=at_epoch,
        num_trials=len(finite),
        fit=model.fit,
        parameters=tuple(sorted(reports, key=lambda report: (-report.share, report.path))),
    )


class _Forest:
    """Predicts the rank of a loss, 0..1, from a trial's places; -1 is off, -2 is inactive."""

    def __init__(self, values_ND: NDArray[np.float64], losses_N: NDArray[np.float64], *, seed: int):
        from sklearn.ensemble import RandomForestRegressor

        self.values_ND = values_ND
        self.sorted_N = np.sort(losses_N)
        # Equal losses get equal ranks.
        self.ranks_N = np.searchsorted(self.sorted_N, losses_N) / (len(losses_N) - 1)
        self._forest = RandomForestRegressor(
            _TREES, min_samples_leaf=2, oob_score=True, random_state=seed % 2**32, n_jobs=1
        ).fit(values_ND, self.ranks_N)
        self.fit = max(0.0, float(self._forest.oob_score_))

    def growth(self, column: int, rng: np.random.Generator) -> float:
        """Return by how much the error grows when the values of ``column`` are shuffled."""
        # One call for all: a call costs more than the rows in it.
        moved_SND = np.tile(self.values_ND, (_SHUFFLES + 1, 1, 1))
        for moved_ND in moved_SND[1:]:
            moved_ND[:, column] = rng.permutation(moved_ND[:, column])
        ranks_SN = self._forest.predict(np.concatenate(moved_SND)).reshape(_SHUFFLES + 1, -1)
        error_S = ((ranks_SN - self.ranks_N) ** 2).mean(axis=1)
        return max(0.0, float(error_S[1:].mean() - error_S[0]))

    def curve(self, column: int, parameter: Parameter) -> tuple[SensitivityPoint, ...]:
        """Return the mean prediction at values over the whole range, as a loss."""
        grid = _grid(parameter)
        rows_ND = self.values_ND[self.values_ND[:, column] != _INACTIVE]
        if not len(rows_ND):
            return ()
        moved_GND = np.tile(rows_ND, (len(grid), 1, 1))
        for moved_ND, value in zip(moved_GND, grid, strict=True):
            moved_ND[:, column] = _place(parameter, value)
        ranks_GN = self._forest.predict(np.concatenate(moved_GND)).reshape(len(grid), -1)
        losses_G = np.quantile(self.sorted_N, ranks_GN.mean(axis=1).clip(0, 1))
        return tuple(
            SensitivityPoint(value=value, loss=float(loss))
            for value, loss in zip(grid, losses_G, strict=True)
        )


_OFF, _INACTIVE = -1.0, -2.0


def _shares(model: _Forest, *, seed: int) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    growth_D = np.array([model.growth(d, rng) for d in range(model.values_ND.shape[1])])
    return growth_D / growth_D.sum() if growth_D.sum() > 0 else growth_D


def _too_little(losses_N: NDArray[np.float64]) -> str:
    if losses_N.size < MIN_TRIALS:
        return (
            f"Importance is not known: it takes {MIN_TRIALS} trials with a finite loss, there are "
            f"{losses_N.size}."
        )
    if np.ptp(losses_N) == 0:
        return "All trials have the same loss."
    return ""


def _loss_at(trial: Trial, epoch: int) -> float:
    return trial.epochs[min(epoch, len(trial.epochs)) - 1].kept_loss


def _row(trial: Trial, searched: dict[str, Parameter]) -> list[float]:
    # The values it began with: under PBT the later ones are not its own choice.
    params = trial.schedule[0].params
    return [
        _place(parameter, params[path]) if path in params else _INACTIVE
        for path, parameter in searched.items()
    ]


def _place(parameter: Parameter, value: Value) -> float:
    if isinstance(parameter, Choice):
        return float(list(map(repr, parameter.options)).index(repr(value)))
    place = parameter.place(value)
    return _OFF if place is None else place


def _grid(parameter: Parameter) -> Sequence[Value]:
    if isinstance(parameter, Choice):
        return parameter.options
    values: list[Value] = [parameter.at(i / (_GRID - 1)) for i in range(_GRID)]
    return list(dict.fromkeys(values))


def _report(
    path: str,
    parameter: Parameter,
    share: float,
    curve: tuple[SensitivityPoint, ...],
    result: SearchResult,
    spread: float,
) -> ParameterReport:
    best = result.winner.params.get(path)
    edge = _edge(path, parameter, best)
    # One lucky trial at the end is no trend: the expected loss must fall towards it.
    if edge and not _falls(curve if edge == "high" else curve[::-1], _FALL * spread):
        edge = ""
    advice = ""
    if edge and not isinstance(parameter, Choice):
        end = parameter.low if edge == "low" else parameter.high
        advice = (
            f"The best value of {path}, {best:.4g}, lies at the {edge} end of its range ({end:g}): "
            f"the optimum may lie beyond. Widen the range and search again."
        )
    return ParameterReport(
        path=path, share=share, sensitivity=curve, best=best, edge=edge, advice=advice
    )


def _edge(path: str, parameter: Parameter, best: Value | None) -> Literal["", "low", "high"]:
    place = None if best is None or isinstance(parameter, Choice) else parameter.place(best)
    if place is None or isinstance(parameter, Choice):
        return ""
    if place <= _EDGE and _may_be(path, parameter.low, -1):
        return "low"
    if place >= 1 - _EDGE and _may_be(path, parameter.high, 1):
        return "high"
    return ""


def _falls(curve: Sequence[SensitivityPoint], least: float) -> bool:
    """Return whether the loss falls by more than ``least`` over the last quarter of the curve."""
    return curve[-1 - (len(curve) - 1 + 3) // 4].loss - curve[-1].loss > least


def _may_be(path: str, end: float, direction: int) -> bool:
    """Return whether the setting accepts values beyond ``end``: else the range ends there."""
    group, name, key = split_path(path)
    if key or group == WORKLOAD:
        return True  # only the user's own class knows its limits
    cls = ModelSettings if group == "model" else TrainSettings
    for limit in cls.model_fields[name].metadata:
        lowest = getattr(limit, "ge", getattr(limit, "gt", None))
        highest = getattr(limit, "le", getattr(limit, "lt", None))
        if direction < 0 and lowest is not None and end <= lowest:
            return False
        if direction > 0 and highest is not None and end >= highest:
            return False
    return True
