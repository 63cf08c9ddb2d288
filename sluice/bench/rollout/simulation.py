"""Detection delay and false rollbacks of the guards, in simulated rollouts.

At every assessment, the simulation calls ``advance``, the state machine of real rollouts.
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
from sluice.bench.rollout.naive import detect_harm_naively
from sluice.bench.rollout.traffic import START, Traffic, TrafficSimulator
from sluice.rollout.settings import RolloutSettings
from sluice.rollout.state import Rollout
from sluice.rollout.state_machine import advance
from sluice.rollout.transitions import first_transition

_CHUNK_ROLLOUTS = 20
"""Number of rollouts per task of a worker process."""

_NEVER_S = float("inf")
"""Stored as the time of the rollback if a rollout is not rolled back [s]."""

_Outcome = tuple[float, bool]
"""Time of the rollback [s], and whether a z-test would have rolled back falsely."""


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
    """Target: maximum 90th percentile of the delay from the harm to the rollback [s]."""

    max_rollback_rate: float | None = None
    """Target: maximum share of rollouts that are rolled back without harm."""


class RolloutMeasurement(Record):
    """Results of many rollouts of one scenario."""

    name: str
    num_rollouts: int
    num_rolled_back: int = Field(
        description="Number of rollouts that were rolled back. If the challenger is healthy, each "
        "of these rollbacks is false."
    )
    num_early: int = Field(
        description="Number of rollouts that were rolled back before the harm began."
    )
    median_s: float | None = Field(
        description="Median delay from the harm to the rollback [s]; infinite if most rollouts are "
        "not rolled back. Rollbacks before the harm are left out. None without harm, or if every "
        "rollout was rolled back before the harm."
    )
    p90_s: float | None = Field(
        description="90th percentile of the delay from the harm to the rollback [s]; None if "
        "``median_s`` is None."
    )
    num_false_naive: int = Field(
        description="Number of false rollbacks of a naive method: rollouts that a z-test at every "
        "assessment would have rolled back before the harm began."
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

        The share of false rollbacks misses its target only if its whole Wilson interval is above
        the target.
        """
        from scipy.stats import binomtest

        if self.max_rollback_rate is not None:
            low = (
                binomtest(self.num_rolled_back, self.num_rollouts)
                .proportion_ci(method="wilson")
                .low
            )
            return bool(low <= self.max_rollback_rate)
        median, p90 = self.median_s, self.p90_s
        return (
            median is not None
            and p90 is not None
            and (self.max_median_s is None or median <= self.max_median_s)
            and (self.max_p90_s is None or p90 <= self.max_p90_s)
        )


def measure_rollouts(
    scenarios: Sequence[RolloutScenario], *, num_rollouts: int, seed: int, num_processes: int
) -> Iterator[RolloutMeasurement]:
    """Yield the results of each scenario, in order.

    Cost:
        About 0.1 ms per assessment: 0.2 s for an hour with an assessment every 2 s.
    """
    chunks = [
        (scenario, min(_CHUNK_ROLLOUTS, num_rollouts - start), (seed, number, start))
        for number, scenario in enumerate(scenarios)
        for start in range(0, num_rollouts, _CHUNK_ROLLOUTS)
    ]
    outcomes: list[_Outcome] = []
    for (scenario, *_), chunk_outcomes in zip(
        chunks, _run_chunks(chunks, num_processes), strict=True
    ):
        outcomes += chunk_outcomes
        if len(outcomes) == num_rollouts:
            yield _summarize(scenario, outcomes)
            outcomes = []


def simulate_rollout(
    traffic: Traffic, settings: RolloutSettings, *, seconds: float, seed: Sequence[int]
) -> _Outcome:
    """Return the time of the rollback [s] and whether a z-test would have rolled back falsely.

    The time is infinity without a rollback. The z-test is repeated at every assessment before the
    harm begins.
    """
    simulator = TrafficSimulator(traffic, rng=np.random.default_rng(list(seed)))
    rollout = new_rollout(settings, now=START)
    is_naive_rollback = False
    while (
        elapsed_s := (simulator.now - START).total_seconds()
    ) < seconds and rollout.phase != "awaiting_promotion":
        counts = simulator.next_counts(
            rollout.current_step, rollout=rollout.id, epoch=rollout.epoch
        )
        if elapsed_s < traffic.harm_at_s:
            is_naive_rollback = is_naive_rollback or detect_harm_naively(
                counts, alpha=settings.alpha
            )
        transition = advance(rollout, counts, now=simulator.now, production=rollout.production)
        if transition.rollout.epoch != rollout.epoch:
            simulator.next_step()
        rollout = transition.rollout
        if rollout.phase == "rolled_back":
            return (simulator.now - START).total_seconds(), is_naive_rollback
    return _NEVER_S, is_naive_rollback


def new_rollout(settings: RolloutSettings, *, now: datetime) -> Rollout:
    """Return a rollout from version 1 to version 2 in its first step."""
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


def _summarize(scenario: RolloutScenario, outcomes: Sequence[_Outcome]) -> RolloutMeasurement:
    rollback_s_N = np.array([rollback_s for rollback_s, _ in outcomes])  # N = rollouts
    harm_s = scenario.traffic.harm_at_s
    is_rolled_back_N = np.isfinite(rollback_s_N)
    is_early_N = is_rolled_back_N & (rollback_s_N <= harm_s)
    late_s_N = rollback_s_N[~is_early_N]
    has_delays = math.isfinite(harm_s) and late_s_N.size > 0
    # "higher" does not interpolate: between two infinite delays, interpolation gives NaN.
    median_s, p90_s = (
        np.quantile(late_s_N - harm_s, [0.5, 0.9], method="higher").tolist()
        if has_delays
        else (None, None)
    )
    return RolloutMeasurement(
        name=scenario.name,
        num_rollouts=len(outcomes),
        num_rolled_back=int(is_rolled_back_N.sum()),
        num_early=int(is_early_N.sum()),
        median_s=median_s,
        p90_s=p90_s,
        num_false_naive=sum(is_naive_rollback for _, is_naive_rollback in outcomes),
        max_median_s=scenario.max_median_s,
        max_p90_s=scenario.max_p90_s,
        max_rollback_rate=scenario.max_rollback_rate,
    )


def _simulate_chunk(
    scenario: RolloutScenario, num_rollouts: int, seed: tuple[int, ...]
) -> list[_Outcome]:
    traffic, settings, seconds = scenario.traffic, scenario.settings, scenario.seconds
    return [
        simulate_rollout(traffic, settings, seconds=seconds, seed=(*seed, number))
        for number in range(num_rollouts)
    ]


def _run_chunks(
    chunks: Sequence[tuple[RolloutScenario, int, tuple[int, ...]]], num_processes: int
) -> Iterator[list[_Outcome]]:
    """Yield the outcomes of each chunk, in order. With one process, this process computes them."""
    if num_processes == 1:
        yield from (_simulate_chunk(*chunk) for chunk in chunks)
        return
    with ProcessPoolExecutor(num_processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(_simulate_chunk, *zip(*chunks, strict=True))
