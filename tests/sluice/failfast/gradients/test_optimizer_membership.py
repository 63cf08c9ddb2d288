"""POC-2: membership in any torch optimizer, decided by identity."""

import pytest
import torch
from torch import nn

from sluice.failfast.gradients.optimizer_membership import judge_membership, validate_optimizer


def network():
    return nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop])
def test_a_complete_optimizer_has_every_parameter_once(kind):
    model = network()
    report = validate_optimizer(model.named_parameters(), kind(model.parameters(), lr=0.1))

    assert report.is_complete
    assert (report.num_trained, report.num_foreign) == (4, 0)
    assert judge_membership(report) is None


def test_a_head_replaced_after_the_optimizer_was_made_is_absent():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model[1] = nn.Linear(3, 1)
    report = validate_optimizer(model.named_parameters(), optimizer)

    assert report.absent == ("1.weight", "1.bias")
    assert (report.num_trained, report.num_foreign) == (2, 2)
    assert "contain 2 parameters outside the network" in judge_membership(report).summary


def test_one_foreign_parameter_is_counted_in_the_singular():
    model = network()
    groups = [{"params": [*model[0].parameters(), nn.Parameter(torch.zeros(1))]}]

    report = validate_optimizer(model.named_parameters(), groups)

    assert "contain 1 parameter outside the network" in judge_membership(report).summary


def test_equal_values_are_not_the_same_parameter():
    model, twin = network(), network()
    twin.load_state_dict(model.state_dict())

    assert (
        len(validate_optimizer(model.named_parameters(), [{"params": twin.parameters()}]).absent)
        == 4
    )


def test_frozen_parameters_need_no_group():
    model = network()
    model[0].requires_grad_(False)

    assert validate_optimizer(
        model.named_parameters(), [{"params": model[1].parameters()}]
    ).is_complete
    everything = validate_optimizer(model.named_parameters(), [{"params": model.parameters()}])
    assert everything.is_complete
    assert everything.frozen == ("0.weight", "0.bias")


def test_a_tied_parameter_counts_once():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    named = model.named_parameters(remove_duplicate=False)

    assert validate_optimizer(named, [{"params": model.parameters()}]).is_complete


def test_a_parameter_given_twice_is_named():
    model = network()
    groups = [{"params": list(model.named_parameters())}, {"params": model[1].bias}]
    report = validate_optimizer(model.named_parameters(), groups)

    assert report.repeated == ("1.bias",)
    assert not report.is_complete


def test_long_lists_of_names_are_cut():
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(9)))
    finding = judge_membership(validate_optimizer(model.named_parameters(), []))

    assert "3.bias and 10 more" in finding.summary


def test_repeated_frozen_parameters_do_not_count_as_trainable():
    model = network()
    model[0].weight.requires_grad_(False)
    groups = [{"params": [model[0].weight, model[0].bias]}, {"params": [model[0].weight]}]

    finding = judge_membership(validate_optimizer(model.named_parameters(), groups))

    assert finding.summary.startswith("2 of 3 trainable parameters are in no parameter group")
