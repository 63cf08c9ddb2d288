"""Schedulers, searchers and reports that cannot be resumed are rejected with the reason."""

import math

import pytest
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, ResourceChangingScheduler

from sluice.base.errors import ContractError, SettingsError
from sluice.tuning.resumable import get_study, resumable
from sluice.tuning.resumable.requirements import require_checkpoint, require_result


@pytest.mark.parametrize(
    ("wrapped", "arguments", "match"),
    [
        (FIFOScheduler(), {"ordered": True}, "concurrency=None"),
        (FIFOScheduler(), {"concurrency": 0}, "concurrency=0"),
        (FIFOScheduler(), {"errors": "ignore"}, "got 'ignore'"),
        (ResourceChangingScheduler(), {}, "base_scheduler"),
        ("asha", {}, "got 'asha'"),
        (resumable(ASHAScheduler(), journal="j", time_attr="epoch"), {}, "already wrapped"),
        (FIFOScheduler(), {}, "time_attr must be a counter .* got None"),
        (FIFOScheduler(), {"time_attr": "training_iteration"}, "got 'training_iteration'"),
    ],
)
def test_invalid_arguments_are_rejected(wrapped, arguments, match):
    with pytest.raises(SettingsError, match=match):
        resumable(wrapped, journal="j", **arguments)


@pytest.mark.parametrize(
    ("result", "match"),
    [
        ({"loss": 1.0}, "'epoch' .time_attr.* only .'loss'"),
        ({"loss": 1.0, "epoch": "one"}, "'epoch' .time_attr.* reported 'one'"),
        ({"epoch": 1}, "'loss' .metric"),
    ],
)
def test_report_without_metric_or_time_is_rejected(result, match):
    with pytest.raises(SettingsError, match=match):
        require_result("trial 0", result, "loss", "epoch")


def test_report_without_checkpoint_is_rejected_unless_its_loss_is_nan():
    with pytest.raises(SettingsError, match="trial 0 reported epoch 3 without a checkpoint"):
        require_checkpoint("trial 0", "", {"loss": 1.0, "epoch": 3}, "loss", "epoch")
    require_checkpoint("trial 0", "", {"loss": math.nan, "epoch": 3}, "loss", "epoch")
    require_checkpoint("trial 0", "/c", {"loss": 1.0, "epoch": 3}, "loss", "epoch")


def test_study_that_did_not_run_is_reported(tmp_path):
    with pytest.raises(ContractError, match="No Tuner ran"):
        get_study(tmp_path / "journal.jsonl")
