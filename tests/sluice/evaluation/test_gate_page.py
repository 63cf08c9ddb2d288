"""The page of the promotion gate and its plots."""

import math

import numpy as np
import pytest

from sluice.evaluation.comparison import compare
from sluice.evaluation.gate_page import gate_page
from sluice.evaluation.gate_plots import (
    difficulty_png,
    gain_by_difficulty,
    power_curve,
    power_png,
)
from sluice.evaluation.secondary_tests import SecondaryTestSettings, run_secondary_tests
from sluice.evaluation.settings import GateSettings
from sluice.evaluation.worst_rows import find_worst_rows
from sluice.reports.page import first_tag
from sluice.verdicts.guard_outcome import GuardOutcome
from tests.sluice.evaluation.loss_samples import make_losses, simulate_arms


def simulate_pair(gain: float):
    return simulate_arms(np.random.default_rng(6), rho=0.5, gain=gain, num_rows=400)


def run_gate(candidate, reference):
    return compare(candidate, reference, GateSettings(), horizon_rows=1, unit="nats")


def render_page(candidate, reference, *, guards=(), title="a & b", row_descriptions=None) -> str:
    verdict = run_gate(candidate, reference)
    secondary = run_secondary_tests(
        verdict, candidate, reference, SecondaryTestSettings(resamples=100), horizon_rows=1
    )
    return gate_page(
        verdict.with_guards(guards), secondary, candidate, reference, title=title,
        advised_power=0.8, row_descriptions=row_descriptions,
    )  # fmt: skip


def test_the_page_shows_outcome_numbers_and_secondary_tests():
    html = render_page(*simulate_pair(1.0))

    assert first_tag(html) == ("PROMOTE", "good")
    assert "a &amp; b" in html
    for text in (
        "Significantly better",
        "Diebold-Mariano",
        "Probability of improvement",
        "required",
    ):
        assert text in html
    assert html.count("data:image/png;base64,") == 4
    assert "Guards" not in html


def test_guards_are_shown_with_their_results():
    guard = GuardOutcome(
        name="metric <f1>", result="fail", observed=-0.2, required=-0.1, reason="It is broken."
    )

    html = render_page(*simulate_pair(1.0), guards=[guard])

    assert first_tag(html) == ("REJECT", "bad")
    assert "metric &lt;f1&gt;" in html
    assert "<f1>" not in html


def test_worst_rows_are_described():
    candidate, reference = simulate_pair(1.0)
    worst = str(candidate.label_N[find_worst_rows(candidate, reference)[0]])

    html = render_page(candidate, reference, row_descriptions={worst: "cats/<7>.png"})

    assert "cats/&lt;7&gt;.png" in html
    assert "example" not in render_page(candidate, reference)


@pytest.mark.slow
def test_the_page_shows_non_finite_losses_as_not_computable():
    candidate, reference = simulate_pair(1.0)
    loss_SN = candidate.loss_SN.copy()
    loss_SN[0, 5] = math.nan

    html = render_page(make_losses(loss_SN, "candidate", num_folds=4), reference)

    assert first_tag(html) == ("INCONCLUSIVE", "unsure")
    assert "not computable" in html


def test_gain_by_difficulty_is_ordered_by_the_reference_loss():
    reference_N = 10 * np.arange(100.0)
    reference = make_losses(np.stack([reference_N, reference_N]), "reference")
    candidate_N = reference_N - np.where(reference_N >= 900, 3.0, -1.0)
    candidate = make_losses(np.stack([candidate_N] * 2), "candidate")

    assert gain_by_difficulty(candidate, reference).tolist() == [-1.0] * 9 + [3.0]
    assert difficulty_png(candidate, reference, unit="nats").startswith(b"\x89PNG")


def test_the_power_curve_starts_at_alpha_and_rises_with_more_evidence():
    verdict = run_gate(*simulate_pair(0.05))
    gain_G = np.array([0.0, verdict.standard_error, 3 * verdict.standard_error])

    current, more_seeds, more_rows = (
        power_curve(verdict, gain_G, **factors)
        for factors in ({}, {"seed_factor": 2.0}, {"row_factor": 2.0})
    )

    assert current[0] == pytest.approx(0.05)
    assert (np.diff(current) > 0).all()
    assert (more_seeds[1:] > current[1:]).all()
    assert (more_rows[1:] > current[1:]).all()
    unknown = verdict.model_copy(update={"row_se": math.nan, "standard_error": math.nan})
    assert np.isnan(power_curve(unknown, gain_G)).all()
    assert power_png(unknown, power=0.8).startswith(b"\x89PNG")
