"""Best checkpoints that are not updated (TRACE-16)."""

import copy
import tempfile

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sluice.trace.rules.library import judge
from tests.support.traced.small_programs import (
    fault_severities,
    found_faults,
    labeled_rows,
    random_rows,
    train_step,
)


@pytest.mark.parametrize("key", ["score", "skore"])
def test_restoring_the_state_of_the_first_evaluation_is_reported(trace_of, key):
    def program():
        torch.manual_seed(2)
        model = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        x, validation = random_rows(64), random_rows(64, seed=2)
        best, best_state = -1e9, None
        for _ in range(8):
            for rows in torch.arange(64).chunk(4):
                train_step(optimizer, F.mse_loss(model(x[rows])[:, 0], x[rows].sum(1)))
            with torch.no_grad():
                metrics = {"score": -F.mse_loss(model(validation)[:, 0], validation.sum(1)).item()}
            last = copy.deepcopy(model.state_dict())
            if metrics.get(key, 0.0) > best:
                best, best_state = metrics.get(key, 0.0), last
        model.load_state_dict(best_state)

    found = fault_severities(trace_of(program))

    assert found == (set() if key == "score" else {("stale best checkpoint", "error")})


@pytest.mark.parametrize("evaluates", [True, False])
def test_evaluating_the_initial_weights_at_the_end_is_reported(trace_of, evaluates):
    def program():
        torch.manual_seed(2)
        model = nn.Linear(6, 1)
        first = copy.deepcopy(model.state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        x, validation = random_rows(64), random_rows(64, seed=2)

        def evaluate():
            with torch.no_grad():
                F.mse_loss(model(validation)[:, 0], validation.sum(1))

        for _ in range(8):
            for rows in torch.arange(64).chunk(4):
                train_step(optimizer, F.mse_loss(model(x[rows])[:, 0], x[rows].sum(1)))
            evaluate()
        model.load_state_dict(first)  # to start another run without an evaluation
        if evaluates:
            evaluate()

    found = fault_severities(trace_of(program))

    assert found == ({("stale best checkpoint", "error")} if evaluates else set())


@pytest.mark.parametrize("is_copied", [True, False])
def test_best_weights_kept_without_a_copy_are_reported(trace_of, is_copied):
    def program():
        model, x = nn.Linear(6, 1), random_rows(16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for number in range(6):
            train_step(optimizer, F.mse_loss(model(x)[:, 0], x.sum(1)))
            if number == 2:
                best_state = model.state_dict()
                best_state = copy.deepcopy(best_state) if is_copied else best_state
        model.load_state_dict(best_state)

    assert (
        ("stale best checkpoint", "error") in fault_severities(trace_of(program))
    ) is not is_copied


def test_a_copy_that_starts_a_second_phase_is_not_a_best_checkpoint(trace_of):
    def program():
        x = random_rows(64)
        y = x.sum(1, keepdim=True)
        first, second = nn.Linear(6, 1), nn.Linear(6, 1)
        for model in (first, second):
            if model is second:
                model.load_state_dict(copy.deepcopy(first.state_dict()))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            for number in range(60):
                if number % 10 == 0:
                    with torch.no_grad():
                        F.mse_loss(model(x), y)
                train_step(optimizer, F.mse_loss(model(x), y))

    assert "stale best checkpoint" not in {
        fault for fault, _ in fault_severities(trace_of(program))
    }


@pytest.mark.parametrize(
    ("scores", "is_reported"),
    [
        ([0.5, 0.4, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98], True),  # lower once: kept to the end
        ([0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], False),  # constant at its best
    ],
    ids=["lowest", "highest"],
)
def test_keeping_the_lowest_score_twice_is_reported(trace_of, tmp_path, scores, is_reported):
    """The second state is the saved one in both cases; the loss at that step distinguishes them."""

    def program():
        model, x = nn.Linear(3, 3, bias=False), torch.eye(3)
        with torch.no_grad():
            model.weight.zero_()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        best_score = None
        for epoch, score in enumerate(scores):
            for _ in range(1 if epoch < 2 and is_reported else 12):
                optimizer.zero_grad()
                F.cross_entropy(model(x), torch.arange(3)).backward()
                optimizer.step()
            with torch.no_grad():
                F.cross_entropy(model(x), torch.arange(3))
            if best_score is None or (score < best_score if is_reported else score > best_score):
                best_score = score
                torch.save(model.state_dict(), tmp_path / "best.pt")
        model.load_state_dict(torch.load(tmp_path / "best.pt"))

    stale = [f for f in judge(trace_of(program)) if f.fault == "stale best checkpoint"]

    assert [f.severity for f in stale] == ["error"] * is_reported
    assert all("was written at the first two of 8 evaluations" in f.what for f in stale)


@pytest.mark.parametrize("is_stale", [False, True])
def test_a_stale_checkpoint_with_random_file_names_is_reported(trace_of, tmp_path, is_stale):
    def program():
        x, y = labeled_rows(256)
        model = nn.Linear(8, 3)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        best = 1e9
        for epoch in range(8):
            for indices in torch.arange(192).split(16):
                train_step(optimizer, F.cross_entropy(model(x[indices]), y[indices]))
            with torch.no_grad():
                loss = float(F.cross_entropy(model(x[192:]), y[192:]))
            if loss < best and not (is_stale and epoch):
                best = loss
                with tempfile.NamedTemporaryFile(dir=tmp_path, delete=False) as file:
                    torch.save(model.state_dict(), file.name)

    assert (
        "stale best checkpoint" in {fault for fault, _ in found_faults(trace_of(program))}
    ) is is_stale
