"""What the tracer does about losses that are not finite, when asked to (TRACE-8, TRACE-9)."""

import math
import subprocess
import sys
from itertools import pairwise

import pytest
import torch
from torch import nn

from sluice.trace import routine
from sluice.trace.attach import traced
from sluice.trace.guarding import LAST_GOOD, STOPPED, Guard, bundle_name
from sluice.trace.reading import read_trace
from sluice.trace.settings import TraceSettings

STEPS = 60


def train(bad_steps):
    """Fit a small network; some batches hold a NaN."""
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
    steps, states = [], Guard._states

    def counted(guard):
        steps.append(guard._tracer.steps)
        return states(guard)

    monkeypatch.setattr(Guard, "_states", counted)
    return steps


def test_three_bad_losses_in_a_row_end_the_program_with_its_last_good_state(tmp_path):
    folder, stop = traced_train(tmp_path, range(21, 61), stop_after=3, keep_every=5)

    assert stop.code == STOPPED == 75
    good = torch.load(folder / LAST_GOOD, weights_only=True)
    assert 15 <= good["step"] <= 20
    weights = [w for state in good["networks"].values() for w in state.values()]
    assert len(weights) == 4
    assert all(w.isfinite().all() for w in weights)
    # The last one: an optimizer that another test left may be there, too.
    assert good["optimizers"][-1]["state"][0]["step"] == good["step"]
    trace = read_trace(folder)
    (note,) = [n for n in trace.notes if n.kind == "stopped"]
    assert "3 losses in a row" in note.text
    assert trace.num_steps == 22  # the third one makes no step any more


def test_of_a_run_that_fails_early_no_more_than_half_is_lost(tmp_path, copied):
    folder, _ = traced_train(tmp_path, range(52, 61), stop_after=3)

    good = torch.load(folder / LAST_GOOD, weights_only=True)
    assert 51 // 2 <= good["step"] == copied[-2]  # the last one is of the bundle
    assert len(copied) == 8  # at 0, 1, 2, 4, 8, 16, 32 and of the bundle


def test_copies_are_made_as_often_as_is_set_in_the_end(tmp_path, copied):
    traced_train(tmp_path, (), stop_after=3, keep_every=10)

    assert max(later - one for one, later in pairwise(copied)) <= 12
    assert len(copied) == 10  # at 0, 1, 2, 4, 8, 16, 26 and so on


def test_steps_that_repeat_their_order_are_guarded_one_by_one(tmp_path, monkeypatch):
    monkeypatch.setattr(routine, "_TIMES", 4)
    folder, _ = traced_train(tmp_path, range(45, 61), stop_after=3, keep_every=1)

    assert (
        torch.load(folder / LAST_GOOD, weights_only=True)["step"] == 43
    )  # that of 44 is not told yet
    assert read_trace(folder).num_steps == 46


def test_the_first_bad_step_can_be_made_again_from_its_bundle(tmp_path):
    folder, _ = traced_train(tmp_path, {30, 31, 32}, stop_after=3)
    told = torch.load(folder / bundle_name(30), weights_only=True)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
    model.load_state_dict(told["networks"]["Sequential"])
    (x,) = told["inputs"]

    assert (told["step"], told["loss function"]) == (30, "mse_loss")
    assert x[2, 3].isnan()
    assert x.isnan().sum() == 1
    assert nn.functional.mse_loss(model(x), told["target"]).isnan()
    clean = x.nan_to_num()
    assert nn.functional.mse_loss(model(clean), told["target"]).isfinite()


def test_good_losses_in_between_count_anew(tmp_path):
    folder, stop = traced_train(tmp_path, {10, 11}, stop_after=3, skip_poisoned=True)

    assert isinstance(stop, nn.Module)
    assert not (folder / LAST_GOOD).exists()


def test_poisoned_steps_are_left_out_and_counted(tmp_path):
    folder, model = traced_train(tmp_path, {10, 25, 40}, skip_poisoned=True)
    told = [n.text for n in read_trace(folder).notes if n.kind == "skipped"]

    assert all(p.isfinite().all() for p in model.parameters())
    assert told == ["Steps left out so far: 1.", "Steps left out so far: 2."]
    assert not all(p.isfinite().all() for p in train({10}).parameters())


def test_without_being_asked_nothing_is_done(tmp_path):
    folder, model = traced_train(tmp_path, {50})

    assert not list(folder.glob("*.pt"))
    assert not any(p.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("settings", [{"stop_after": 3}, {"skip_poisoned": True}])
def test_a_healthy_program_computes_the_same_bits_under_a_guard(tmp_path, settings):
    _, guarded = traced_train(tmp_path, (), **settings)

    for mine, plain in zip(guarded.parameters(), train(()).parameters(), strict=True):
        assert torch.equal(mine, plain)


@pytest.mark.slow
def test_a_program_that_is_stopped_has_an_exit_code_of_its_own(tmp_path):
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

    assert done.returncode == STOPPED
    assert done.stdout == ""
    assert "3 losses in a row are not finite" in done.stderr
    assert len(list((tmp_path / "t").glob(f"*/{LAST_GOOD}"))) == 1
