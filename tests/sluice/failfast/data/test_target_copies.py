"""POC-8: a near copy of the target warns by name; a slowly changing feature does not."""

import numpy as np
import pandas as pd
import pytest

from sluice.config.poc_settings import PocSettings
from sluice.failfast.data.target_copies import find_target_copies
from sluice.findings.check_outcome import CheckOutcome
from sluice.workloads.workload import Workload
from tests.support.failfast_workloads import Signals


def find_copies(change, settings: PocSettings | None = None) -> CheckOutcome | None:
    workload: Workload = Signals()
    frame = change(workload.compute_features(workload.load_rows()))
    train = workload.examples(frame, workload.plan_folds(frame)[0].train)
    return find_target_copies(workload, frame, train, settings or PocSettings())


def make_noisy_copy(noise_share: float, *, seed: int = 0):
    def change(frame: pd.DataFrame) -> pd.DataFrame:
        target = frame["target"]
        noise = np.random.default_rng(seed).normal(size=len(frame)) * target.std()
        return frame.assign(c=7 - 3 * (target + noise_share * noise))

    return change


@pytest.mark.parametrize("seed", range(5))
def test_a_copy_with_noise_warns_and_is_named(seed: int) -> None:
    """Known answer: the correlation of t and t + 5 % noise is 1 / sqrt(1 + 0.05 ** 2)."""
    finding = find_copies(make_noisy_copy(0.05, seed=seed))

    assert finding is not None
    assert (finding.outcome, finding.numbers["first"]) == ("warn", "c")
    assert finding.numbers["correlation"] == pytest.approx(1.0025**-0.5, abs=5e-4)
    assert "'c' has a correlation of 0.998" in finding.summary
    assert all(finding.response)


def test_an_exact_copy_fails() -> None:
    finding = find_copies(lambda f: f.assign(c=2 * f["target"], b=make_noisy_copy(0.05)(f)["c"]))

    assert finding is not None
    assert (finding.outcome, finding.numbers["first_copy"]) == ("fail", "c")


def test_more_noise_never_worsens_the_outcome() -> None:
    findings = [find_copies(make_noisy_copy(share)) for share in (0.0, 0.05, 0.1, 0.2, 0.5)]

    outcomes = [finding.outcome if finding else "pass" for finding in findings]
    assert outcomes == ["fail", "warn", "warn", "pass", "pass"]


def test_the_threshold_is_a_setting() -> None:
    settings = PocSettings(near_target_copy_correlation=0.9999)

    assert find_copies(make_noisy_copy(0.05), settings) is None


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("lag", [1, 5])
def test_an_earlier_value_of_a_slow_target_is_not_reported(seed: int, lag: int) -> None:
    def make_slow(frame: pd.DataFrame) -> pd.DataFrame:
        walk = pd.Series(np.random.default_rng(seed).normal(size=len(frame) + lag)).cumsum()
        target = walk.shift(-lag).to_numpy()[: len(frame)]
        return frame.assign(target=target, c=walk.to_numpy()[: len(frame)])

    assert find_copies(make_slow) is None
