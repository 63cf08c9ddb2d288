"""How fast the guards find harm, and how often they see it where there is none (ROLL-2).

What is measured is ``advance`` itself, look by look, not a copy of it.
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
from sluice.rollout.changes import begin
from sluice.rollout.machine import advance
from sluice.rollout.settings import RolloutSettings
from sluice.rollout.state import Rollout

_CHUNK = 20
"""Rollouts handed to a process at a time."""
_NEVER = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Traffic, the rollout's settings, and what is expected of it."""

    name: str
    traffic: Traffic
    settings: RolloutSettings
    seconds: float
    most_median_s: float | None = None
    most_p90_s: float | None = None
    most_back: float | None = None


class Measured(Record):
    """What came of many rollouts of one scenario."""

    name: str
    rollouts: int
    back: int = Field(description="Rolled back at all; in vain, where the challenger is healthy.")
    early: int = Field(description="Rolled back before the harm began.")
    median_s: float | None = Field(description="From the harm to the rollback; None without harm.")
    p90_s: float | None = Field(description="The same for nine of ten.")
    naive: int = Field(description="A z-test at every look would have rolled back in vain.")
    most_median_s: float | None
    most_p90_s: float | None
    most_back: float | None = Field(description="Most rollbacks without harm [rate].")

    @property
    def holds(self) -> bool:
        """Whether every figure is reached; a share of rollbacks unless it is proven exceeded."""
        from scipy.stats import binomtest

        if self.most_back is not None:
            low = binomtest(self.back, self.rollouts).proportion_ci(method="wilson").low
            return bool(low <= self.most_back)
        median, p90 = self.median_s, self.p90_s
        return (
            median is not None
            and p90 is not None
            and (self.most_median_s is None or median <= self.most_median_s)
            and (self.most_p90_s is None or p90 <= self.most_p90_s)
        )


def measure(
    scenarios: Sequence[Scenario], *, rollouts: int, seed: int, processes: int
) -> Iterator[Measured]:
    """Yield what came of each scenario, in order.

    Cost:
        About 0.1 ms a look: 0.2 s for an hour that is looked at every 2 s.
    """
    chunks = [
        (at, scenario, min(_CHUNK, rollouts - start), (seed, at, start))
        for at, scenario in enumerate(scenarios)
        for start in range(0, rollouts, _CHUNK)
    ]
    found: list[tuple[float, bool]] = []
    for (_, scenario, *_rest), ends in zip(chunks, _run(chunks, processes), strict=True):
        found += ends
        if len(found) == rollouts:
            yield _summed(scenario, found)
            found = []


def play(
    traffic: Traffic, settings: RolloutSettings, *, seconds: float, seed: Sequence[int]
) -> tuple[float, bool]:
    """Return when one rollout was rolled back [s], infinity for never, and the naive test's word.

    The latter is whether a z-test at every look would have rolled back before there was harm.
    """
    arms = Arms(traffic, rng=np.random.default_rng(list(seed)))
    rollout = fresh(settings, now=START)
    naive = False
    while (passed_s := (arms.now - START).total_seconds()) < seconds and rollout.phase != "held":
        window = arms.look(rollout.current_step, rollout=rollout.id, epoch=rollout.epoch)
        if passed_s < traffic.harm_at_s:
            naive = naive or naive_harm(window, alpha=settings.alpha)
        transition = advance(rollout, window, now=arms.now, production=rollout.production)
        if transition.rollout.epoch != rollout.epoch:
            arms.next_step()
        rollout = transition.rollout
        if rollout.phase == "rolled_back":
            return (arms.now - START).total_seconds(), naive
    return _NEVER, naive


def fresh(settings: RolloutSettings, *, now: datetime) -> Rollout:
    """Return a rollout that has just begun."""
    return begin(
        identity="simulated",
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


def _summed(scenario: Scenario, found: Sequence[tuple[float, bool]]) -> Measured:
    end_N = np.array([end for end, _ in found])
    harm_s = scenario.traffic.harm_at_s
    is_early_N = np.isfinite(end_N) & (end_N <= harm_s)
    late_N = end_N[~is_early_N]
    is_harmful = math.isfinite(harm_s) and late_N.size > 0
    # The order statistic above, not between two: infinity less infinity is no number.
    median_s, p90_s = (
        np.quantile(late_N - harm_s, [0.5, 0.9], method="higher").tolist()
        if is_harmful
        else (None, None)
    )
    return Measured(
        name=scenario.name,
        rollouts=len(found),
        back=int(np.isfinite(end_N).sum()),
        early=int(is_early_N.sum()),
        median_s=median_s,
        p90_s=p90_s,
        naive=sum(naive for _, naive in found),
        most_median_s=scenario.most_median_s,
        most_p90_s=scenario.most_p90_s,
        most_back=scenario.most_back,
    )


def _play_chunk(
    at: int, scenario: Scenario, rollouts: int, seed: tuple[int, ...]
) -> list[tuple[float, bool]]:
    del at
    traffic, settings, seconds = scenario.traffic, scenario.settings, scenario.seconds
    return [
        play(traffic, settings, seconds=seconds, seed=(*seed, number)) for number in range(rollouts)
    ]


def _run(
    chunks: Sequence[tuple[int, Scenario, int, tuple[int, ...]]], processes: int
) -> Iterator[list[tuple[float, bool]]]:
    """Yield what each chunk found, in order; in this process when one is enough."""
    if processes == 1:
        yield from (_play_chunk(*chunk) for chunk in chunks)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(_play_chunk, *zip(*chunks, strict=True))
