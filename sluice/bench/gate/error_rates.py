"""Rates of promotions by the promotion gate in simulations, with and without a true gain.

Shape legend: N = rows, C = counts: false promotions, true promotions, and the false promotions of
each naive test.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sluice.base.settings import Record
from sluice.bench.gate.naive import NAIVE_BOUNDS
from sluice.bench.gate.scenarios import GateScenario
from sluice.bench.planted.rate import Rate
from sluice.evaluation.alpha_spending import settings_for_attempt
from sluice.evaluation.comparison import compare
from sluice.evaluation.estimate import ArmLosses
from sluice.evaluation.settings import GateSettings

ORACLE_POWER = 0.8
"""Power of a test that knows the standard error, at the simulated gain."""

_CHUNK_SIMULATIONS = 50
"""Number of simulations per task of a worker process. Each task has its own seed, so results do not
depend on the number of processes."""


class ScenarioRates(Record):
    """Promotion rates in one scenario: of the gate, and of naive tests."""

    scenario: GateScenario
    false_promotions: Rate = Field(
        description="Promotions of a candidate whose true gain is not above ``min_gain``."
    )
    power: Rate = Field(
        description="Promotions of a candidate with a larger gain. A test that knows the standard "
        "error detects this gain in 80 % of the simulations."
    )
    naive: dict[str, Rate] = Field(
        description="False promotions by each naive test, by its name in ``NAIVE_BOUNDS``."
    )

    @property
    def max_false_rate(self) -> float | None:
        """Target: maximum rate of false promotions; None if there are fewer than 1,000 rows."""
        if self.scenario.num_rows < 1000:
            return None
        return 0.06 if self.scenario.rho <= 0.5 else 0.08

    @property
    def min_power(self) -> float | None:
        """Target: minimum power; None unless the scenario has 5 or 8 seeds."""
        return {5: 0.65, 8: 0.70}.get(self.scenario.num_seeds)


class RetrainingRates(Record):
    """Shares of simulations in which any of several retrainings is promoted falsely.

    All retrainings are tested on the same window of rows.
    """

    scenario: GateScenario
    num_attempts: int = Field(description="Number of retrainings.")
    is_same_recipe: bool = Field(
        description="Whether attempts are new seeds of one recipe; False if each attempt is a new "
        "recipe."
    )
    with_shared_alpha: Rate = Field(
        description="Share of simulations with a false promotion if the attempts share alpha."
    )
    with_full_alpha: Rate = Field(
        description="Share of simulations with a false promotion if each attempt is tested at the "
        "full alpha."
    )


def measure_scenarios(
    scenarios: Sequence[GateScenario],
    settings: GateSettings,
    *,
    num_simulations: int,
    seed: int,
    num_processes: int,
) -> Iterator[ScenarioRates]:
    """Yield the rates of each scenario as soon as its simulations are complete.

    The measured code is ``compare``, the test of the promotion gate. The same simulated losses give
    both rates, with and without a gain, because a gain only shifts the bounds by its size.

    Cost:
        About 5 ms per simulation of 2 x 8 seeds and 1,000 rows.
    """
    chunks = [
        (
            scenario,
            settings,
            min(_CHUNK_SIMULATIONS, num_simulations - start),
            (seed, number, start),
        )
        for number, scenario in enumerate(scenarios)
        for start in range(0, num_simulations, _CHUNK_SIMULATIONS)
    ]
    count_C = np.zeros(2 + len(NAIVE_BOUNDS), np.int64)
    num_done = 0
    for (scenario, _, chunk_size, _), chunk_count_C in zip(
        chunks, _run_chunks(_count_promotions, chunks, num_processes), strict=True
    ):
        count_C += chunk_count_C
        num_done += chunk_size
        if num_done == num_simulations:
            false_promotions, power, *naive = (
                Rate(count=int(c), total=num_simulations) for c in count_C
            )
            yield ScenarioRates(
                scenario=scenario,
                false_promotions=false_promotions,
                power=power,
                naive=dict(zip(NAIVE_BOUNDS, naive, strict=True)),
            )
            count_C[:], num_done = 0, 0


def measure_retraining(
    scenario: GateScenario,
    settings: GateSettings,
    *,
    num_attempts: int,
    is_same_recipe: bool,
    num_simulations: int,
    seed: int,
    num_processes: int,
) -> RetrainingRates:
    """Return how often any of ``num_attempts`` retrainings on one window is promoted falsely.

    Production does not change; each attempt is tested on the same rows.

    Cost:
        ``num_attempts`` times as much as ``measure_scenarios`` with as many simulations.
    """
    chunks = [
        (
            scenario,
            settings,
            num_attempts,
            is_same_recipe,
            min(_CHUNK_SIMULATIONS, num_simulations - start),
            (seed, start),
        )
        for start in range(0, num_simulations, _CHUNK_SIMULATIONS)
    ]
    num_with_shared_alpha, num_with_full_alpha = np.sum(
        list(_run_chunks(_count_false_retrainings, chunks, num_processes)), axis=0
    ).tolist()
    return RetrainingRates(
        scenario=scenario,
        num_attempts=num_attempts,
        is_same_recipe=is_same_recipe,
        with_shared_alpha=Rate(count=num_with_shared_alpha, total=num_simulations),
        with_full_alpha=Rate(count=num_with_full_alpha, total=num_simulations),
    )


def _count_promotions(
    scenario: GateScenario, settings: GateSettings, num_simulations: int, seed: tuple[int, ...]
) -> NDArray[np.int64]:
    """Return false promotions, true promotions, and false promotions of each naive test (C,)."""
    rng = np.random.default_rng(seed)
    excess_gain = scenario.oracle_effect(alpha=settings.alpha, power=ORACLE_POWER)
    min_gain = settings.min_gain
    count_C = np.zeros(2 + len(NAIVE_BOUNDS), np.int64)
    for _ in range(num_simulations):
        # A promotion is false if the true gain is only ``min_gain``. Each lower bound would then be
        # smaller by ``excess_gain``, which is subtracted below. Whether the evidence suffices for a
        # verdict does not depend on the gain.
        candidate, reference = scenario.draw(rng, gain=min_gain + excess_gain)
        verdict = compare(candidate, reference, settings, horizon_rows=scenario.horizon_rows)
        candidate_losses, reference_losses = ArmLosses.of(candidate), ArmLosses.of(reference)
        is_false_by_naive = [
            lower_bound(
                candidate_losses,
                reference_losses,
                candidate.fold_N,
                verdict.block_length,
                settings.alpha,
            )
            - excess_gain
            > min_gain
            for lower_bound in NAIVE_BOUNDS.values()
        ]
        is_false = verdict.passed and verdict.lower_bound - excess_gain > min_gain
        count_C += np.array([is_false, verdict.passed, *is_false_by_naive], np.int64)
    return count_C


def _count_false_retrainings(
    scenario: GateScenario,
    settings: GateSettings,
    num_attempts: int,
    is_same_recipe: bool,
    num_simulations: int,
    seed: tuple[int, ...],
) -> NDArray[np.int64]:
    """Count simulations with any false promotion: with shared alpha, and with full alpha (2,)."""
    rng = np.random.default_rng(seed)
    count_2 = np.zeros(2, np.int64)
    for _ in range(num_simulations):
        difficulty_N = scenario.draw_difficulty(rng)
        recipe_effect_N = scenario.draw_time_effect(rng)
        reference = scenario.draw_reference(rng, difficulty_N)
        has_promotion_2 = np.zeros(2, bool)
        for attempt in range(1, num_attempts + 1):
            effect_N = recipe_effect_N if is_same_recipe else scenario.draw_time_effect(rng)
            candidate = scenario.draw_candidate(rng, difficulty_N + effect_N)
            verdict = compare(
                candidate,
                reference,
                settings_for_attempt(settings, attempt),
                horizon_rows=scenario.horizon_rows,
            )
            has_promotion_2 |= (verdict.passed, verdict.p_value <= settings.alpha)
        count_2 += has_promotion_2
    return count_2


_CountChunk = Callable[..., NDArray[np.int64]]
"""Simulates one chunk and returns its counts."""


def _run_chunks(
    count_chunk: _CountChunk, chunks: Sequence[tuple[object, ...]], num_processes: int
) -> Iterator[NDArray[np.int64]]:
    """Yield the counts of each chunk, in order. With one process, this process computes them."""
    if num_processes == 1:
        yield from (count_chunk(*chunk) for chunk in chunks)
        return
    with ProcessPoolExecutor(num_processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(count_chunk, *zip(*chunks, strict=True))
