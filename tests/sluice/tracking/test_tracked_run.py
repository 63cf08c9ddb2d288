"""TRK-1: names `{split}/{metric}` and `{split}/{task}/{metric}`; scalars, never tensors."""

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
    ("parts", "name"),
    [
        ({"split": "test", "metric": "sharpe"}, "test/sharpe"),
        ({"split": "test", "metric": "map@0.5:0.95"}, "test/map@0.5:0.95"),
        ({"split": "system", "metric": "cpu_cores"}, "system/cpu_cores"),
        ({"split": "val", "metric": "loss", "task": fold_run_task(0, 1)}, "val/seed0-fold1/loss"),
    ],
)
def test_names_follow_the_pattern(parts, name):
    assert Scalar(**parts, value=1.0).name == name


@pytest.mark.parametrize(
    "value",
    [torch.tensor(1.0), torch.ones(1), np.ones(1), np.array(1.0), "1.0", True, None, [1.0], 1j],
)
def test_anything_but_a_plain_number_is_refused(value):
    with pytest.raises(ContractError, match=r"train/loss must be a plain number, got "):
        Scalar(split="train", metric="loss", value=value)


@pytest.mark.parametrize("value", [1, 1.0, np.float32(1), np.float64(1), np.int64(1)])
def test_plain_numbers_of_any_kind_become_floats(value):
    scalar = Scalar(split="train", metric="loss", value=value)

    assert type(scalar.value) is float
    assert scalar.value == 1.0


def test_a_nonfinite_loss_is_kept():
    assert Scalar(split="train", metric="loss", value=float("inf")).value == float("inf")


@pytest.mark.parametrize(
    "parts", [{"metric": "a/b"}, {"metric": ""}, {"metric": "m", "task": "a b"}]
)
def test_an_invalid_name_is_rejected(parts):
    with pytest.raises(ContractError, match="must consist of letters, digits"):
        Scalar(split="train", value=1.0, **parts)


def test_the_same_name_twice_in_one_epoch_is_refused():
    with pytest.raises(ContractError, match=r"train/loss must be tracked once per epoch.*epoch 1"):
        dataclasses.replace(RUN, scalars=RUN.scalars * 2)
    whole_run = (Scalar(split="test", metric="loss", value=1.0),) * 2
    with pytest.raises(ContractError, match=r"got it twice for the whole run\."):
        dataclasses.replace(RUN, scalars=whole_run)


@pytest.mark.parametrize("field", ["config", "manifest"])
def test_config_and_manifest_must_be_plain_json(field):
    with pytest.raises(ContractError, match="Tensor is not JSON serializable"):
        dataclasses.replace(RUN, **{field: {"w": torch.ones(2)}})


def test_the_run_id_is_a_digest_of_the_content():
    other = dataclasses.replace(RUN, config={"lr": 0.2})

    assert dataclasses.replace(RUN).run_id == RUN.run_id
    assert other.run_id != RUN.run_id
