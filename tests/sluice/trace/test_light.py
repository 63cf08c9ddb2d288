"""Light steps tell what close looks tell: programs traced with them and without (TRACE-1)."""

import contextlib

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sluice.trace import light
from sluice.trace.fingerprints import LOADER, NETWORK, RowPrints
from sluice.trace.rules.library import judge
from sluice.trace.settings import TraceSettings

STEPS = 330


def network():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def steady(during=lambda *_: None, *, zero=lambda _: True, clip=True, parts=1):
    """Return a program of epochs; ``during`` is called before each update."""

    def program():
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 150, gamma=0.5)
        data = TensorDataset(torch.randn(160, 8), torch.randint(2, (160,)))
        step = 0
        while step < STEPS:
            for x, y in DataLoader(data, batch_size=8, shuffle=True):
                step += 1
                if zero(step):
                    optimizer.zero_grad()
                for _ in range(parts):
                    nn.functional.cross_entropy(model(x), y).backward()
                if during(step, model, optimizer, x) == "skip the rest":
                    continue
                if clip:
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()

    return program


def at(wanted, act):
    def during(step, model, optimizer, x):
        return act(model, optimizer, x) if step == wanted else None

    return during


def gan():
    maker, judge = nn.Linear(4, 8), nn.Linear(8, 1)
    ours = torch.optim.Adam(maker.parameters()), torch.optim.Adam(judge.parameters())
    score = nn.BCEWithLogitsLoss()
    for _ in range(STEPS):
        made = maker(torch.randn(16, 4))
        ours[1].zero_grad()
        real = score(judge(torch.randn(16, 8)), torch.ones(16, 1))
        (real + score(judge(made.detach()), torch.zeros(16, 1))).backward()
        ours[1].step()
        ours[0].zero_grad()
        score(judge(made), torch.ones(16, 1)).backward()
        ours[0].step()


def by_module():
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        model.zero_grad()
        model(torch.randn(16, 8)).square().mean().backward()
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.1)
        optimizer.step()


def evaluating(model, optimizer, x):  # noqa: ARG001
    model.eval()
    with torch.no_grad():
        nn.functional.cross_entropy(model(x), torch.zeros(8, dtype=torch.long))
    model.train()


def unlike(model, optimizer, x):  # noqa: ARG001
    optimizer.zero_grad()


def grown(model, optimizer, x):  # noqa: ARG001
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3))]})


def raised(model, optimizer, x):  # noqa: ARG001
    with contextlib.suppress(RuntimeError):
        model(torch.zeros(2, 3))


PROGRAMS = {
    "steady": steady(),
    "without a clip": steady(clip=False),
    "parts": steady(parts=3),
    "never cleared": steady(zero=lambda _: False),
    "gan": gan,
    "by module": by_module,
    "not cleared once": steady(zero=lambda step: step != 262),
    "cleared before one step": steady(at(257, unlike)),
    "an evaluation": steady(at(258, evaluating)),
    "a step left out": steady(at(259, lambda *_: "skip the rest")),
    "a new group": steady(at(260, grown)),
    "a call that raises": steady(at(261, raised)),
}


def told(trace):
    """Return what is told of every step."""
    words = sorted((w.first_step, w.last_step, w.count, w.is_open, w.marks) for w in trace.words)
    return words, [(r.step, r.optimizer, r.rates) for r in trace.rates]


def span(trace):
    return trace.recent[-1].step - trace.recent[1].step


@pytest.fixture
def both(trace_of, tmp_path, monkeypatch):
    """Return a function that returns a program's trace with light steps, and without."""

    def run(program):
        traces = [trace_of(program)]
        monkeypatch.setattr(light, "_FIRST", 10**9)
        (tmp_path / "traces").rename(tmp_path / "light")
        return [*traces, trace_of(program)]

    return run


@pytest.mark.parametrize("name", PROGRAMS)
def test_order_rates_and_numbers_are_those_of_close_looks(both, name):
    quick, close = both(PROGRAMS[name])

    assert told(quick) == told(close)
    ours, theirs = ({n.step: n for n in trace.numbers} for trace in (quick, close))
    assert len(ours) >= STEPS - 1
    assert all(ours[step] == theirs[step] for step in ours)
    # They were light indeed: the same number of steps with times lies farther back.
    assert span(quick) > 1.4 * span(close)
    assert judge(quick) == judge(close)


def test_an_input_that_is_not_finite_is_told_with_its_step(both):
    def spoil(model, optimizer, x):  # noqa: ARG001
        x[3, 5] = torch.nan
        nn.functional.cross_entropy(model(x), torch.zeros(8, dtype=torch.long)).backward()

    for trace in both(steady(at(263, spoil), clip=False)):
        (fact,) = trace.bad_numbers[:1]
        assert (fact.step, fact.what, fact.columns, fact.rows) == (262, "input", (5,), (3,))


def test_a_gradient_that_is_not_finite_is_told_before_the_clip_spreads_it(both):
    def spoil(model, optimizer, x):  # noqa: ARG001
        model[2].bias.grad[0] = torch.inf

    for trace in both(steady(at(264, spoil))):
        assert trace.gradients[0].step == 264
        assert len(trace.gradients[0].parameters) == 1


def test_what_leaves_the_rhythm_of_two_optimizers_is_looked_at_closely(trace_of):
    def program():
        models = nn.Linear(4, 1), nn.Linear(4, 1)
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in models]
        for step in range(STEPS):
            for model, optimizer in zip(models, optimizers, strict=True):
                if step == 250 and model is models[1]:
                    continue
                optimizer.zero_grad()
                model(torch.randn(4, 4)).square().mean().backward()
                optimizer.step()

    trace = trace_of(program)

    assert sum(w.count for w in trace.words if not w.is_open) == 2 * STEPS - 1
    assert trace.num_steps == 2 * STEPS - 1


def test_norms_are_taken_at_powers_of_two_and_every_100_steps(trace_of):
    """Whatever they cost, and however many steps come as foreseen."""
    trace = trace_of(steady(), TraceSettings(cost_share=1e-9))
    steps = [m.step for m in trace.measures]

    assert steps[:8] == [1, 2, 3, 5, 9, 17, 33, 65]  # each after twice as many
    assert max(np.diff([*steps, STEPS])) <= 100
    assert len(steps) <= 11


def test_rows_that_numpy_changed_at_one_place_have_new_fingerprints():
    rows = np.zeros((2, 3), dtype=np.float32)
    batch, prints = torch.from_numpy(rows), RowPrints()
    first = prints.of(batch, words=8, place=LOADER)

    assert prints.of(batch, words=8, place=NETWORK) == first
    rows += 1
    assert prints.of(batch, words=8, place=LOADER) != first
    second = prints.of(batch, words=8, place=NETWORK)
    rows += 1
    assert prints.of(batch, words=8, place=NETWORK) != second
