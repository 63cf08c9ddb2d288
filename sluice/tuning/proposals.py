"""Which values the next trial gets: a pure function of the seed, its number and the trials before.

Nothing is remembered between two proposals, so a driver that was killed and started again
proposes the same as one that was not.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from sluice.training.seeds import derive_seed
from sluice.tuning.parameters import (
    Choice,
    Integers,
    LogUniform,
    Params,
    PowersOfTwo,
    Uniform,
    Value,
)
from sluice.tuning.spaces import Setup, Space
from sluice.tuning.tune_space import not_held as not_held

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What is known of a trial when the next one is proposed."""

    params: Params
    loss: float | None
    """None while it runs; infinite when it failed."""
    epochs: int
    pruned: bool


class Propose(Protocol):
    """(number of the trial, trials before it) to its values."""

    def __call__(self, number: int, past: Sequence[Past]) -> Params:
        """Return the values of trial ``number``."""
        ...


def own_first(propose: Propose, space: Space, base: Setup, *, seed: int) -> Propose:
    """Return a proposer whose first trial has the values of ``base``.

    What was searched for by hand is a good start, and without PBT, which changes it, the winner is
    then no worse than it. A value that the space does not hold is drawn.
    """

    def own(path: str, parameter: Any) -> Value:
        value: Any = base.value(path)
        return cast(Value, value) if parameter.holds(value) else _drawn(seed, 0, path, parameter)

    def propose_own(number: int, past: Sequence[Past]) -> Params:
        return space.choose(base, own) if number == 0 else propose(number, past)

    return propose_own


def random_proposals(space: Space, base: Setup, *, seed: int) -> Propose:
    """Return a proposer of random values; a parameter's draws do not depend on the others."""

    def propose(number: int, past: Sequence[Past] = ()) -> Params:  # noqa: ARG001
        return space.choose(base, lambda path, p: _drawn(seed, number, path, p))

    return propose


def _drawn(seed: int, number: int, path: str, parameter: Any) -> Value:
    rng = np.random.default_rng(derive_seed(seed, f"trial_{number}_{path}"))
    drawn: Value = parameter.draw(rng)
    return drawn


def tpe_proposals(space: Space, base: Setup, *, seed: int, startup_trials: int) -> Propose:
    """Return a proposer by optuna's multivariate TPE; the first ``startup_trials`` are random.

    The study is told anew for every proposal. Running trials count as poor ones, so that
    concurrent trials spread; failed trials count as the worst.

    Cost:
        About 10 ms a proposal at 100 trials.
    """
    draw = random_proposals(space, base, seed=seed)

    def propose(number: int, past: Sequence[Past]) -> Params:
        if sum(trial.loss is not None for trial in past) < startup_trials:
            return draw(number, past)
        # Imported here: only searches need it.
        import optuna

        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of options that optuna calls experimental
                sampler = optuna.samplers.TPESampler(
                    n_startup_trials=0,
                    multivariate=True,
                    group=True,
                    constant_liar=True,
                    seed=derive_seed(seed, f"tpe_{number}") % 2**32,
                )
                study = optuna.create_study(sampler=sampler)
                study.add_trials([_told(space, trial) for trial in past])
                trial = study.ask()
                return space.choose(base, lambda path, p: _suggest(trial, path, p))
        finally:
            optuna.logging.set_verbosity(verbosity)

    return propose


def _suggest(trial: Any, path: str, parameter: Any) -> Value:
    names = distributions(path, parameter)
    if f"{path}#on" in names and not trial.suggest_categorical(f"{path}#on", [False, True]):
        return 0.0
    if isinstance(parameter, Choice):
        option: Value = parameter.options[trial.suggest_categorical(path, _indices(parameter))]
        return option
    if isinstance(parameter, PowersOfTwo):
        return 1 << int(trial.suggest_int(path, *parameter.exponents))
    if isinstance(parameter, Integers):
        step = parameter.multiple_of
        return int(trial.suggest_int(path, parameter.low, parameter.high, step=step))
    log = isinstance(parameter, LogUniform)
    return float(trial.suggest_float(path, parameter.low, parameter.high, log=log))


def distributions(path: str, parameter: Any) -> "dict[str, BaseDistribution]":
    """Return what optuna knows the parameter by: its name or names, and their ranges."""
    from optuna import distributions as od

    if isinstance(parameter, Choice):
        return {path: od.CategoricalDistribution(_indices(parameter))}
    if isinstance(parameter, PowersOfTwo):
        return {path: od.IntDistribution(*parameter.exponents)}
    if isinstance(parameter, Integers):
        step = parameter.multiple_of
        return {path: od.IntDistribution(parameter.low, parameter.high, step=step)}
    if isinstance(parameter, Uniform):
        return {path: od.FloatDistribution(parameter.low, parameter.high)}
    known: dict[str, BaseDistribution] = {}
    if parameter.may_be_off:
        known[f"{path}#on"] = od.CategoricalDistribution([False, True])
    known[path] = od.FloatDistribution(parameter.low, parameter.high, log=True)
    return known


def _indices(parameter: Choice) -> list[int]:
    return list(range(len(parameter.options)))


def _told(space: Space, past: Past) -> "FrozenTrial":
    from optuna.trial import TrialState, create_trial

    params: dict[str, Any] = {}
    known: dict[str, BaseDistribution] = {}
    for path, value in past.params.items():
        parameter = space.parameters[path]
        own = _encoded(path, parameter, value)
        params |= own
        known |= {n: d for n, d in distributions(path, parameter).items() if n in own}
    state, values, steps = TrialState.RUNNING, None, None
    if past.loss is not None and (past.pruned or not math.isfinite(past.loss)):
        state = TrialState.PRUNED  # without a step it counts as the worst
        steps = {past.epochs: past.loss} if math.isfinite(past.loss) else None
    elif past.loss is not None:
        state, values = TrialState.COMPLETE, [past.loss]
    return create_trial(
        params=params, distributions=known, state=state, values=values, intermediate_values=steps
    )


def _encoded(path: str, parameter: Any, value: Value) -> dict[str, Any]:
    if isinstance(parameter, Choice):
        options = list(map(repr, parameter.options))  # 1 and True are equal, and differ
        return {path: options.index(repr(value))}
    if isinstance(parameter, PowersOfTwo):
        return {path: int(value).bit_length() - 1}  # type: ignore[arg-type]
    if isinstance(parameter, LogUniform) and parameter.may_be_off:
        return {f"{path}#on": True, path: value} if value else {f"{path}#on": False}
    return {path: value}
