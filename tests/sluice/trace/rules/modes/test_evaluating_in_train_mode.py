"""Networks that are evaluated in training mode (TRACE-16)."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from sluice.trace.rules.modes.evaluating_in_train_mode import EVALUATING_IN_TRAIN_MODE
from tests.support.traced.small_programs import labeled_rows, train_step

EPOCHS = 3


def network(*sensitive_layers):
    return nn.Sequential(nn.Linear(8, 4), *sensitive_layers, nn.Linear(4, 3))


def make_program(evaluate, layer=nn.Dropout):
    """Return a program of three epochs with three steps, each followed by an evaluation."""

    def program():
        model = network(*([layer()] if layer is nn.Dropout else [layer(4)]))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        train = DataLoader(TensorDataset(*labeled_rows(48)), batch_size=16)
        held_out = DataLoader(TensorDataset(*labeled_rows(32, seed=1)), batch_size=16)
        for _ in range(EPOCHS):
            for x, y in train:
                train_step(optimizer, F.cross_entropy(model(x), y))
            evaluate(model, train, held_out)

    return program


@torch.no_grad()
def evaluate(model, _, held_out):
    for x, _ in held_out:
        model(x)


@pytest.mark.parametrize("layer", [nn.Dropout, nn.BatchNorm1d])
def test_evaluations_in_training_mode_need_confirmation(trace_of, layer):
    (found,) = EVALUATING_IN_TRAIN_MODE(trace_of(make_program(evaluate, layer)))

    # The first evaluation follows step 3, so step 4 is the first step after it.
    assert (found.fault, found.severity) == ("evaluation in training mode", "confirm")
    assert found.step == 4
    assert found.what.startswith(f"Sequential was evaluated {EPOCHS} times without gradients")
    assert found.evidence == {"num_evaluations_in_train_mode": EPOCHS}


@torch.no_grad()
def evaluate_in_eval_mode(model, _, held_out):
    model.eval()
    for x, _ in held_out:
        model(x)
    model.train()


def evaluate_with_and_without_dropout(model, train, held_out):
    evaluate(model, train, held_out)
    evaluate_in_eval_mode(model, train, held_out)


def evaluate_with_frozen_layer(model, train, held_out):
    model[1].eval()
    evaluate(model, train, held_out)
    model[1].train()


def measure_training_accuracy(model, train, _):
    evaluate(model, None, train)


def evaluate_with_gradients(model, _, held_out):
    """The loss on held-out rows with respect to the inputs, as for adversarial examples."""
    for x, y in held_out:
        F.cross_entropy(model(x.requires_grad_()), y).backward()
    model.zero_grad()


@pytest.mark.parametrize(
    "evaluate",
    [
        evaluate_in_eval_mode,
        evaluate_with_and_without_dropout,
        evaluate_with_frozen_layer,
        measure_training_accuracy,
        evaluate_with_gradients,
    ],
    ids=lambda evaluate: evaluate.__name__,
)
def test_similar_but_correct_evaluations_are_not_reported(trace_of, evaluate):
    assert EVALUATING_IN_TRAIN_MODE(trace_of(make_program(evaluate))) == ()


def test_a_first_forward_pass_without_a_loader_is_not_an_evaluation(trace_of):
    """Programs call a network once to print the shape of its output, for example."""

    def program():
        model, rows = network(nn.Dropout()), TensorDataset(*labeled_rows(48))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with torch.no_grad():
            model(torch.zeros(2, 8))
        for x, y in DataLoader(rows, batch_size=16):
            train_step(optimizer, F.cross_entropy(model(x), y))

    assert EVALUATING_IN_TRAIN_MODE(trace_of(program)) == ()


def test_a_network_without_dropout_and_batch_norm_needs_no_evaluation_mode(trace_of):
    assert EVALUATING_IN_TRAIN_MODE(trace_of(make_program(evaluate, nn.LayerNorm))) == ()
