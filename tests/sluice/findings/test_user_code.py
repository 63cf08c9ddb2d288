"""Whose defect an exception is: the user's, or Sluice's own."""

import pytest
import torch
from torch import nn

from sluice.base.errors import ContractError, TrainingFailed
from sluice.failfast.learning.probe import spread
from sluice.findings.user_code import finding_from, training_error, users_code
from sluice.training.loop import mean_loss, predict
from tests.support.synthetic import SineWorkload


def caught(call):
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def in_sluice():
    spread(None, 3)


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


def test_an_exception_of_sluices_own_line_is_a_defect_of_sluice():
    error = caught(in_sluice)

    finding = finding_from(error)
    assert finding.kind == "defect of Sluice"
    assert "failfast/learning/probe.py" in finding.summary
    assert "defect of Sluice" in finding.cause
    assert "Please report it" in finding.fix
    with pytest.raises(ContractError, match="Please report it"), users_code("examples()"):
        raise error
    ended = training_error(error)
    assert isinstance(ended, TrainingFailed)
    assert "Please report it" in ended.fix
    assert "Correct the named line" not in ended.fix


@pytest.mark.parametrize("name", USERS)
def test_an_exception_that_the_users_code_causes_is_the_users(name):
    error = caught(USERS[name])

    finding = finding_from(error)
    assert finding.kind == "code raised"
    assert "workload's or the model's own code" in finding.response[0]
    assert "Correct the named line" in training_error(error).fix
