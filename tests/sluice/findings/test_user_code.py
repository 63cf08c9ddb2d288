"""Attribution of exceptions to user code or to Sluice."""

import pytest
import torch
from torch import nn

from sluice.base.errors import ContractError, TrainingFailed
from sluice.failfast.learning.example_sampling import sample_evenly
from sluice.findings.user_code import outcome_from_error, training_error, wrap_user_errors
from sluice.training.loop import mean_loss, predict
from tests.support.synthetic import SineWorkload


def catch_error(call):
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def raise_in_sluice():
    sample_evenly(None, 3)


class OneArgument(SineWorkload):
    def losses(self, output):
        return output


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        hidden = self.layer(x).exp()
        hidden.add_(1)
        return hidden


class NoTensor(nn.Module):
    def forward(self, x):
        return x.no_such_thing()


class TensorRows:
    x = y = torch.zeros(4, 2)


ROWS = torch.randn(4, 2, generator=torch.Generator().manual_seed(0))
USER_ERRORS = {
    "in a line of the user": lambda: predict(NoTensor(), ROWS),
    "in torch, not called by a line of the user": lambda: predict(nn.Embedding(3, 2), ROWS),
    "a function with other parameters": lambda: mean_loss(
        nn.Identity(), OneArgument().losses, TensorRows()
    ),
    "in the backward pass": lambda: InPlace()(ROWS).sum().backward(),
}


def test_an_exception_raised_by_sluice_is_reported_as_a_bug():
    error = catch_error(raise_in_sluice)

    finding = outcome_from_error(error)
    assert finding.fault == "bug in Sluice"
    assert "failfast/learning/example_sampling.py" in finding.summary
    assert "bug in Sluice" in finding.cause
    assert "Please report this bug" in finding.fix
    with (
        pytest.raises(ContractError, match="Please report this bug"),
        wrap_user_errors("examples()"),
    ):
        raise error
    training_failed = training_error(error)
    assert isinstance(training_failed, TrainingFailed)
    assert "Please report this bug" in training_failed.fix
    assert "Correct the named line" not in training_failed.fix


@pytest.mark.parametrize("name", USER_ERRORS)
def test_an_exception_caused_by_user_code_is_attributed_to_it(name):
    error = catch_error(USER_ERRORS[name])

    finding = outcome_from_error(error)
    assert finding.fault == "user code raised"
    assert "code of the workload or the model" in finding.response[0]
    assert "Correct the named line" in training_error(error).fix
