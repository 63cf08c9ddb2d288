"""Attribution of exceptions to user code or to Sluice."""

import pytest
import torch
from torch import nn

from sluice.base.errors import ContractError, TrainingFailed
from sluice.failfast.learning.example_sampling import sample_evenly
from sluice.findings.user_code import outcome_from_error, training_error, wrap_user_errors
from sluice.training.loop import mean_loss, predict
from tests.support.synthetic import SineWorkload


def caught(call):
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def in_sluice():
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


class _Rows:
    x = y = torch.zeros(4, 2)


ROWS = torch.randn(4, 2, generator=torch.Generator().manual_seed(0))
USERS = {
    "in the user's line": lambda: predict(NoTensor(), ROWS),
    "in torch, called by no line of the user's": lambda: predict(nn.Embedding(3, 2), ROWS),
    "a function with other parameters": lambda: mean_loss(
        nn.Identity(), OneArgument().losses, _Rows()
    ),
    "in the backward pass": lambda: InPlace()(ROWS).sum().backward(),
}


def test_exception_raised_by_sluice_is_a_bug_in_sluice():
    error = caught(in_sluice)

    finding = outcome_from_error(error)
    assert finding.fault == "bug in Sluice"
    assert "failfast/learning/example_sampling.py" in finding.summary
    assert "bug in Sluice" in finding.cause
    assert "Please report it" in finding.fix
    with pytest.raises(ContractError, match="Please report it"), wrap_user_errors("examples()"):
        raise error
    ended = training_error(error)
    assert isinstance(ended, TrainingFailed)
    assert "Please report it" in ended.fix
    assert "Correct the named line" not in ended.fix


@pytest.mark.parametrize("name", USERS)
def test_an_exception_that_the_users_code_causes_is_the_users(name):
    error = caught(USERS[name])

    finding = outcome_from_error(error)
    assert finding.fault == "user code raised"
    assert "code of the workload or the model" in finding.response[0]
    assert "Correct the named line" in training_error(error).fix
