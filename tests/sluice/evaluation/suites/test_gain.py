"""The gain on a suite has the bounds of the gate, or none without evidence (DATA-5)."""

import numpy as np
import pytest
from scipy.special import stdtrit

from sluice.evaluation.estimate import ArmLosses
from sluice.evaluation.suites.gain import measure_gain
from sluice.evaluation.suites.settings import SuiteSettings

SETTINGS = SuiteSettings()


def make_arm(loss_SN: np.ndarray, *, rule: bool = False) -> ArmLosses:
    return ArmLosses(loss_SN=loss_SN, is_deterministic=rule)


def measure(
    candidate: np.ndarray,
    reference: np.ndarray,
    *,
    horizon_rows: int = 0,
    no_bounds_reason: str = "",
):
    return measure_gain(
        make_arm(candidate),
        make_arm(reference, rule=True),
        SETTINGS,
        horizon_rows=horizon_rows,
        no_bounds_reason=no_bounds_reason,
    )


def test_independent_rows_of_equal_seeds_have_the_bounds_of_the_one_sample_t_test():
    gain_M = np.random.default_rng(3).normal(0.2, 1.0, 50)
    reference = np.full((1, 50), 5.0)

    suite_gain = measure(np.tile(5.0 - gain_M, (2, 1)), reference)

    half_width = stdtrit(49, 0.95) * gain_M.std(ddof=1) / np.sqrt(50)
    assert suite_gain.gain == pytest.approx(gain_M.mean())
    assert (suite_gain.low, suite_gain.high) == pytest.approx(
        (gain_M.mean() - half_width, gain_M.mean() + half_width)
    )


@pytest.mark.parametrize(
    ("shift", "outcome"), [(1.0, "BETTER"), (-1.0, "WORSE"), (0.0, "INCONCLUSIVE")]
)
def test_the_outcome_follows_from_the_sign_of_a_large_gain(shift, outcome):
    rng = np.random.default_rng(4)
    noise = rng.normal(size=(5, 200)) * 0.3
    noise -= noise.mean()

    assert measure(3.0 - shift + noise, np.full((1, 200), 3.0), horizon_rows=1).outcome == outcome


def test_a_larger_alpha_gives_a_narrower_interval():
    candidate = np.random.default_rng(4).normal(size=(3, 60))
    bounds = [
        measure_gain(
            make_arm(candidate),
            make_arm(np.zeros((1, 60)), rule=True),
            SuiteSettings(alpha=alpha),
            horizon_rows=1,
            no_bounds_reason="",
        )
        for alpha in (0.01, 0.05, 0.2)
    ]

    assert len({gain.low for gain in bounds}) == len({gain.high for gain in bounds}) == 3
    assert [gain.low for gain in bounds] == sorted(gain.low for gain in bounds)
    assert [gain.high for gain in bounds] == sorted((gain.high for gain in bounds), reverse=True)


@pytest.mark.parametrize(
    ("candidate", "horizon_rows", "lacking"),
    [
        (np.random.default_rng(0).normal(size=(3, 29)), 1, "29 scored rows, required 30"),
        (np.zeros((3, 0)), 1, "no rows were scored"),
        (np.ones((3, 40)), 1, "the same on every row"),
        (np.full((3, 40), np.nan), 1, "non-finite"),
        (np.random.default_rng(0).normal(size=(1, 40)), 1, "fewer than two seeds"),
        (np.random.default_rng(0).normal(size=(3, 40)), 20, "two blocks of 39 rows"),
    ],
)
def test_insufficient_evidence_has_no_bounds_and_is_inconclusive(candidate, horizon_rows, lacking):
    suite_gain = measure(candidate, np.zeros((1, candidate.shape[1])), horizon_rows=horizon_rows)

    assert lacking in suite_gain.lacking
    assert np.isnan([suite_gain.low, suite_gain.high]).all()
    assert suite_gain.outcome == "INCONCLUSIVE"


def test_missing_evidence_given_by_the_caller_prevents_bounds():
    candidate = np.random.default_rng(0).normal(size=(3, 40)) - 9

    suite_gain = measure(candidate, np.zeros((1, 40)), no_bounds_reason="chosen by all")

    assert (suite_gain.lacking, suite_gain.outcome) == ("chosen by all", "INCONCLUSIVE")
