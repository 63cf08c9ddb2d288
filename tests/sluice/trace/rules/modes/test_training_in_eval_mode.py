"""Networks that are trained in evaluation mode (TRACE-16)."""

import contextlib
import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.support.traced.small_programs import (
    classifier,
    found_faults,
    labeled_batches,
    labeled_rows,
    random_rows,
    root_causes,
    root_faults,
    train_on_batches,
    train_step,
)


@pytest.mark.parametrize("is_cleared", [True, False])
def test_gradients_that_are_cleared_in_evaluation_mode_are_not_training(trace_of, is_cleared):
    def program():
        model, x, y = classifier(), random_rows(64), torch.arange(64) % 3
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for phase in range(3):
            for _ in range(4):
                loss = F.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            model.eval()
            for row in range(6):  # the Fisher information, as in elastic weight consolidation
                model.zero_grad()
                F.cross_entropy(model(x[row : row + 1]), y[row : row + 1]).backward()
            if is_cleared:
                model.zero_grad()
                model.train()
            elif phase < 2:
                optimizer.step()

    found = {fault for fault, _, _ in root_causes(trace_of(program))}

    assert ("training in evaluation mode" in found) is not is_cleared


@pytest.mark.parametrize("kind", ["copied", "switched", "trained"])
def test_training_a_copy_of_a_network_in_evaluation_mode_is_reported(trace_of, kind):
    def program():
        teacher, x, y = classifier(), random_rows(64), torch.arange(64) % 3
        teacher(x)
        teacher.eval()
        student = copy.deepcopy(teacher)
        if kind == "switched":
            student(x)
            student.eval()
        elif kind == "trained":
            student.train()
        optimizer = torch.optim.SGD(student.parameters(), lr=0.01)
        for _ in range(10):
            optimizer.zero_grad()
            F.cross_entropy(student(x), y).backward()
            optimizer.step()

    severities = {
        s
        for fault, s, _ in root_causes(trace_of(program))
        if fault == "training in evaluation mode"
    }

    assert severities == {"copied": {"error"}, "switched": {"confirm"}, "trained": set()}[kind]


FIRST_PHASE_STEPS = 80


@pytest.mark.usefixtures("early_fast_path")
@pytest.mark.parametrize("sets_eval_mode", [True, False])
def test_evaluation_mode_while_a_part_is_tuned_is_intentional(trace_of, sets_eval_mode):
    def program():
        model, batch = (
            nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Linear(16, 3)),
            labeled_batches(),
        )
        train_on_batches(
            model, torch.optim.Adam(model.parameters(), lr=1e-3), batch, FIRST_PHASE_STEPS
        )
        model[0].requires_grad_(False)
        optimizer = torch.optim.Adam(model[2].parameters(), lr=1e-3)
        for _ in range(4):
            if sets_eval_mode:
                model.eval()
            train_on_batches(model, optimizer, batch, 20)
            model.eval()
            with torch.no_grad():
                F.cross_entropy(model(batch()[0]), batch()[1])

    assert ("training in evaluation mode" in root_faults(trace_of(program))) == (not sets_eval_mode)


@contextlib.contextmanager
def evaluation_mode(model, *, reads_mode_first):
    previous_mode = model.training
    model.eval()
    if not reads_mode_first:
        previous_mode = model.training
    try:
        yield
    finally:
        model.train(previous_mode)


@pytest.mark.parametrize(
    ("kind", "severity"),
    [("restored to eval", "error"), ("restored", None), ("intentional", "confirm")],
)
def test_a_mode_read_after_it_was_switched_is_reported(trace_of, kind, severity):
    def program():
        model, x = classifier(), random_rows(64)
        y = (x[:, 0] > 0).long()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(3):
            if kind == "intentional":
                model.eval()
                with torch.no_grad():
                    model(x)
                model.eval()  # explicit again: statistics and dropout stay fixed
            else:
                with evaluation_mode(model, reads_mode_first=kind == "restored"), torch.no_grad():
                    model(x)
            for _ in range(4 + epoch):
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()

    found = {(f, s) for f, s, _ in root_causes(trace_of(program))}

    assert found == ({("training in evaluation mode", severity)} if severity else set())


@pytest.mark.parametrize("stays_in_eval", [False, True])
def test_an_evaluation_with_gradients_is_not_training(trace_of, stays_in_eval):
    def program():
        x, y = labeled_rows(160)
        model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 3))
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(4):
            if not stays_in_eval:
                model.train()
            for indices in torch.arange(128).split(32):
                train_step(optimizer, F.cross_entropy(model(x[indices]), y[indices]))
            model.eval()
            model(x[128:]).argmax(1)

    assert (
        ("training in evaluation mode", "error") in found_faults(trace_of(program))
    ) is stays_in_eval
