"""Intermediate inputs of an iterative sampler are not an evaluation (TRACE-2)."""

import pytest
import torch
from torch import nn

from sluice.trace.hooks.call_groups import RefinementDetector
from sluice.trace.rules.library import judge

STEPS, WIDTH = 20, 4
BETAS = torch.linspace(1e-3, 0.15, STEPS)
ALPHAS = 1 - BETAS
ALPHA_BARS = torch.cumprod(ALPHAS, 0)


def step(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def skew_findings(trace):
    return [f for f in judge(trace) if f.fault == "preprocessing skew"]


class Denoiser(nn.Module):
    """Predicts the noise in rows, as in a diffusion model."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH + 1, 16), nn.Linear(16, WIDTH)

    def forward(self, x, t):
        t = t.float().expand(len(x))[:, None] / STEPS
        return self.last(torch.tanh(self.first(torch.cat([x, t], 1))))


@torch.no_grad()
def sample(model, rows, *, is_guided):
    """Sample rows from very wide noise in small steps."""
    x = 5 * torch.randn(rows, WIDTH)
    for i in reversed(range(STEPS)):
        noise = model(x, torch.tensor(i))
        if is_guided:
            noise = 1.5 * noise - 0.5 * model(x, torch.tensor(0))
        x = (x - BETAS[i] / (1 - ALPHA_BARS[i]).sqrt() * noise) / ALPHAS[i].sqrt()
        x = x + BETAS[i].sqrt() * torch.randn_like(x) if i else x
    return x


def make_program(evaluate, *, num_steps=24, every=8):
    """Return a program that trains a denoiser and evaluates it every few steps."""

    def program():
        model = Denoiser()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for number in range(num_steps):
            t = torch.randint(0, STEPS, (64,))
            noise = torch.randn(64, WIDTH)
            x = ALPHA_BARS[t].sqrt()[:, None] * torch.randn(64, WIDTH)
            x = x + (1 - ALPHA_BARS[t]).sqrt()[:, None] * noise
            step(optimizer, (model(x, t[0]) - noise).square().mean())
            if number % every == every - 1:
                model.eval()
                evaluate(model)
                model.train()

    return program


@pytest.mark.parametrize("is_guided", [False, True])
@pytest.mark.parametrize("rows", [16, 400])
def test_intermediate_inputs_of_a_sampler_are_not_an_evaluation(trace_of, rows, is_guided):
    program = make_program(lambda model: sample(model, rows, is_guided=is_guided))

    assert skew_findings(trace_of(program)) == []


@torch.no_grad()
def evaluate_other_rows(model):
    for _ in range(5):
        model(5 * torch.randn(64, WIDTH) + 9, torch.tensor(0))


VALID = 7 * torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(2)) - 3


@torch.no_grad()
def evaluate_same_rows(model):
    model(VALID, torch.tensor(0))


@torch.no_grad()
def evaluate_noisy_rows(model):
    model(VALID + 0.01 * torch.randn_like(VALID), torch.tensor(0))


@torch.no_grad()
def evaluate_single_rows(model):
    """Evaluate rows one by one; one column is far wider than the others."""
    for row in VALID:
        model((row * torch.tensor([1000.0, 9, 9, 9]))[None], torch.tensor(0))


@torch.no_grad()
def evaluate_wide_column(model):
    for _ in range(4):
        x = VALID + 5 * torch.randn(64, WIDTH)
        x[:, 0] = 1000 * torch.arange(64)  # like a time column
        model(x, torch.tensor(0))


@pytest.mark.parametrize(
    "evaluate",
    [
        evaluate_other_rows,
        evaluate_same_rows,
        evaluate_noisy_rows,
        evaluate_single_rows,
        evaluate_wide_column,
    ],
)
def test_a_custom_evaluation_on_other_inputs_is_reported(trace_of, evaluate):
    (found,) = skew_findings(trace_of(make_program(evaluate)))

    assert found.severity == "error"


@torch.no_grad()
def evaluate_training_like_rows(model):
    for _ in range(4):
        model(torch.randn(64, WIDTH), torch.tensor(0))


def test_a_custom_evaluation_on_training_like_inputs_is_not_reported(trace_of):
    assert skew_findings(trace_of(make_program(evaluate_training_like_rows))) == []


def batches(*, correlation, times):
    """Yield batches of equal width that correlate with the previous batch."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(32, WIDTH, generator=generator)
    for _ in range(times):
        yield x
        x = correlation * x + (1 - correlation**2) ** 0.5 * torch.randn(
            32, WIDTH, generator=generator
        )


@pytest.mark.parametrize(
    ("correlation", "is_same_step", "is_refining"),
    [(0.98, True, True), (0.98, False, False), (1.0, True, False), (0.5, True, False)],
    ids=["similar", "similar in different steps", "equal", "different"],
)
def test_sampler_calls_are_similar_and_between_two_training_steps(
    correlation, is_same_step, is_refining
):
    detector = RefinementDetector()
    for number, x in enumerate(batches(correlation=correlation, times=12)):
        detector.add(x, 0 if is_same_step else number)

    assert detector.is_refining is is_refining


def test_a_few_similar_calls_among_others_are_not_sampler_calls():
    detector = RefinementDetector()
    for x in [*batches(correlation=0.98, times=4), *batches(correlation=0.0, times=8)]:
        detector.add(x, 0)

    assert not detector.is_refining


def test_pairs_of_rows_in_order_are_not_sampler_calls():
    detector = RefinementDetector()
    for number in range(12):  # for example one per class
        detector.add(torch.tensor([[-1.0 - number], [1.0 + number % 5]]), 0)

    assert not detector.is_refining
