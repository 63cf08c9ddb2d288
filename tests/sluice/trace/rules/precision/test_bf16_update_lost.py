"""Updates of bfloat16 and float16 weights that are lost to rounding (TRACE-10)."""

import pytest
import torch
from torch import nn

from sluice.trace.rules.precision.bf16_update_lost import BF16_UPDATE_LOST
from tests.support.traced.small_programs import random_rows, train_step

FAULT = "updates lost to rounding"


def make_program(update, *, num_small=0, dtype=torch.bfloat16, num_steps=6):
    """Return a program whose steps add ``update`` to each weight, which starts at 1.

    The next larger bfloat16 number after 1 is 1 + 2**-7, so an update of less than 2**-8 is lost.

    Args:
        update: Update of each weight per step.
        num_small: Number of the 100 weights that start at 2**-6, so that they change.
        dtype: Type of the weights.
        num_steps: Number of steps.
    """

    def program():
        model = nn.Linear(10, 10, bias=False, dtype=dtype)
        with torch.no_grad():
            model.weight.fill_(1.0)
            model.weight.view(-1)[:num_small] = 2**-6
        optimizer = torch.optim.SGD(model.parameters(), lr=update)
        x = torch.ones(1, 10, dtype=dtype)
        for _ in range(num_steps):
            train_step(optimizer, -model(x).sum())  # every gradient is -1

    return program


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_updates_below_half_the_distance_to_the_next_number_are_reported(trace_of, dtype):
    update = 2**-9 if dtype == torch.bfloat16 else 2**-12

    (found,) = BF16_UPDATE_LOST(trace_of(make_program(update, dtype=dtype)))

    assert (found.fault, found.severity, found.step) == (FAULT, "error", 1)
    assert found.what.startswith("SGD: a step changes 0.0% of the 16-bit weights")
    assert f"maximum 0.0%; learning rate {update:.3g})" in found.what
    assert found.evidence["median_changed_share"] == 0


@pytest.mark.parametrize(
    ("num_small", "expected"),
    [(34, ["error"]), (36, ["confirm"]), (39, ["confirm"]), (40, [])],
)
def test_the_share_of_changed_weights_decides(trace_of, num_small, expected):
    found = BF16_UPDATE_LOST(trace_of(make_program(2**-9, num_small=num_small)))

    assert [f.severity for f in found] == expected
    assert [f.evidence["median_changed_share"] for f in found] == [
        pytest.approx(num_small / 100)
    ] * len(expected)


@pytest.mark.parametrize(("num_steps", "num_findings"), [(2, 0), (3, 1)])
def test_three_measured_steps_are_required(trace_of, num_steps, num_findings):
    found = BF16_UPDATE_LOST(trace_of(make_program(2**-9, num_steps=num_steps)))

    assert [f.evidence["num_measured"] for f in found] == [num_steps] * num_findings


@pytest.mark.parametrize(
    "program",
    [
        make_program(2**-7),
        make_program(0.0),
        make_program(2**-9, dtype=torch.float32),
    ],
    ids=["large updates", "learning rate 0", "float32"],
)
def test_correct_updates_are_not_reported(trace_of, program):
    assert BF16_UPDATE_LOST(trace_of(program)) == ()


def test_float32_weights_under_autocast_are_not_reported(trace_of):
    def program():
        model = nn.Linear(6, 6)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        for _ in range(6):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                output = model(random_rows(16))
            train_step(optimizer, output.float().square().mean())

    assert BF16_UPDATE_LOST(trace_of(program)) == ()
