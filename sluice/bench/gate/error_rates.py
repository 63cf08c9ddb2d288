"""How often the gate promotes in a simulated world: without a gain, and with one (STAT-3)."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sluice.base.settings import Record
from sluice.bench.gate.naive import NAIVE
from sluice.bench.gate.worlds import World
from sluice.evaluation.budget import for_attempt
from sluice.evaluation.comparison import compare
from sluice.evaluation.estimate import Arm
from sluice.evaluation.settings import GateSettings

ORACLE_POWER = 0.8
_CHUNK = 50
"""Simulations handed to a process at a time; their draws depend on the chunk's number alone."""


class Rate(Record):
    """A share of simulations, with Wilson's interval."""

    count: int = Field(ge=0)
    total: int = Field(ge=1)

    @property
    def rate(self) -> float:
        """The share itself."""
        return self.count / self.total

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's two-sided 95 % interval."""
        from scipy.stats import binomtest

        found = binomtest(self.count, self.total).proportion_ci(method="wilson")
        return float(found.low), float(found.high)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{100 * self.rate:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


class CellResult(Record):
    """One world's rates of promotion: by the gate, and by tests that forget something."""

    world: World
    false_promotions: Rate
    power: Rate = Field(description="At the gain that an oracle finds in 80 %.")
    naive: dict[str, Rate] = Field(description="False promotions of each naive test.")

    @property
    def most_allowed(self) -> float | None:
        """Largest rate of false promotions allowed here; None where nothing is promised."""
        if self.world.num_rows < 1000:
            return None
        return 0.06 if self.world.rho <= 0.5 else 0.08

    @property
    def least_power(self) -> float | None:
        """Smallest power wanted here; None where nothing is promised."""
        return {5: 0.65, 8: 0.70}.get(self.world.num_seeds)


class FamilyResult(Record):
    """Retraining again and again on one window: any false promotion at all."""

    world: World
    attempts: int
    is_same_recipe: bool = Field(description="New seeds of one recipe; else a new recipe each.")
    with_budget: Rate = Field(description="Families with a false promotion, alpha shared.")
    without_budget: Rate = Field(description="The same when each attempt spends all of alpha.")


def measure_cells(
    worlds: Sequence[World], settings: GateSettings, *, simulations: int, seed: int, processes: int
) -> Iterator[CellResult]:
    """Yield each world's rates as soon as all its simulations are done.

    The gate that is measured is ``compare`` itself, not a copy of it. One draw serves null and
    power: a gain that is added moves the bounds by itself and nothing else.

    Cost:
        About 5 ms for each simulation of 2 x 8 seeds and 1,000 rows.
    """
    chunks = [
        (at, world, settings, min(_CHUNK, simulations - start), (seed, at, start))
        for at, world in enumerate(worlds)
        for start in range(0, simulations, _CHUNK)
    ]
    count_P = np.zeros(2 + len(NAIVE), np.int64)
    done = 0
    for (_at, world, *_), found_P in zip(
        chunks, _run(_chunk_counts, chunks, processes), strict=True
    ):
        count_P += found_P
        done += min(_CHUNK, simulations - done)
        if done == simulations:
            false, power, *naive = (Rate(count=int(c), total=simulations) for c in count_P)
            yield CellResult(
                world=world,
                false_promotions=false,
                power=power,
                naive=dict(zip(NAIVE, naive, strict=True)),
            )
            count_P[:], done = 0, 0


def measure_family(
    world: World,
    settings: GateSettings,
    *,
    attempts: int,
    is_same_recipe: bool,
    simulations: int,
    seed: int,
    processes: int,
) -> FamilyResult:
    """Return how often retraining ``attempts`` times on one window promotes falsely at all.

    Production stays as it is; each attempt is judged on the same rows.

    Cost:
        ``attempts`` times that of as many simulations of ``measure_cells``.
    """
    chunks = [
        (world, settings, attempts, is_same_recipe, min(_CHUNK, simulations - start), (seed, start))
        for start in range(0, simulations, _CHUNK)
    ]
    shared, whole = np.sum(list(_run(_family_counts, chunks, processes)), axis=0).tolist()
    return FamilyResult(
        world=world,
        attempts=attempts,
        is_same_recipe=is_same_recipe,
        with_budget=Rate(count=shared, total=simulations),
        without_budget=Rate(count=whole, total=simulations),
    )


def _chunk_counts(
    at: int, world: World, settings: GateSettings, simulations: int, seed: tuple[int, ...]
) -> NDArray[np.int64]:
    """Count promotions: false ones, true ones, then each naive test's false ones."""
    del at
    rng = np.random.default_rng(seed)
    effect = world.oracle_effect(alpha=settings.alpha, power=ORACLE_POWER)
    required = settings.min_gain
    count_P = np.zeros(2 + len(NAIVE), np.int64)
    for _ in range(simulations):
        candidate, reference = world.draw(rng, gain=required + effect)
        verdict = compare(candidate, reference, settings, horizon_rows=world.horizon_rows)
        ours, theirs = Arm.of(candidate), Arm.of(reference)
        naive = [
            bound(ours, theirs, candidate.fold_N, verdict.block_length, settings.alpha) - effect
            > required
            for bound in NAIVE.values()
        ]
        # Without the effect the bound lies lower by it, and what is lacking is the same.
        false = verdict.passed and verdict.lower_bound - effect > required
        count_P += np.array([false, verdict.passed, *naive], np.int64)
    return count_P


def _family_counts(
    world: World,
    settings: GateSettings,
    attempts: int,
    is_same_recipe: bool,
    simulations: int,
    seed: tuple[int, ...],
) -> NDArray[np.int64]:
    """Count families with a false promotion: with alpha shared, and without."""
    rng = np.random.default_rng(seed)
    count_2 = np.zeros(2, np.int64)
    for _ in range(simulations):
        base_N, time_N = world.base(rng), world.time_effect(rng)
        reference = world.reference(rng, base_N)
        found_2 = np.zeros(2, bool)
        for attempt in range(1, attempts + 1):
            own_N = time_N if is_same_recipe else world.time_effect(rng)
            candidate = world.candidate(rng, base_N + own_N)
            verdict = compare(
                candidate,
                reference,
                for_attempt(settings, attempt),
                horizon_rows=world.horizon_rows,
            )
            found_2 |= (verdict.passed, verdict.p_value <= settings.alpha)
        count_2 += found_2
    return count_2


_Counts = Callable[..., NDArray[np.int64]]


def _run(
    work: _Counts, chunks: Sequence[tuple[object, ...]], processes: int
) -> Iterator[NDArray[np.int64]]:
    """Yield what each chunk counted, in order; in this process when one is enough."""
    if processes == 1:
        yield from (work(*chunk) for chunk in chunks)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(work, *zip(*chunks, strict=True))
