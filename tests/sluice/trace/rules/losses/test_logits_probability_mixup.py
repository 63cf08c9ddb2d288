"""Custom losses that receive probabilities instead of logits (TRACE-14)."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sluice.trace.rules.library import judge
from tests.support.traced.small_programs import fault_severities, random_rows, train_step

# Number of outputs, function to probabilities, and loss that expects logits.
CUSTOM_LOSSES = {
    "classes": (3, lambda z: z.softmax(-1), lambda z, y: (z.logsumexp(-1) - z[:, y]).mean()),
    "label smoothing": (3, lambda z: z.softmax(-1), lambda z, _: -z.log_softmax(-1).mean()),
    "one score": (1, torch.sigmoid, lambda z, y: (F.softplus(z) - y * z).mean()),
    "stable": (1, torch.sigmoid, lambda z, y: (z.relu() - y * z + (-z.abs()).exp().log1p()).mean()),
}


@pytest.mark.parametrize("is_squashed", [True, False])
@pytest.mark.parametrize("form", CUSTOM_LOSSES)
def test_a_custom_loss_on_probabilities_is_reported(trace_of, form, is_squashed):
    outputs, squash, loss = CUSTOM_LOSSES[form]

    def program():
        model = nn.Linear(6, outputs)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(6):
            logits = model(random_rows(16))
            train_step(optimizer, loss(squash(logits) if is_squashed else logits, 1))

    assert (
        ("logits-probability mix-up", "error") in fault_severities(trace_of(program))
    ) is is_squashed


@pytest.mark.parametrize(
    ("squash", "removed"),
    [
        (torch.sigmoid, "Remove the sigmoid"),
        (lambda z: z.clamp(0, 1), "Remove the operation that limits the values to [0, 1]"),
    ],
    ids=["sigmoid", "clamp"],
)
def test_the_fix_names_the_function_to_remove_only_if_it_is_known(trace_of, squash, removed):
    def program():
        model = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(6):
            scores = squash(model(random_rows(16)))
            train_step(optimizer, F.binary_cross_entropy_with_logits(scores, torch.ones(16, 1)))

    (found,) = [f for f in judge(trace_of(program)) if f.fault == "logits-probability mix-up"]

    assert found.fix.startswith(removed)


def test_the_cause_for_values_that_binary_cross_entropy_rejects_names_the_error(trace_of):
    def program():
        model = nn.Linear(6, 1)
        with pytest.raises(RuntimeError, match="between 0 and 1"):
            F.binary_cross_entropy(10 * model(random_rows(16)), torch.ones(16, 1))

    (finding,) = [f for f in judge(trace_of(program)) if f.fault == "logits-probability mix-up"]

    assert "raises an error" in finding.cause
    assert "value of the loss" not in finding.cause
