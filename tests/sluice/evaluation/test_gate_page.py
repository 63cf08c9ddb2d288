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
from tests.sluice.evaluation.loss_samples import table, two_recipes


def pair(gain: float):
    return two_recipes(np.random.default_rng(6), rho=0.5, gain=gain, num_rows=400)


def judged(candidate, reference):
    return compare(candidate, reference, GateSettings(), horizon_rows=1, unit="nats")


def page(candidate, reference, *, guards=(), title="a & b", row_descriptions=None) -> str:
    verdict = judged(candidate, reference)
    companions = run_secondary_tests(
        verdict, candidate, reference, SecondaryTestSettings(resamples=100), horizon_rows=1
    )
    return gate_page(
        verdict.with_guards(guards), companions, candidate, reference, title=title,
        advised_power=0.8, row_descriptions=row_descriptions,
    )  # fmt: skip


def test_the_page_shows_outcome_numbers_and_secondary_tests():
    said = page(*pair(1.0))

    assert first_tag(said) == ("PROMOTE", "good")
    assert "a &amp; b" in said
    for words in (
        "Significantly better",
        "Diebold-Mariano",
        "Probability of improvement",
        "required",
    ):
        assert words in said
    assert said.count("data:image/png;base64,") == 4
    assert "Guards" not in said


def test_guards_are_shown_with_their_results():
    guard = GuardOutcome(
        name="metric <f1>", result="fail", observed=-0.2, required=-0.1, reason="It is broken."
    )

    said = page(*pair(1.0), guards=[guard])

    assert first_tag(said) == ("REJECT", "bad")
    assert "metric &lt;f1&gt;" in said
    assert "<f1>" not in said


def test_worst_rows_are_described():
    candidate, reference = pair(1.0)
    worst = str(candidate.label_N[find_worst_rows(candidate, reference)[0]])

    said = page(candidate, reference, row_descriptions={worst: "cats/<7>.png"})

    assert "cats/&lt;7&gt;.png" in said
    assert "example" not in page(candidate, reference)


@pytest.mark.slow
def test_non_finite_losses_still_give_a_page():
    candidate, reference = pair(1.0)
    loss_SN = candidate.loss_SN.copy()
    loss_SN[0, 5] = math.nan

    said = page(table(loss_SN, "candidate", num_folds=4), reference)

    assert first_tag(said) == ("INCONCLUSIVE", "unsure")
    assert "not computable" in said


def test_the_gain_by_difficulty_is_in_the_order_of_the_losses():
    easy_N = 10 * np.arange(100.0)
    reference = table(np.stack([easy_N, easy_N]), "reference")
    better_where_hard = easy_N - np.where(easy_N >= 900, 3.0, -1.0)
    candidate = table(np.stack([better_where_hard] * 2), "candidate")

    assert gain_by_difficulty(candidate, reference).tolist() == [-1.0] * 9 + [3.0]
    assert difficulty_png(candidate, reference, unit="nats").startswith(b"\x89PNG")


def test_the_power_curve_starts_at_alpha_and_more_evidence_lifts_it():
    verdict = judged(*pair(0.05))
    gain_G = np.array([0.0, verdict.standard_error, 3 * verdict.standard_error])

    now, seeds, rows = (
        power_curve(verdict, gain_G, **more)
        for more in ({}, {"seed_factor": 2.0}, {"row_factor": 2.0})
    )

    assert now[0] == pytest.approx(0.05)
    assert (np.diff(now) > 0).all()
    assert (seeds[1:] > now[1:]).all()
    assert (rows[1:] > now[1:]).all()
    unknown = verdict.model_copy(update={"row_se": math.nan, "standard_error": math.nan})
    assert np.isnan(power_curve(unknown, gain_G)).all()
    assert power_png(unknown, power=0.8).startswith(b"\x89PNG")
