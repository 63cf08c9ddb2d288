import re

import numpy as np
import pytest

from sluice.drift.page import drift_page
from sluice.drift.plots import quantiles
from sluice.drift.window_evaluation import evaluate_window
from tests.sluice.drift.frames import mixed, reference_of


@pytest.fixture(scope="module")
def reference():
    return reference_of(mixed(0, 1000).rename(columns={"a": "<a> $1"}))


def page_of(reference, frame) -> str:
    report = evaluate_window(reference, frame, window="w" * 64, threads=1)
    return drift_page(report, reference, title="now & then")


def test_the_page_shows_drifted_columns_with_plots(reference):
    frame = mixed(1, 400).rename(columns={"a": "<a> $1"})
    frame["b"] += 1
    frame.loc[:50, "city"] = "<Oslo>"

    page = page_of(reference, frame.drop(columns="flag"))

    assert "Drift: now &amp; then" in page
    assert '<span class="tag bad">DRIFT</span>' in page
    assert page.count("<img") == 3  # the overview, b and city
    assert "drift of b" in page
    assert "&lt;Oslo&gt; (51)" in page
    assert "<Oslo>" not in page
    assert "does not have this column" in page


def test_a_stable_window_has_the_overview_alone(reference):
    frame = mixed(1, 400).rename(columns={"a": "<a> $1"})

    page = page_of(reference, frame.assign(more=1))

    assert '<span class="tag good">STABLE</span>' in page
    assert page.count("<img") == 1
    assert "not tested: more" in page


def test_an_inconclusive_window_has_a_page(reference):
    page = page_of(reference, mixed(1, 3).rename(columns={"a": "<a> $1"}))

    assert '<span class="tag unsure">INCONCLUSIVE</span>' in page
    assert not re.search(r"\bnan\b", page)


def test_quantiles_of_cells_are_those_of_the_values_they_hold():
    x = np.random.default_rng(0).normal(size=20_000)
    edges = np.quantile(x, np.linspace(0, 1, 51))
    share_G = np.bincount(np.searchsorted(edges, x), minlength=52) / x.size
    rate_Q = np.array([0.1, 0.5, 0.9])

    assert quantiles(share_G, edges, rate_Q) == pytest.approx(np.quantile(x, rate_Q), abs=0.02)
