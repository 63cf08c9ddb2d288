"""The guard against non-finite losses (TRACE-8, TRACE-9)."""

import math
import subprocess
import sys
from itertools import pairwise

import pytest
import torch
from torch import nn

from sluice.trace.attach import traced
from sluice.trace.nonfinite_guard import LAST_GOOD, STOPPED_EXIT_CODE, NonFiniteGuard, bundle_name
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
        except SystemExit as stop:
            return folder, stop


@pytest.fixture
def copied(monkeypatch):
    """Return the list of the steps at which all states are copied."""
    steps, states = [], NonFiniteGuard._copy_states

    def counted(guard):
        steps.append(guard._sink.steps.last)
        return states(guard)

    monkeypatch.setattr(NonFiniteGuard, "_copy_states", counted)
    return steps


def test_three_consecutive_nonfinite_losses_stop_the_program_with_its_last_good_state(tmp_path):
    folder, stop = traced_train(tmp_path, range(21, 61), stop_after=3, checkpoint_every=5)

    assert stop.code == STOPPED_EXIT_CODE == 75
    good = torch.load(folder / LAST_GOOD, weights_only=True)
    assert 15 <= good["step"] <= 20
    weights = [w for state in good["networks"].values() for w in state.values()]
    assert len(weights) == 4
    assert all(w.isfinite().all() for w in weights)
    # The last one, because an optimizer of another test may still exist.
    assert good["optimizers"][-1]["state"][0]["step"] == good["step"]
    trace = read_trace(folder)
    (note,) = [n for n in trace.notes if n.kind == "stopped"]
    assert "3 consecutive losses" in note.text
    assert trace.num_steps == 22  # the program stops before the step of the third one
    conclusion = conclude(trace)
    assert conclusion.ending == "failed"
    assert "stopped the program after 22 steps, because of non-finite losses" in conclusion.what


def test_the_message_of_a_stop_is_grammatical_and_names_a_state_only_if_it_was_saved(
    tmp_path, monkeypatch, capsys
):
    traced_train(tmp_path, range(3, 61), stop_after=1)
    text = "Stopped before step 3: the loss is non-finite; the last good state, of step 1,"
    assert f"{text} is saved in {LAST_GOOD}." in capsys.readouterr().err

    def refuse(*_):
        raise OSError("refused")

    monkeypatch.setattr(NonFiniteGuard, "_save_bundle", lambda *_: None)
    monkeypatch.setattr(NonFiniteGuard, "_save", refuse)
    _, stop = traced_train(tmp_path, range(3, 61), stop_after=1)
    assert f"{text} could not be saved." in capsys.readouterr().err
    assert stop.code == STOPPED_EXIT_CODE


def test_an_early_failure_loses_at_most_half_of_the_steps(tmp_path, copied):
    folder, _ = traced_train(tmp_path, range(52, 61), stop_after=3)

    good = torch.load(folder / LAST_GOOD, weights_only=True)
    assert 51 // 2 <= good["step"] == copied[-2]  # the last copy is that of the bundle
    assert len(copied) == 8  # at 0, 1, 2, 4, 8, 16, 32, and for the bundle


def test_copies_reach_the_interval_of_the_settings(tmp_path, copied):
    traced_train(tmp_path, (), stop_after=3, checkpoint_every=10)

    assert max(later - one for one, later in pairwise(copied)) <= 12
    assert len(copied) == 10  # at 0, 1, 2, 4, 8, 16, 26 and so on


def test_repeated_steps_are_checked_one_by_one(tmp_path, monkeypatch):
    monkeypatch.setattr(step_patterns, "_MIN_REPEATS", 4)
    folder, _ = traced_train(tmp_path, range(45, 61), stop_after=3, checkpoint_every=1)

    # The state of step 44 is copied only after its next finite loss.
    assert torch.load(folder / LAST_GOOD, weights_only=True)["step"] == 43
    assert read_trace(folder).num_steps == 46


def test_a_loss_that_only_overflows_by_its_scale_does_not_stop_the_program(tmp_path):
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
    clean = x.nan_to_num()
    assert nn.functional.mse_loss(model(clean), bundle["target"]).isfinite()


def test_a_finite_loss_resets_the_count(tmp_path):
    folder, stop = traced_train(tmp_path, {10, 11}, stop_after=3, skip_nonfinite=True)

    assert isinstance(stop, nn.Module)
    assert not (folder / LAST_GOOD).exists()


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
def test_a_healthy_program_computes_the_same_bits_with_the_guard(tmp_path, settings):
    _, guarded = traced_train(tmp_path, (), **settings)

    for mine, plain in zip(guarded.parameters(), train(()).parameters(), strict=True):
        assert torch.equal(mine, plain)


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
    done = subprocess.run(
        [sys.executable, "-m", "sluice.trace", *options, "--", sys.executable, str(program)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == STOPPED_EXIT_CODE
    assert done.stdout == ""
    assert "3 consecutive losses are non-finite" in done.stderr
    assert len(list((tmp_path / "t").glob(f"*/{LAST_GOOD}"))) == 1
