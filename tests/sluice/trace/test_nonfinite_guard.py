"""The guard that stops programs or skips steps after non-finite losses (TRACE-8, TRACE-9)."""

import math
import subprocess
import sys
from itertools import pairwise

import pytest
import torch
from torch import nn

from sluice.trace.attach import traced
from sluice.trace.nonfinite_guard import (
    LAST_GOOD_FILE,
    STOPPED_EXIT_CODE,
    NonFiniteGuard,
    bundle_name,
)
from sluice.trace.prediction import step_patterns
from sluice.trace.report.conclusion import conclude
from sluice.trace.settings import TraceSettings
from sluice.trace.trace_reader import read_trace

STEPS = 60


def train(bad_steps):
    """Fit a small network; some batches contain a NaN."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(1, STEPS + 1):
        x = torch.randn(16, 6)
        y = x[:, :1].clone()
        if step in bad_steps:
            x[2, 3] = math.nan
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return model


def traced_train(tmp_path, bad_steps, **settings):
    with traced(tmp_path / "traces", TraceSettings(**settings)) as folder:
        try:
            return folder, train(bad_steps)
        except SystemExit as error:
            return folder, error


@pytest.fixture
def copy_steps(monkeypatch):
    """Return the list of the steps at which all states are copied."""
    steps, copy_states = [], NonFiniteGuard._copy_states

    def record_step(guard):
        steps.append(guard._tracer.steps.last_step)
        return copy_states(guard)

    monkeypatch.setattr(NonFiniteGuard, "_copy_states", record_step)
    return steps


def test_three_consecutive_nonfinite_losses_stop_the_program_with_its_last_good_state(tmp_path):
    folder, result = traced_train(tmp_path, range(21, 61), stop_after=3, checkpoint_every=5)

    assert result.code == STOPPED_EXIT_CODE == 75
    last_good = torch.load(folder / LAST_GOOD_FILE, weights_only=True)
    assert 15 <= last_good["step"] <= 20
    weights = [w for state in last_good["networks"].values() for w in state.values()]
    assert len(weights) == 4
    assert all(w.isfinite().all() for w in weights)
    # The last one, because an optimizer of another test may still exist.
    assert last_good["optimizers"][-1]["state"][0]["step"] == last_good["step"]
    trace = read_trace(folder)
    (note,) = [n for n in trace.notes if n.kind == "stopped"]
    assert "3 consecutive losses" in note.text
    assert trace.num_steps == 22  # the program stops before the step of the third one
    conclusion = conclude(trace)
    assert conclusion.ending == "failed"
    assert "stopped the program after 22 steps, because of non-finite losses" in conclusion.what


def test_the_stop_message_names_the_saved_state_or_states_that_saving_failed(
    tmp_path, monkeypatch, capsys
):
    traced_train(tmp_path, range(3, 61), stop_after=1)
    text = "Stopped before step 3: the loss is non-finite; the last good state, of step 1,"
    assert f"{text} is saved in {LAST_GOOD_FILE}." in capsys.readouterr().err

    def fail(*_):
        raise OSError("refused")

    monkeypatch.setattr(NonFiniteGuard, "_save_bundle", lambda *_: None)
    monkeypatch.setattr(NonFiniteGuard, "_save", fail)
    _, result = traced_train(tmp_path, range(3, 61), stop_after=1)
    assert f"{text} could not be saved." in capsys.readouterr().err
    assert result.code == STOPPED_EXIT_CODE


def test_an_early_failure_loses_at_most_half_of_the_steps(tmp_path, copy_steps):
    folder, _ = traced_train(tmp_path, range(52, 61), stop_after=3)

    last_good = torch.load(folder / LAST_GOOD_FILE, weights_only=True)
    assert 51 // 2 <= last_good["step"] == copy_steps[-2]  # the last copy is that of the bundle
    assert len(copy_steps) == 8  # at 0, 1, 2, 4, 8, 16, 32, and for the bundle


def test_copies_are_at_most_the_configured_interval_apart(tmp_path, copy_steps):
    traced_train(tmp_path, (), stop_after=3, checkpoint_every=10)

    assert max(next_step - step for step, next_step in pairwise(copy_steps)) <= 12
    assert len(copy_steps) == 10  # at 0, 1, 2, 4, 8, 16, 26 and so on


def test_repeated_steps_are_checked_one_by_one(tmp_path, monkeypatch):
    monkeypatch.setattr(step_patterns, "_MIN_REPEATS", 4)
    folder, _ = traced_train(tmp_path, range(45, 61), stop_after=3, checkpoint_every=1)

    # The state of step 44 is copied only after its next finite loss.
    assert torch.load(folder / LAST_GOOD_FILE, weights_only=True)["step"] == 43
    assert read_trace(folder).num_steps == 46


def test_a_loss_that_overflows_only_when_scaled_does_not_stop_the_program(tmp_path):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126)
    with traced(tmp_path, TraceSettings(stop_after=3)) as folder:
        for _ in range(12):
            optimizer.zero_grad()
            loss = (model(torch.ones(4, 3)) - 10).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)  # skips the first steps
            scaler.update()  # halves the scale after each of them

    assert scaler.get_scale() <= 2.0**123
    assert not [note for note in read_trace(folder).notes if note.kind == "stopped"]


def test_the_first_nonfinite_step_can_be_reproduced_from_its_bundle(tmp_path):
    folder, _ = traced_train(tmp_path, {30, 31, 32}, stop_after=3)
    bundle = torch.load(folder / bundle_name(30), weights_only=True)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
    model.load_state_dict(bundle["networks"]["Sequential"])
    (x,) = bundle["inputs"]

    assert (bundle["step"], bundle["loss function"]) == (30, "mse_loss")
    assert x[2, 3].isnan()
    assert x.isnan().sum() == 1
    assert nn.functional.mse_loss(model(x), bundle["target"]).isnan()
    finite_input = x.nan_to_num()
    assert nn.functional.mse_loss(model(finite_input), bundle["target"]).isfinite()


def test_a_finite_loss_resets_the_count(tmp_path):
    folder, result = traced_train(tmp_path, {10, 11}, stop_after=3, skip_nonfinite=True)

    assert isinstance(result, nn.Module)
    assert not (folder / LAST_GOOD_FILE).exists()


def test_nonfinite_steps_are_skipped_and_counted(tmp_path):
    folder, model = traced_train(tmp_path, {10, 25, 40}, skip_nonfinite=True)
    texts = [n.text for n in read_trace(folder).notes if n.kind == "skipped"]

    assert all(p.isfinite().all() for p in model.parameters())
    assert texts == ["Steps skipped so far: 1.", "Steps skipped so far: 2."]
    assert not all(p.isfinite().all() for p in train({10}).parameters())


def test_the_guard_is_off_by_default(tmp_path):
    folder, model = traced_train(tmp_path, {50})

    assert not list(folder.glob("*.pt"))
    assert not any(p.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("settings", [{"stop_after": 3}, {"skip_nonfinite": True}])
def test_a_healthy_program_computes_the_same_weights_with_the_guard(tmp_path, settings):
    _, guarded = traced_train(tmp_path, (), **settings)

    for guarded_weights, unguarded_weights in zip(
        guarded.parameters(), train(()).parameters(), strict=True
    ):
        assert torch.equal(guarded_weights, unguarded_weights)


@pytest.mark.slow
def test_a_stopped_program_has_its_own_exit_code(tmp_path):
    program = tmp_path / "fit.py"
    program.write_text(
        "import torch\n"
        "w = torch.nn.Linear(2, 1)\n"
        "o = torch.optim.SGD(w.parameters(), lr=0.1)\n"
        "for step in range(50):\n"
        "    x = torch.ones(4, 2) * (float('inf') if step > 9 else 1.0)\n"
        "    o.zero_grad(); (w(x) ** 2).mean().backward(); o.step()\n"
        "print('not reached')\n"
    )
    options = ["--out", str(tmp_path / "t"), "--stop-after", "3"]
    result = subprocess.run(
        [sys.executable, "-m", "sluice.trace", *options, "--", sys.executable, str(program)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == STOPPED_EXIT_CODE
    assert result.stdout == ""
    assert "3 consecutive losses are non-finite" in result.stderr
    assert len(list((tmp_path / "t").glob(f"*/{LAST_GOOD_FILE}"))) == 1


def test_the_step_after_one_that_a_gradient_scaler_skipped_is_not_skipped(tmp_path):
    model, weights = nn.Linear(3, 1), []
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    with traced(tmp_path, TraceSettings(skip_nonfinite=True)):
        for value in (1.0, math.nan, 1.0):
            optimizer.zero_grad()
            loss = (model(torch.full((4, 3), value)) - 10).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            weights.append(model.weight.detach().clone())

    assert torch.equal(weights[0], weights[1])  # the scaler skipped the second step
    assert not torch.equal(weights[1], weights[2])


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("cleared", ["optimizer", "model"])
def test_the_step_after_one_that_the_program_left_out_is_not_skipped(
    cleared, set_to_none, tmp_path
):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    owner = {"optimizer": optimizer, "model": model}[cleared]
    with traced(tmp_path, TraceSettings(skip_nonfinite=True)) as folder:
        for value in (1.0, math.nan, 1.0):
            owner.zero_grad(set_to_none=set_to_none)
            loss = (model(torch.full((4, 3), value)) - 10).square().mean()
            loss.backward()
            before = model.weight.detach().clone()
            if loss.isfinite():
                optimizer.step()

    assert not torch.equal(before, model.weight)
    assert not any(note.kind == "skipped" for note in read_trace(folder).notes)


def test_a_step_on_accumulated_gradients_of_a_nonfinite_loss_is_skipped(tmp_path):
    """Gradients of another model that are cleared in between do not change this."""
    model, other = nn.Linear(3, 1), nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    other_optimizer = torch.optim.SGD(other.parameters(), lr=1e-3)
    before = model.weight.detach().clone()
    with traced(tmp_path, TraceSettings(skip_nonfinite=True)):
        for value in (math.nan, 1.0):
            (model(torch.full((4, 3), value)) - 10).square().mean().backward()
            other_optimizer.zero_grad()
            other.zero_grad()
        optimizer.step()

    assert torch.equal(before, model.weight)
