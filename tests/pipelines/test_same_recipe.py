"""The rate of false promotions on the real S&P 500 bars stays within alpha (STAT-3)."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from sluice.base.artifacts import ArtifactStore
from sluice.cluster.settings import ComputeSettings
from sluice.config.pipeline import PipelineSettings, defs_folder, find_pipeline
from sluice.config.resolved import resolve
from sluice.data.table import save_table
from sluice.evaluation.comparison import compare
from sluice.evaluation.losses import LossTable
from sluice.evaluation.scoring import Scores, score_baseline, score_candidate
from sluice.evaluation.simple_rules import BaselineSettings, choose_baseline
from sluice.training.fold_run_spec import FoldRunSpec
from sluice.training.parallel import train_members
from sluice.training.weights import load_member

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

POOL = 40
"""Number of seeds trained with one recipe. A pair compares 2 x 8 distinct ones."""

PAIRS = 200
BLOCK = 60


@pytest.fixture(scope="module")
def pipeline() -> PipelineSettings:
    return find_pipeline("sp500_volatility", defs_folder())


@pytest.fixture(scope="module")
def scored(
    pipeline: PipelineSettings, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Scores, Scores]:
    """Scores of all seeds of the pool, and of the baseline, on the real test rows."""
    folder = tmp_path_factory.mktemp("pool")
    workload, store = resolve(pipeline).workload, ArtifactStore(folder / "artifacts")
    frame = workload.compute_features(workload.load_rows())
    folds = workload.plan_folds(frame)
    record = save_table(frame, store)
    specs = [
        FoldRunSpec(
            workload=pipeline.workload,
            workload_settings=pipeline.workload_settings,
            model=pipeline.model,
            training=pipeline.training,
            seed=1000 + seed,
            fold=fold,
            table=record,
            artifacts=folder / "artifacts",
            runs=folder / "runs",
            sys_path=tuple(part for part in sys.path if part),
        )
        for seed in range(POOL)
        for fold in folds
    ]
    members, _ = train_members(specs, compute=ComputeSettings(), on_event=lambda _: None)
    ours = score_candidate(
        workload,
        frame,
        folds,
        members,
        lambda member: load_member(member, workload, pipeline.model, store),
        subject="pool",
    ).by_seed
    rule = choose_baseline(workload, frame, folds, BaselineSettings())
    return ours, score_baseline(workload, frame, folds, rule, subject="baseline")


def select_seeds(pool: LossTable, at_S: np.ndarray, subject: str) -> LossTable:
    return replace(
        pool,
        subject=subject,
        seeds=tuple(pool.seeds[at] for at in at_S),
        loss_SN=pool.loss_SN[at_S],
    )


def max_promotions_by_chance(trials: int, alpha: float) -> int:
    """Return the 99th percentile of promotions when each has probability alpha."""
    return int(binom.ppf(0.99, trials, alpha))


def test_same_recipe_with_other_seeds_is_promoted_within_alpha(
    scored: tuple[Scores, Scores], pipeline: PipelineSettings, record_property
) -> None:
    pool, rng = scored[0].losses, np.random.default_rng(5)
    promoted = 0
    for _ in range(PAIRS):
        drawn = rng.permutation(POOL)[:16]
        verdict = compare(
            select_seeds(pool, drawn[:8], "a"),
            select_seeds(pool, drawn[8:], "b"),
            pipeline.gate,
            horizon_rows=resolve(pipeline).workload.horizon_rows,
        )
        promoted += verdict.passed
    record_property(
        "measurement", f"same recipe on the real bars: {promoted} of {PAIRS} pairs promoted"
    )

    assert promoted <= max_promotions_by_chance(PAIRS, pipeline.gate.alpha)


def test_other_recipe_with_equal_mean_loss_is_promoted_within_alpha(
    scored: tuple[Scores, Scores], pipeline: PipelineSettings, record_property
) -> None:
    """Gains of different recipes are correlated in time.

    The real gains are centred per fold, and each block gets a random sign. A t-test over seeds
    alone promotes a third of these pairs.
    """
    pool, baseline = scored[0].losses, scored[1].losses.aligned_to(scored[0].losses)
    gain_N = baseline.loss_SN[0] - pool.loss_SN.mean(axis=0)
    for fold in np.unique(pool.fold_N):
        gain_N[pool.fold_N == fold] -= gain_N[pool.fold_N == fold].mean()
    rng = np.random.default_rng(6)
    promoted = by_seeds_alone = 0
    for _ in range(PAIRS):
        sign_N = np.repeat(rng.choice([-1.0, 1.0], gain_N.size // BLOCK + 1), BLOCK)[: gain_N.size]
        ours = select_seeds(pool, rng.permutation(POOL)[:8], "candidate")
        level_N = pool.loss_SN.mean(axis=0)
        reference = replace(baseline, loss_SN=(level_N + sign_N * gain_N)[None])
        verdict = compare(
            ours, reference, pipeline.gate, horizon_rows=resolve(pipeline).workload.horizon_rows
        )
        promoted += verdict.passed
        difference_S = (reference.loss_SN - ours.loss_SN).mean(axis=1)
        by_seeds_alone += difference_S.mean() > 1.895 * difference_S.std(ddof=1) / np.sqrt(8)
    record_property(
        "measurement",
        f"another recipe of the same mean: {promoted} of {PAIRS} promoted, {by_seeds_alone} by "
        "seeds alone",
    )

    assert promoted <= max_promotions_by_chance(PAIRS, pipeline.gate.alpha)
    assert by_seeds_alone > 2 * max_promotions_by_chance(PAIRS, pipeline.gate.alpha)
