"""POC-9: dependence of targets on features is detected; shuffled labels have none."""

import numpy as np
import pytest
import torch

from sluice.base.errors import SettingsError
from sluice.config.poc_settings import PocSettings
from sluice.failfast.data.signal import check_signal, find_signal
from sluice.workloads.bars import BarsWorkload
from tests.support import failfast_workloads as planted
from tests.support.echo import Echo
from tests.support.plain import digits, examples, normal
from tests.support.synthetic import SineWorkload

SETTINGS = PocSettings()


def check(rows, *, required=True, seed=0, **poc):
    return check_signal(rows, PocSettings(**poc), expects_signal=required, seed=seed)


def shuffle_labels(rows, seed=1):
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    return examples(rows.x, rows.y[order])


@pytest.mark.slow
@pytest.mark.parametrize("workload", [BarsWorkload, planted.Signals, Echo, SineWorkload])
def test_workloads_have_a_signal_but_not_with_shuffled_labels(load_train_examples, workload):
    rows = load_train_examples(workload())

    assert check(rows).outcome == "pass"
    finding = check(shuffle_labels(rows))
    assert finding.outcome == ("warn" if len(rows) < 200 else "fail")
    assert finding.fault == "shuffled labels"


def test_digits_have_a_signal_but_not_with_shuffled_labels():
    assert check(digits()).outcome == "pass"
    assert check(shuffle_labels(digits())).outcome == "fail"


@pytest.mark.parametrize(("num_others", "outcome"), [(29, "warn"), (30, "fail")])
def test_few_examples_outside_one_class_may_hide_a_signal(num_others, outcome):
    classes = (torch.arange(900) < num_others).long()

    finding = check(examples(normal(900, 1, 3), classes))

    assert finding.outcome == outcome
    reason = "The test may have missed a signal: all but 29 examples are of one class."
    assert finding.summary.endswith(reason) is (outcome == "warn")


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_constant_inputs_explain_nothing(value):
    finding = check(examples(torch.full((300, 1, 2), value), normal(300, 1)))

    assert finding.outcome == "fail"
    assert (finding.numbers["explained_share"], finding.numbers["p_value"]) == (0.0, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("window", [1, 22])
def test_a_product_of_two_features_is_detected(window):
    x = normal(2000, window, 9)
    y = x[:, -1, :1] * x[:, -1, 1:2] + 0.5 * normal(2000, 1, seed=1)

    assert check(examples(x, y)).outcome == "pass"


def test_a_dependence_of_only_the_variance_is_detected():
    x = normal(2000, 4)

    assert check(examples(x, x[:, :1].exp() * normal(2000, 1, seed=1))).outcome == "pass"


@pytest.mark.slow
@pytest.mark.parametrize("r2", [0.02, pytest.param(0.05, marks=pytest.mark.exhaustive)])
def test_a_weak_signal_is_detected_in_nine_of_ten_tables(r2):
    num_detected = 0
    for seed in range(10):
        x = normal(2000, 22, 9, seed=seed)
        y = r2**0.5 * x[:, -1, :1] + (1 - r2) ** 0.5 * normal(2000, 1, seed=seed + 100)
        num_detected += check(examples(x, y), seed=seed).outcome == "pass"

    assert num_detected >= 9


@pytest.mark.slow
def test_false_positive_rate_of_noise_equals_alpha():
    """Uniform p-values under the null, within three binomial standard deviations."""
    p_values = []
    for seed in range(250):
        rows = examples(normal(120, 3, 2, seed=seed), normal(120, 1, seed=seed + 1000))
        p_values.append(find_signal(rows, num_permutations=99, alpha=0.05, seed=seed).p_value)

    for alpha in (0.05, 0.2, 0.5):
        rate = float((np.array(p_values) <= alpha).mean())
        assert abs(rate - alpha) < 3 * (alpha * (1 - alpha) / 250) ** 0.5


def test_outliers_do_not_hide_a_signal():
    x = normal(500, 3)
    y = x[:, :1] + normal(500, 1, seed=1)
    y[7], x[9, 1] = 1e9, -1e9

    assert check(examples(x, y)).outcome == "pass"


def test_the_p_value_does_not_depend_on_the_unit_of_the_target():
    x, y = normal(300, 3), normal(300, 1, seed=1)

    assert check(examples(x, y)).numbers == check(examples(x, 1e6 * y + 5)).numbers


def test_tokens_without_a_signal_only_warn():
    x = torch.randint(0, 50, (1000, 12), generator=torch.Generator().manual_seed(0))

    assert check(examples(x, ((x < 10).sum(1) > 2).long())).outcome == "pass"
    assert check(examples(x, x[:, -1] % 4)).outcome == "pass"
    assert check(shuffle_labels(examples(x, x[:, -1] % 4))).outcome == "warn"


def test_missing_signal_with_low_power_only_warns():
    few = examples(normal(100, 3), normal(100, 1, seed=1))
    many_classes = examples(normal(400, 3), torch.arange(400) % 150)
    wide = examples(normal(250, 1100), normal(250, 1, seed=1))

    for rows, reason in (
        (few, "only 100 examples"),
        (many_classes, "150 classes"),
        (wide, "1,100 values"),
    ):
        finding = check(rows)
        assert (finding.outcome, finding.fault) == ("warn", "shuffled labels")
        assert reason in finding.summary


def test_no_signal_only_warns_where_none_is_expected():
    rows = examples(normal(400, 3), normal(400, 1, seed=1))

    assert check(rows, required=True).outcome == "fail"
    assert check(rows, required=False).outcome == "warn"


def test_constant_targets_and_too_few_rows_are_insufficient():
    assert check(examples(normal(100, 3), torch.ones(100, 1))).outcome == "insufficient"
    assert check(examples(normal(49, 3), normal(49, 1))).fault == "too few rows"


def test_rows_with_non_finite_values_are_left_out():
    x, y = normal(300, 3), normal(300, 1, seed=1)
    x[5, 1], y[8] = float("nan"), float("inf")

    assert check(examples(x, x[:, :1].nan_to_num() + y)).numbers["num_rows"] == 298


def test_the_same_seed_gives_the_same_numbers():
    rows = examples(normal(300, 3), normal(300, 1, seed=1))

    assert check(rows, seed=2) == check(rows, seed=2)
    assert check(rows, seed=2) != check(rows, seed=3)


def test_a_p_value_is_never_zero():
    """The actual order counts as one of the permutations (POC-9)."""
    x = normal(300, 3)

    assert check(examples(x, x[:, :1])).numbers["p_value"] == 1 / (1 + SETTINGS.signal_permutations)


@pytest.mark.parametrize("num_rows", [60, 255, 300])
def test_r2_of_a_noiseless_smooth_dependence_is_close_to_one(num_rows):
    """Also with fewer rows than a feature map has columns."""
    x = normal(num_rows, 1)
    signal = find_signal(examples(x, x**3), num_permutations=19, alpha=0.05, seed=0)

    assert 0.985 < signal.r2 <= 1
    assert signal.critical_r2 < 0.3


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.int16])
def test_signal_in_token_ids_is_detected_in_every_dtype(dtype):
    """Also as floats, the dtype of requests: as plain numbers the ids would have no signal."""
    rng = np.random.default_rng(0)
    ids, value_by_id = rng.integers(0, 300, (2000, 1, 6)), rng.normal(size=300)
    y = torch.from_numpy(value_by_id[ids[:, 0]].sum(axis=1)).float()[:, None]

    assert check(examples(torch.from_numpy(ids).to(dtype), y)).outcome == "pass"
    assert check(shuffle_labels(examples(torch.from_numpy(ids).float(), y))).outcome == "fail"


def test_byte_images_have_a_signal_but_not_with_shuffled_labels():
    rows = digits()
    byte_rows = examples((rows.x / rows.x.max() * 255).to(torch.uint8), rows.y)

    assert check(byte_rows).outcome == "pass"
    assert check(shuffle_labels(byte_rows, seed=2)).outcome == "fail"


def test_wide_byte_images_with_a_signal_do_not_fail():
    x = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (300, 1, 40, 40), np.uint8))

    assert check(examples(x, (x[:, 0, :8, :8].float().mean(dim=(1, 2)) > 127).long())).outcome in (
        "pass",
        "warn",
    )


def test_too_few_permutations_to_reach_the_significance_level_are_rejected():
    with pytest.raises(SettingsError, match=r"at least 1 / signal_alpha - 1"):
        PocSettings.parse({"signal_permutations": 98}, where="defs.yaml")

    assert PocSettings(signal_permutations=99).signal_permutations == 99
