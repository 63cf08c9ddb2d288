"""Detection delay and false rollbacks of the guards, in simulated rollouts.

The simulation calls ``advance`` itself at every assessment.
"""

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from multiprocessing import get_context

import numpy as np
from pydantic import Field

from sluice.base.settings import Record
from sluice.bench.rollout.naive import naive_harm
from sluice.bench.rollout.traffic import START, Arms, Traffic
from sluice.rollout.settings import RolloutSettings
from sluice.rollout.state import Rollout
from sluice.rollout.state_machine import advance
from sluice.rollout.transitions import first_transition

_CHUNK = 20
"""Rollouts per task of a worker."""
_NEVER = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutScenario:
    """Traffic, settings of the rollout, and targets."""

    name: str
    traffic: Traffic
    settings: RolloutSettings
    seconds: float
    """Simulated time after which a rollout without a rollback ends [s]."""

    max_median_s: float | None = None
    """Target: maximum median delay from the harm to the rollback [s]."""

    max_p90_s: float | None = None
    """Target: maximum 90th percentile of this delay [s]."""

    max_rollback_rate: float | None = None
    """Target: maximum share of rollouts that are rolled back without harm."""


class RolloutMeasurement(Record):
    """Results of many rollouts of one scenario."""

    name: str
    rollouts: int
    back: int = Field(
        description="Number of rollouts that were rolled back. If the challenger is healthy, each "
        "of them was rolled back falsely."
    )
    early: int = Field(description="Number of rollouts that were rolled back before the harm.")
    median_s: float | None = Field(
        description="Median delay from the harm to the rollback [s]; None without harm."
    )
    p90_s: float | None = Field(
        description="90th percentile of the delay from the harm to the rollback [s]; None without "
        "harm."
    )
    naive: int = Field(
        description="Number of rollouts that a z-test at every assessment would have rolled back "
        "falsely."
    )
    max_median_s: float | None
    max_p90_s: float | None
    max_rollback_rate: float | None = Field(
        description="Target: maximum share of rollouts that are rolled back without harm. None for "
        "a scenario with harm."
    )

    @property
    def reaches_targets(self) -> bool:
        """Whether every target is reached.

        The share of rollbacks misses its target only if it is significantly above it, that is, if
        its Wilson interval is above it.
        """
        from scipy.stats import binomtest

        if self.max_rollback_rate is not None:
            low = binomtest(self.back, self.rollouts).proportion_ci(method="wilson").low
            return bool(low <= self.max_rollback_rate)
        median, p90 = self.median_s, self.p90_s
        return (
            median is not None
            and p90 is not None
            and (self.max_median_s is None or median <= self.max_median_s)
            and (self.max_p90_s is None or p90 <= self.max_p90_s)
        )


def measure(
    scenarios: Sequence[RolloutScenario], *, rollouts: int, seed: int, processes: int
) -> Iterator[RolloutMeasurement]:
    """Yield the results of each scenario, in order.

    Cost:
        About 0.1 ms per assessment: 0.2 s for an hour with an assessment every 2 s.
    """
    chunks = [
        (at, scenario, min(_CHUNK, rollouts - start), (seed, at, start))
        for at, scenario in enumerate(scenarios)
        for start in range(0, rollouts, _CHUNK)
    ]
    outcomes: list[tuple[float, bool]] = []
    for (_, scenario, *_rest), ends in zip(chunks, _run(chunks, processes), strict=True):
        outcomes += ends
        if len(outcomes) == rollouts:
            yield _summarize(scenario, outcomes)
            outcomes = []


def simulate_rollout(
    traffic: Traffic, settings: RolloutSettings, *, seconds: float, seed: Sequence[int]
) -> tuple[float, bool]:
    """Return the time of the rollback [s] and whether a z-test would have rolled back falsely.

    The time is infinity without a rollback. The z-test is repeated at every assessment before the
    harm begins.
    """
    arms = Arms(traffic, rng=np.random.default_rng(list(seed)))
    rollout = new_rollout(settings, now=START)
    is_naive_rollback = False
    while (
        passed_s := (arms.now - START).total_seconds()
    ) < seconds and rollout.phase != "awaiting_promotion":
        window = arms.next_counts(rollout.current_step, rollout=rollout.id, epoch=rollout.epoch)
        if passed_s < traffic.harm_at_s:
            is_naive_rollback = is_naive_rollback or naive_harm(window, alpha=settings.alpha)
        transition = advance(rollout, window, now=arms.now, production=rollout.production)
        if transition.rollout.epoch != rollout.epoch:
            arms.next_step()
        rollout = transition.rollout
        if rollout.phase == "rolled_back":
            return (arms.now - START).total_seconds(), is_naive_rollback
    return _NEVER, is_naive_rollback


def new_rollout(settings: RolloutSettings, *, now: datetime) -> Rollout:
    """Return a new rollout."""
    return first_transition(
        rollout_id="simulated",
        model="model",
        version=2,
        candidate="challenger",
        production="production",
        production_version=1,
        pointer_revision=1,
        epoch=2,
        settings=settings,
        actor="simulation",
        reason="Measured.",
        now=now,
    ).rollout


def _summarize(
    scenario: RolloutScenario, outcomes: Sequence[tuple[float, bool]]
) -> RolloutMeasurement:
    end_N = np.array([end for end, _ in outcomes])
    harm_s = scenario.traffic.harm_at_s
    is_early_N = np.isfinite(end_N) & (end_N <= harm_s)
    late_N = end_N[~is_early_N]
    is_harmful = math.isfinite(harm_s) and late_N.size > 0
    # The upper order statistic without interpolation: the difference of infinities is NaN.
    median_s, p90_s = (
        np.quantile(late_N - harm_s, [0.5, 0.9], method="higher").tolist()
        if is_harmful
        else (None, None)
    )
    return RolloutMeasurement(
        name=scenario.name,
        rollouts=len(outcomes),
        back=int(np.isfinite(end_N).sum()),
        early=int(is_early_N.sum()),
        median_s=median_s,
        p90_s=p90_s,
        naive=sum(is_naive_rollback for _, is_naive_rollback in outcomes),
        max_median_s=scenario.max_median_s,
        max_p90_s=scenario.max_p90_s,
        max_rollback_rate=scenario.max_rollback_rate,
    )


def _simulate_chunk(
    at: int, scenario: RolloutScenario, rollouts: int, seed: tuple[int, ...]
) -> list[tuple[float, bool]]:
    del at
    traffic, settings, seconds = scenario.traffic, scenario.settings, scenario.seconds
    return [
        simulate_rollout(traffic, settings, seconds=seconds, seed=(*seed, number))
        for number in range(rollouts)
    ]


def _run(
    chunks: Sequence[tuple[int, RolloutScenario, int, tuple[int, ...]]], processes: int
) -> Iterator[list[tuple[float, bool]]]:
    """Yield the results of each chunk, in order; in this process when one worker is enough."""
    if processes == 1:
        yield from (_simulate_chunk(*chunk) for chunk in chunks)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(_simulate_chunk, *zip(*chunks, strict=True))
