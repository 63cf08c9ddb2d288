"""Promotion rates of the gate in simulated scenarios, without a gain and with one."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sluice.base.settings import Record
from sluice.bench.gate.naive import NAIVE
from sluice.bench.gate.scenarios import GateScenario
from sluice.bench.planted.rate import Rate
from sluice.evaluation.alpha_spending import settings_for_attempt
from sluice.evaluation.comparison import compare
from sluice.evaluation.estimate import ArmLosses
from sluice.evaluation.settings import GateSettings

ORACLE_POWER = 0.8
_CHUNK = 50
"""Simulations per task of a worker. Each task has its own seed, so that results do not depend on
the number of workers."""


class ScenarioRates(Record):
    """Promotion rates in one scenario: of the gate, and of naive tests."""

    world: GateScenario
    false_promotions: Rate
    power: Rate = Field(
        description="Promotions of a candidate with a true gain. A test that knows the standard "
        "error detects this gain in 80 % of the simulations."
    )
    naive: dict[str, Rate] = Field(description="False promotions of each naive test.")

    @property
    def max_false_rate(self) -> float | None:
        """Maximum rate of false promotions; None without a target."""
        if self.world.num_rows < 1000:
            return None
        return 0.06 if self.world.rho <= 0.5 else 0.08

    @property
    def min_power(self) -> float | None:
        """Minimum power; None without a target."""
        return {5: 0.65, 8: 0.70}.get(self.world.num_seeds)


class RetrainingRates(Record):
    """Rates of any false promotion when retraining repeatedly on one window."""

    world: GateScenario
    attempts: int
    is_same_recipe: bool = Field(
        description="Whether attempts are new seeds of one recipe; else each is a new recipe."
    )
    with_budget: Rate = Field(
        description="Simulations in which any attempt was promoted falsely; the attempts share "
        "alpha."
    )
    without_budget: Rate = Field(
        description="Simulations in which any attempt was promoted falsely; each attempt is tested "
        "at the full alpha."
    )


def measure_cells(
    worlds: Sequence[GateScenario],
    settings: GateSettings,
    *,
    simulations: int,
    seed: int,
    processes: int,
) -> Iterator[ScenarioRates]:
    """Yield the rates of each scenario as soon as its simulations are complete.

    The measured gate is ``compare`` itself. The same draws give both rates, without and with a
    gain, because adding a gain shifts the bounds by that gain and changes nothing else.

    Cost:
        About 5 ms per simulation of 2 x 8 seeds and 1,000 rows.
    """
    chunks = [
        (at, world, settings, min(_CHUNK, simulations - start), (seed, at, start))
        for at, world in enumerate(worlds)
        for start in range(0, simulations, _CHUNK)
    ]
    count_P = np.zeros(2 + len(NAIVE), np.int64)
    num_simulated = 0
    for (_at, world, *_), found_P in zip(
        chunks, _run(_chunk_counts, chunks, processes), strict=True
    ):
        count_P += found_P
        num_simulated += min(_CHUNK, simulations - num_simulated)
        if num_simulated == simulations:
            false, power, *naive = (Rate(count=int(c), total=simulations) for c in count_P)
            yield ScenarioRates(
                world=world,
                false_promotions=false,
                power=power,
                naive=dict(zip(NAIVE, naive, strict=True)),
            )
            count_P[:], num_simulated = 0, 0


def measure_family(
    world: GateScenario,
    settings: GateSettings,
    *,
    attempts: int,
    is_same_recipe: bool,
    simulations: int,
    seed: int,
    processes: int,
) -> RetrainingRates:
    """Return how often ``attempts`` retrainings on one window lead to any false promotion.

    Production does not change; each attempt is tested on the same rows.

    Cost:
        ``attempts`` times that of the same number of simulations of ``measure_cells``.
    """
    chunks = [
        (world, settings, attempts, is_same_recipe, min(_CHUNK, simulations - start), (seed, start))
        for start in range(0, simulations, _CHUNK)
    ]
    with_budget, without_budget = np.sum(
        list(_run(_family_counts, chunks, processes)), axis=0
    ).tolist()
    return RetrainingRates(
        world=world,
        attempts=attempts,
        is_same_recipe=is_same_recipe,
        with_budget=Rate(count=with_budget, total=simulations),
        without_budget=Rate(count=without_budget, total=simulations),
    )


def _chunk_counts(
    at: int, world: GateScenario, settings: GateSettings, simulations: int, seed: tuple[int, ...]
) -> NDArray[np.int64]:
    """Count promotions: false ones, true ones, then the false ones of each naive test."""
    del at
    rng = np.random.default_rng(seed)
    effect = world.oracle_effect(alpha=settings.alpha, power=ORACLE_POWER)
    required = settings.min_gain
    count_P = np.zeros(2 + len(NAIVE), np.int64)
    for _ in range(simulations):
        candidate, reference = world.draw(rng, gain=required + effect)
        verdict = compare(candidate, reference, settings, horizon_rows=world.horizon_rows)
        candidate_losses, reference_losses = ArmLosses.of(candidate), ArmLosses.of(reference)
        naive = [
            bound(
                candidate_losses,
                reference_losses,
                candidate.fold_N,
                verdict.block_length,
                settings.alpha,
            )
            - effect
            > required
            for bound in NAIVE.values()
        ]
        # Without the effect, the lower bound is smaller by the effect; whether there is enough data
        # does not depend on it.
        is_false = verdict.passed and verdict.lower_bound - effect > required
        count_P += np.array([is_false, verdict.passed, *naive], np.int64)
    return count_P


def _family_counts(
    world: GateScenario,
    settings: GateSettings,
    attempts: int,
    is_same_recipe: bool,
    simulations: int,
    seed: tuple[int, ...],
) -> NDArray[np.int64]:
    """Count simulations with any false promotion, with and without shared alpha."""
    rng = np.random.default_rng(seed)
    count_2 = np.zeros(2, np.int64)
    for _ in range(simulations):
        base_N, time_N = world.base(rng), world.time_effect(rng)
        reference = world.reference(rng, base_N)
        found_2 = np.zeros(2, bool)
        for attempt in range(1, attempts + 1):
            effect_N = time_N if is_same_recipe else world.time_effect(rng)
            candidate = world.candidate(rng, base_N + effect_N)
            verdict = compare(
                candidate,
                reference,
                settings_for_attempt(settings, attempt),
                horizon_rows=world.horizon_rows,
            )
            found_2 |= (verdict.passed, verdict.p_value <= settings.alpha)
        count_2 += found_2
    return count_2


_Counts = Callable[..., NDArray[np.int64]]


def _run(
    work: _Counts, chunks: Sequence[tuple[object, ...]], processes: int
) -> Iterator[NDArray[np.int64]]:
    """Yield the counts of each chunk, in order; in this process when one worker is enough."""
    if processes == 1:
        yield from (work(*chunk) for chunk in chunks)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(work, *zip(*chunks, strict=True))
