"""Indices outside their table, and incorrectly numbered classes (TRACE-2)."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sluice.trace.rules.library import judge
from tests.support.traced.small_programs import (
    classifier,
    fault_severities,
    random_rows,
    train_step,
)


@pytest.mark.parametrize(("ids", "is_wrong"), [((-1, 3), True), ((-1, 2), False), ((0, 3), False)])
def test_a_negative_id_that_shares_a_row_is_reported(trace_of, ids, is_wrong):
    def program():
        table, out = nn.Parameter(torch.randn(4, 5)), nn.Linear(5, 1)
        optimizer = torch.optim.SGD([table, *out.parameters()], lr=0.01)
        codes = torch.tensor(ids).repeat(8)
        for _ in range(6):
            train_step(optimizer, F.mse_loss(out(table[codes])[:, 0], codes.float()))

    assert (("index out of range", "error") in fault_severities(trace_of(program))) is is_wrong


@pytest.mark.parametrize(
    ("dropped", "evaluates", "uses_mixup", "severity"),
    [
        (1, True, False, "error"),
        (1, True, True, "error"),
        (1, False, False, "confirm"),
        (0, True, False, None),
        (0, True, True, None),
    ],
)
def test_one_hot_targets_without_a_column_for_a_class_are_reported(
    trace_of, dropped, evaluates, uses_mixup, severity
):
    def program():
        model, x = nn.Linear(6, 4 - dropped), random_rows(64)
        y = F.one_hot(x[:, :4].argmax(1), 4).float()[:, dropped:]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(12):
            train_step(
                optimizer,
                F.cross_entropy(model(x), 0.7 * y + 0.3 * y.roll(1, 0) if uses_mixup else y),
            )
            if evaluates:
                with torch.no_grad():
                    F.cross_entropy(model(x), y)

    found = [s for fault, s in fault_severities(trace_of(program)) if fault == "index out of range"]
    assert found == ([severity] if severity else [])


def test_class_indices_before_one_hot_targets_do_not_hide_a_missing_column(trace_of):
    def program():
        model, x = nn.Linear(6, 3), random_rows(64)
        classes = x[:, :4].argmax(1)
        y = F.one_hot(classes, 4).float()[:, 1:]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(6):
            train_step(optimizer, F.cross_entropy(model(x), y))
            with torch.no_grad():
                F.cross_entropy(model(x), classes.clamp(max=2))
                F.cross_entropy(model(x), y)

    (finding,) = (f for f in judge(trace_of(program)) if f.fault == "index out of range")

    assert finding.severity == "error"
    assert "have no 1 in any of the 3 columns" in finding.what


@pytest.mark.parametrize(
    ("offset", "num_rows", "is_reported"), [(-1, 64, True), (0, 64, False), (-1, 8, False)]
)
def test_classes_numbered_from_minus_one_in_a_custom_loss_are_reported(
    trace_of, offset, num_rows, is_reported
):
    def program():
        model = nn.Linear(6, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, rows = random_rows(num_rows), torch.arange(num_rows)
        for _ in range(4):
            log_p = model(x).log_softmax(1)
            train_step(optimizer, -log_p[rows, rows % 4 + offset].mean())

    assert fault_severities(trace_of(program)) == (
        {("index out of range", "error")} if is_reported else set()
    )


def test_a_masked_class_of_minus_one_is_not_reported(trace_of):
    def program():
        model = nn.Linear(6, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, rows = random_rows(64), torch.arange(64)
        y = rows % 5 - 1
        for _ in range(4):
            log_p = model(x).log_softmax(1)
            train_step(optimizer, -(log_p[rows, y] * (y >= 0)).sum() / (y >= 0).sum())

    assert fault_severities(trace_of(program)) == set()


@pytest.mark.parametrize(
    "kind", ["from one", "from minus one", "from zero", "background", "unused first class"]
)
def test_shifted_one_hot_classes_are_reported(trace_of, kind):
    offset = {"from one": 1, "from minus one": -1}.get(kind, 0)

    def program():
        model, x = classifier(outputs=5), random_rows(320)
        classes = x[:, :5].argmax(1)
        if kind == "background":  # rows of no class have no 1, and all classes occur
            classes[::4] = -1
        if kind == "unused first class":
            classes = classes.clamp(min=1)
        target = ((classes + offset)[:, None] == torch.arange(5)).float()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(4):
            for rows in torch.arange(320).split(40):
                optimizer.zero_grad()
                F.binary_cross_entropy_with_logits(model(x[rows]), target[rows]).backward()
                optimizer.step()

    found = [f for f in judge(trace_of(program)) if f.fault == "index out of range"]

    if offset:
        assert [(f.severity, f.step) for f in found] == [("error", 1)]
        assert f"column {0 if offset == 1 else 4} of one-hot targets is never 1" in found[0].what
    else:
        assert not found


def test_the_cause_for_targets_that_binary_cross_entropy_rejects_names_the_error(trace_of):
    def program():
        model = nn.Linear(6, 1)
        with pytest.raises(RuntimeError, match="between 0 and 1"):
            F.binary_cross_entropy(model(random_rows(16)).sigmoid(), torch.full((16, 1), 2.0))

    (finding,) = [f for f in judge(trace_of(program)) if f.fault == "index out of range"]

    assert "raise an error" in finding.cause
    assert "no lower bound" not in finding.cause
