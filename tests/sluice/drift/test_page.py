"""The drift page shows the verdict and plots of drifted columns."""

import re

import numpy as np
import pytest

from sluice.drift.page import drift_page
from sluice.drift.plots import quantiles
from sluice.drift.window_evaluation import evaluate_window
from tests.sluice.drift.frames import make_frame, make_reference


@pytest.fixture(scope="module")
def reference():
    return make_reference(make_frame(0, 1000).rename(columns={"a": "<a> $1"}))


def render_page(reference, frame) -> str:
    report = evaluate_window(reference, frame, window="w" * 64, threads=1)
    return drift_page(report, reference, title="now & then")


def test_the_page_shows_drifted_columns_with_plots(reference):
    frame = make_frame(1, 400).rename(columns={"a": "<a> $1"})
    frame["b"] += 1
    frame.loc[:50, "city"] = "<Oslo>"

    page = render_page(reference, frame.drop(columns="flag"))

    assert "Drift: now &amp; then" in page
    assert '<span class="tag bad">DRIFT</span>' in page
    assert page.count("<img") == 3  # overview, b and city
    assert "drift of b" in page
    assert "&lt;Oslo&gt; (51)" in page
    assert "<Oslo>" not in page
    assert "does not have this column" in page


def test_the_page_of_a_stable_window_has_only_the_overview_plot(reference):
    frame = make_frame(1, 400).rename(columns={"a": "<a> $1"})

    page = render_page(reference, frame.assign(more=1))

    assert '<span class="tag good">STABLE</span>' in page
    assert page.count("<img") == 1
    assert "not tested: more" in page


def test_the_page_of_an_inconclusive_window_prints_no_nan(reference):
    page = render_page(reference, make_frame(1, 3).rename(columns={"a": "<a> $1"}))

    assert '<span class="tag unsure">INCONCLUSIVE</span>' in page
    assert not re.search(r"\bnan\b", page)


def test_quantiles_of_cells_approximate_those_of_the_values():
    x = np.random.default_rng(0).normal(size=20_000)
    edges = np.quantile(x, np.linspace(0, 1, 51))
    share_G = np.bincount(np.searchsorted(edges, x), minlength=52) / x.size
    rate_Q = np.array([0.1, 0.5, 0.9])

    assert quantiles(share_G, edges, rate_Q) == pytest.approx(np.quantile(x, rate_Q), abs=0.02)
