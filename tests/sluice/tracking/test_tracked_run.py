"""Names, values and ids of tracked runs: scalars `{split}/{task}/{metric}`, no tensors (TRK-1)."""

import dataclasses

import numpy as np
import pytest
import torch

from sluice.base.errors import ContractError
from sluice.tracking.tracked_run import Scalar, TrackedRun, fold_run_task

RUN = TrackedRun(
    name="bars abc",
    pipeline="bars",
    candidate="c" * 64,
    config={"lr": 0.1},
    manifest={"weights": "d" * 64},
    scalars=(Scalar(split="train", metric="loss", value=0.5, epoch=1),),
)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"split": "test", "metric": "sharpe"}, "test/sharpe"),
        ({"split": "test", "metric": "map@0.5:0.95"}, "test/map@0.5:0.95"),
        ({"split": "system", "metric": "cpu_cores"}, "system/cpu_cores"),
        ({"split": "val", "metric": "loss", "task": fold_run_task(0, 1)}, "val/seed0-fold1/loss"),
    ],
)
def test_scalar_name_is_split_task_and_metric(fields, name):
    assert Scalar(**fields, value=1.0).name == name


@pytest.mark.parametrize(
    "value",
    [torch.tensor(1.0), torch.ones(1), np.ones(1), np.array(1.0), "1.0", True, None, [1.0], 1j],
)
def test_value_that_is_not_a_scalar_number_is_rejected(value):
    with pytest.raises(ContractError, match=r"train/loss must be a plain number, got "):
        Scalar(split="train", metric="loss", value=value)


@pytest.mark.parametrize("value", [1, 1.0, np.float32(1), np.float64(1), np.int64(1)])
def test_scalar_numbers_are_converted_to_float(value):
    scalar = Scalar(split="train", metric="loss", value=value)

    assert type(scalar.value) is float
    assert scalar.value == 1.0


def test_non_finite_loss_is_kept():
    assert Scalar(split="train", metric="loss", value=float("inf")).value == float("inf")


@pytest.mark.parametrize(
    "fields", [{"metric": "a/b"}, {"metric": ""}, {"metric": "m", "task": "a b"}]
)
def test_invalid_metric_or_task_name_is_rejected(fields):
    with pytest.raises(ContractError, match="must consist of letters, digits"):
        Scalar(split="train", value=1.0, **fields)


def test_duplicate_scalar_of_an_epoch_is_rejected():
    with pytest.raises(ContractError, match=r"train/loss must be tracked once per epoch.*epoch 1"):
        dataclasses.replace(RUN, scalars=RUN.scalars * 2)
    whole_run = (Scalar(split="test", metric="loss", value=1.0),) * 2
    with pytest.raises(ContractError, match=r"got it twice for the whole run\."):
        dataclasses.replace(RUN, scalars=whole_run)


@pytest.mark.parametrize("field", ["config", "manifest"])
def test_config_and_manifest_must_be_json_serializable(field):
    with pytest.raises(ContractError, match="Tensor is not JSON serializable"):
        dataclasses.replace(RUN, **{field: {"w": torch.ones(2)}})


def test_run_id_depends_only_on_the_content():
    other = dataclasses.replace(RUN, config={"lr": 0.2})

    assert dataclasses.replace(RUN).run_id == RUN.run_id
    assert other.run_id != RUN.run_id
