"""The page of suites shows guards, counts and examples, and escapes user text (DATA-5)."""

import io

import numpy as np
import pytest
from PIL import Image

from sluice.evaluation.suites import plots
from sluice.evaluation.suites.page import suites_page
from sluice.evaluation.suites.plots import changes_png, rows_png
from sluice.evaluation.suites.result import SuiteReport
from sluice.evaluation.suites.run import run_suites
from sluice.evaluation.suites.settings import SuiteGuard, SuiteSettings
from sluice.evaluation.suites.suite import FromFile, make_suite
from sluice.reports.page import first_tag
from tests.sluice.evaluation.suites.suite_samples import (
    FIRST_TEST,
    LABELS,
    WORKLOAD,
    make_flat_losses,
    make_frame,
    make_members,
    make_rows_suite,
    make_suite_scores,
    make_version,
)


@pytest.fixture(scope="module")
def report() -> SuiteReport:
    candidate, reference = make_flat_losses(2), make_flat_losses(2)
    candidate[:, [60 - FIRST_TEST, 70 - FIRST_TEST]] = 9.0
    candidate[:, 50 - FIRST_TEST] = np.nan
    reference[:, 45 - FIRST_TEST] = 9.0
    reasons = {str(LABELS[60]): "<script>alert(1)</script>", str(LABELS[3]): "", "gone": ""}
    return run_suites(
        [
            make_version(make_rows_suite(45, 50, 60, 70, 80)),
            make_version(make_suite("marked", reasons, FromFile(file="x.csv")), 4),
            make_version(make_rows_suite(1, name="leaked")),
        ],
        make_suite_scores(candidate, reference, make_flat_losses(1)),
        WORKLOAD,
        make_frame(),
        make_members(),
        SuiteSettings(guards=(SuiteGuard(suite="chosen", max_broken_share=0.1),)),
    )


def test_the_page_shows_guards_counts_missing_rows_and_examples(report):
    page = suites_page(report, title="sp500 version 3", max_examples=2)

    assert first_tag(page) == ("guards: fail", "bad")
    assert "3 of 5 rows are broken (60.00%), allowed 10.00%" in page
    assert "1 of 3 rows are no longer in the data: gone" in page
    assert "1 of 1 rows are not scored, because the candidate was trained on them" in page
    assert "and 3 more rows" in page
    assert ">2020-03-01</td>" in page  # row 60, broken
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_rows_are_described_by_the_display_column():
    class Described(type(WORKLOAD)):
        display_column = "path"

    labelled_report = run_suites(
        [make_version(make_rows_suite(45, 50, 60))],
        make_suite_scores(make_flat_losses(2), make_flat_losses(2), make_flat_losses(1)),
        Described(WORKLOAD.settings),
        make_frame().assign(path=[f"day <{row}>" for row in range(len(make_frame()))]),
        make_members(),
        SuiteSettings(),
    )

    page = suites_page(labelled_report, title="t", max_examples=9)

    assert [f"day &lt;{row}&gt;" in page for row in (45, 50, 60, 61)] == [True, True, True, False]


def test_without_suites_the_page_says_so(report):
    empty = report.model_copy(update={"results": (), "guards": ()})

    page = suites_page(empty, title="sp500", max_examples=2)

    assert first_tag(page) == ("no guards", "plain")
    assert "No suites are defined" in page


def test_plots_are_small_and_support_non_finite_losses_and_empty_suites(report):
    images = [changes_png(report.results)] + [
        rows_png(result, threshold=threshold, unit="nats")
        for result in report.results
        for threshold in (report.threshold, None)
    ]

    for png in images:
        assert len(png) < 40_000
        with Image.open(io.BytesIO(png)) as image:
            assert image.width == 792
            assert len(image.getcolors()) > 5


@pytest.mark.parametrize(
    ("threshold", "has_lines"), [(0.5, True), (0.0, False), (np.inf, False), (None, False)]
)
def test_the_caption_names_the_dashed_lines_only_if_they_are_drawn(
    report, monkeypatch, threshold, has_lines
):
    captions, num_lines = [], []

    def record(axes, _headline, detail, **_):
        captions.append(detail)
        num_lines.append(sum(line.get_linestyle() == "--" for line in axes.lines))

    monkeypatch.setattr(plots, "set_headline", record)

    rows_png(report.results[0], threshold=threshold, unit="nats")

    assert num_lines == [2 * has_lines]
    assert ["dashed" in caption for caption in captions] == [has_lines]


def test_a_threshold_that_is_not_finite_is_explained(report):
    page = suites_page(report.model_copy(update={"threshold": np.nan}), title="t", max_examples=1)

    assert "Every row counts as wrong, because the reference has non-finite losses." in page
    assert "above nan" not in page
